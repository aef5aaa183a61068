"""The command line `cec`: looks at a query's log, verifies it, repairs it, and advises on the checkpoint interval."""

from __future__ import annotations

import sys

from spark_cec.extras import ExtraMissing, needed_by

__all__ = ["main"]


def main() -> None:
    """The command; says which extra is missing where it was installed without."""
    try:
        with needed_by("the command line"):
            from spark_cec.cli.app import main as run
    except ExtraMissing as missing:
        print(f"cec: {missing}", file=sys.stderr)
        raise SystemExit(2) from None
    run()
