"""Runs that repeat one thing for minutes or hours, and look for anything that grows: ``./dev soak``.

``soaks`` has what each run repeats.  ``census`` runs a daemon whose objects it counts, ``run`` samples them, and
``growth`` judges the samples.  ``picture`` draws them.
"""
