"""No checkpoints: the baseline of comparisons. A failure takes every process back to its beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_cec.protocols.messages import Checkpoint, Line, Machine, Process

NoMachine = Machine


def recovery_line(checkpoints: Mapping[Process, Sequence[Checkpoint]]) -> Line:
    """The beginning of every process."""
    return {process: own[0] for process, own in checkpoints.items()}
