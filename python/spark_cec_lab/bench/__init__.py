"""`make bench`: batch time, writes and recovery time beside Spark's own state stores (design, section 8)."""
