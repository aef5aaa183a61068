"""How far back a query can be taken: facts in, a refusal out. Reads nothing; `recovery.rollback` reads the facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.recovery.query_files import ROLLBACK, Rollback


@dataclass(frozen=True, slots=True)
class Reach:
    """The facts that bound a rollback.

    `checkpoint` and `own`: the URLs of the checkpoint and of its `cec` directory. `pending`: an unfinished rollback
    with a readable note. `begun`: an unfinished rollback that may have taken output back; its note may be unreadable.
    `is_flow`: the query is a flow under a protocol. `planned`: the batches in Spark's offset log. `kept_from`: the
    oldest batch whose output is kept.
    """

    checkpoint: str
    own: str
    planned: Sequence[int]
    kept_from: int = 0
    pending: Rollback | None = None
    begun: Rollback | None = None
    is_flow: bool = False

    def find_obstacle(self, batch: int, *, is_whole: bool) -> str | None:
        """Why no rollback can go to the end of `batch`; None if one can.

        `is_whole`: Spark's logs have all files to start after `batch`.
        """
        if self.pending is not None and self.pending.batch == batch:
            return None
        if self.begun is not None and self.begun.batch < batch:
            target = self.begun.batch
            return (
                f"{self.own} has {ROLLBACK.name}: its query is being taken back to the end of batch {target}, which "
                f"is before batch {batch}: {name_finisher(self.own, str(target), is_flow=self.is_flow)}, which does "
                "the rest"
            )
        if batch < self.kept_from - 1:
            return (
                f"{self.checkpoint} cannot be taken back to batch {batch}: its output is kept from batch "
                f"{self.kept_from} on; begin the pipeline anew, in another home"
            )
        first, last = min(self.planned, default=-1), max(self.planned, default=-1)
        if batch < 0 < first:
            return (
                f"{self.checkpoint} cannot be taken back to its beginning: Spark keeps batches from {first} on. If "
                "files are missing in cec/checkpoints there, restore them; or begin the pipeline anew, in another home"
            )
        if batch >= 0 and not is_whole:
            return (
                f"{self.checkpoint} cannot be taken back to batch {batch}: Spark keeps batches {first} to {last} of "
                "it; let it keep more, with spark.sql.streaming.minBatchesToRetain, or begin the pipeline anew, in "
                "another home"
            )
        return None


def name_finisher(own: str, batch: str, *, is_flow: bool) -> str:
    """Names the step that finishes a rollback: a pipeline's start for a flow under a protocol, else `cec rollback`."""
    if is_flow:
        return "start the pipeline that it belongs to"
    return f"run `cec rollback {own.removesuffix('/cec')} --to {batch}`"
