"""The rows of frames: their check on arrival, their place in span buffers, and how each one ends."""
