"""Pipelines measured: progressive recovery on a cluster, and what it costs to split a query."""
