"""Continuous eventual checkpointing: every committed batch is durable, so only a process that failed goes back.

With every batch a process writes its messages, its offsets, and a part of its state. A replay of known input brings
the rest of the state back. The replay is exact (recorded offsets, the same rows). A message that the process had sent
before its failure is sent again under the same number: it is a duplicate, and never an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_cec.protocols.messages import Checkpoint, Line, Machine, Process

EventualMachine = Machine
"""Asks for no checkpoint: at each batch the store decides which windows it writes."""


def recovery_line(
    now: Mapping[Process, Checkpoint], durable: Mapping[Process, Checkpoint], failed: Collection[Process]
) -> Line:
    """A failed process goes back to its last batch; all others stay as they are.

    `now`: the present states; `durable`: the last batch of each process.
    """
    return {process: durable[process] if process in failed else state for process, state in now.items()}
