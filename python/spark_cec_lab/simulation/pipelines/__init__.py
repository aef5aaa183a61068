"""Correlated failures of random pipelines, and how the strategies of progressive recovery compare."""
