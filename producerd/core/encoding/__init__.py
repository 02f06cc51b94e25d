"""Make entries of rows, and the body of a request of entries."""
