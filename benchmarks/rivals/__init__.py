"""Other producers, through the same scenario and the same service as producerd."""
