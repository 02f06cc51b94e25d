"""How much memory the daemon takes, beside what it charges and what the law allows: ``./dev bench memory``."""
