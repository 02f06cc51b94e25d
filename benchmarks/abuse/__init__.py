"""Measure what hostile clients cost honest ones: ``./dev bench abuse``.

An honest client puts frames one after the other, before, during and after each attack on the same daemon.  The
attackers are a process of another user, or of the same one.  Attacks end after a few seconds, and reach a daemon of
this benchmark alone.
"""
