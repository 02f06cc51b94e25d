"""``./dev mutate``: whether the tests notice small faults."""
