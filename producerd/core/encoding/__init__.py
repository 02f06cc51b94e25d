"""Rows to entries, and entries to the body of a request."""
