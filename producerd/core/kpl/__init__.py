"""Amazon's format of aggregated records, both directions."""
