"""How long a record takes from put to acknowledgement, beside bare round trips: ``./dev bench latency``."""
