"""Measure other producers' CPU time per record, with the same endpoint as producerd's: ``./dev bench rivals``."""
