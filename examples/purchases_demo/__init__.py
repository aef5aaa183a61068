"""The parts of `examples/purchases.py`: events, the two queries, the supervisor that kills them, and the comparison."""

from __future__ import annotations

import sys
from pathlib import Path

# What the examples share with the tests: processes that can be killed, a Kafka broker.
sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
