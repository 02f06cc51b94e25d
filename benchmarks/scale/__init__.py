"""Measure whether the cost of a record stays the same in small and large settings: ``./dev bench scale``.

For each value of a dimension, with all others fixed, records walk through a daemon.  The cost is counted in
instructions if qemu is there, otherwise in CPU time.
"""
