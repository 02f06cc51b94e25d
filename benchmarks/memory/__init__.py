"""Measure the daemon's memory, and compare it with its own accounting and its limit: ``./dev bench memory``."""
