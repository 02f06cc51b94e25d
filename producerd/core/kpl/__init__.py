"""Write and read Amazon's format of aggregated records."""
