"""Pipelines: queries that are joined by logs. So far how one is declared, its graph, and its failures, simulated."""
