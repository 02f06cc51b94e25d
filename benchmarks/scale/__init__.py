"""Whether a record costs the same in small and in large settings: ``./dev bench scale``.

One walk of records for each value of a dimension, all else alike, counted in instructions where qemu can be had.
"""
