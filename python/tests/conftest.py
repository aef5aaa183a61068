"""What holds for all tests: how long an example of Hypothesis takes is no matter for a test."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
