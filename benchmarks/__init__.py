"""Benchmarks, each a module or a folder: ``./dev bench NAME [--json]``.  The wheel does not contain them.

`harness` has what most of them share.  ``judges`` and ``rivals`` use other people's code, which reads or writes Kinesis
in place of ours.  Each is a folder with its Maven project and the Python that runs it.
"""
