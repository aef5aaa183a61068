"""Simulations, which need no Spark: of checkpointing protocols, and of pipelines that lose executors."""
