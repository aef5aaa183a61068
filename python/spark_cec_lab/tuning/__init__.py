"""The utilization model of `spark_cec.tuning` beside its paper's numbers and figures, and beside a simulation."""
