"""What a record costs the daemon, from a client's socket to an acknowledgement: ``./dev bench daemon``.

A client that does next to nothing, `producerd serve` as anybody runs it, and an endpoint that answers at once, each a
process of its own; beside them, in the same run, a daemon as one would write it on a first day.
"""
