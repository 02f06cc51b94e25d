"""The lanes of one stream: for each shard the rows that wait for it, and its pace."""
