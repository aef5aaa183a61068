"""Migrates the state of a stopped query to a new checkpoint: for another provider, or with more partitions."""
