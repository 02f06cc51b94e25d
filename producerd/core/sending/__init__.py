"""Send requests, and do with their rows what the answers require."""
