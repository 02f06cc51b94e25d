"""Rows of frames: checked, sorted into span buffers, and how each one ends."""
