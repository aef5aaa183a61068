"""The Kafka example: a stream of purchases, a job that is killed, and the comparison with pandas."""

from __future__ import annotations

import purchases_demo  # noqa: F401  (says where what all examples share is)
