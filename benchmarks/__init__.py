"""Benchmarks, one folder each with a ``__main__``: ``./dev bench NAME [--json]``.  The wheel does not contain them.

``judges`` and ``rivals`` use other people's code, which reads or writes Kinesis in place of ours.  Each is a folder
with
its Maven project and the Python that runs it.
"""
