"""What producerd decides: no I/O, no clock, no tasks.  Time is an argument (`now`, seconds of any monotonic clock)."""
