"""The parts of `pipeline_purchases.py`: a pipeline over purchases, its driver, and who kills it."""

from __future__ import annotations

import purchases_demo  # noqa: F401  (says where what all examples share is)
