"""Requests, their answers, and what each answer does to its rows."""
