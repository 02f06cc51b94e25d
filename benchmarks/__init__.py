"""Measurements, one folder each with a ``__main__``: ``./dev bench NAME [--json]``.  No part of the wheel.

``judges`` and ``rivals`` are other people's code, which reads what we wrote or writes what we would: each in a folder
with its Maven project and the Python that runs it.
"""
