"""The shards of one stream: hash keys, the map, and what is known of it."""
