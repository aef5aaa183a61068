"""Continuous eventual checkpointing: every batch is durable when it is told of, so nobody goes back but who failed.

Each process writes what it sent and how far it has read with every batch, and of its state so much that a replay of
known input brings it back. The replay is exact (recorded offsets, the same rows): what a process had sent before its
failure it sends again under the same number, which is a duplicate and never an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_cec.protocols.words import Checkpoint, Line, Machine, Process

EventualMachine = Machine
"""Asks for nothing: the store decides by itself, at each batch, what it writes."""


def recovery_line(
    now: Mapping[Process, Checkpoint], durable: Mapping[Process, Checkpoint], failed: Collection[Process]
) -> Line:
    """Who failed is as its last batch left it, everybody else as now.

    `now`: the present states; `durable`: the last batch of each process.
    """
    return {process: durable[process] if process in failed else state for process, state in now.items()}
