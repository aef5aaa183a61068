"""The command line `cec`: looks at a query's log, verifies it, repairs it, and advises on the checkpoint interval."""

from __future__ import annotations

from spark_cec.cli.app import main

__all__ = ["main"]
