"""The shards of one stream: hash keys, the shard map, and how far the map can be believed."""
