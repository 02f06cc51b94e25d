"""The decisions of producerd, without I/O, clock or tasks.

Time is an argument: ``now``, in seconds of any monotonic clock.
"""
