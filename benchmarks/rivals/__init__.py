"""What a record costs other producers, counted at the same endpoint as producerd."""
