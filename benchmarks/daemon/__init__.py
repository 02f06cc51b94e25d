"""Measure the daemon's CPU time per record, from a client's socket to an acknowledgement: ``./dev bench daemon``.

A client that does almost nothing, `producerd serve`, and an endpoint that answers at once are processes of their own.
The same run also measures a naive daemon, as one would write it on a first day.
"""
