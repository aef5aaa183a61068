"""Spark's own streaming suites, run on our provider: `python -m spark_suites --help`."""
