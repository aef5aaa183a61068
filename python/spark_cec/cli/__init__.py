"""The command line `cec`: inspects, verifies and repairs a query's log, and advises on the checkpoint interval."""

from __future__ import annotations

import sys

from spark_cec.extras import ExtraMissing, needed_by

__all__ = ["main"]


def main() -> None:
    """Runs the command; names the missing extra if the command line is not installed."""
    try:
        with needed_by("the command line"):
            from spark_cec.cli.app import main as run
    except ExtraMissing as missing:
        print(f"cec: {missing}", file=sys.stderr)
        raise SystemExit(2) from None
    run()
