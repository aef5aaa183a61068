"""Protocols at 10 to 100 workers, by simulation: the same machines as on Spark, and costs that were measured there.

- `dataflow`: queries as operators, their instances, and what goes from one to another
- `engine`: time, workers, channels, failures
- `outcome`: what a run has shown
- `measure`: the paper's experiments: sustainable rates, and a failure
"""
