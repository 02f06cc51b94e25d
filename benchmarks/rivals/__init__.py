"""Measure the CPU time per record of other producers, with the same endpoint as for producerd."""
