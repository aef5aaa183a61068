"""Availability: inputs in buckets of time, so that an input that is missing can be told from one that has no more."""
