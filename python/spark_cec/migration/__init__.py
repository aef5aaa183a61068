"""Carrying the state of a stopped query from one checkpoint to another: of another provider, or of more partitions."""
