"""`make bench`: batch time, writes and recovery time beside Spark's own state stores (docs/benchmarks.md)."""
