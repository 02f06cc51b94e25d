"""Measure the time from put to acknowledgement, and compare it with bare round trips: ``./dev bench latency``."""
