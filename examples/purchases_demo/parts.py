"""The example's own processes: the feeder, the driver with both queries, the reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purchases_demo.layout import Layout
from testbed.processes import Child

SCRIPT = Path(__file__).resolve().parents[1] / "purchases.py"


@contextmanager
def part(layout: Layout, command: str, name: str, *options: object) -> Iterator[Child]:
    """Run one of the commands of `purchases.py` in `layout`; killed with all its descendants at the end.

    `name` is that of its log.
    """
    line = [sys.executable, str(SCRIPT), command, "--output", str(layout.root), *map(str, options)]
    child = Child(line, layout.log(name), {"TMPDIR": str(layout.scratch)})
    try:
        yield child
    finally:
        child.kill()
