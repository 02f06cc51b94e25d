"""Lanes: a line of rows for each shard, and its pace."""
