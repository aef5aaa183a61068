"""Pipelines: queries that are joined by logs. So far what a correlated failure does to one, simulated."""
