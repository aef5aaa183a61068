"""Messages for the driver's log at a start that goes on, about the query's log and Spark's files.

The sentence of a start that is refused stands where it is refused: mostly in `recovery.decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_cec.log.scan import Corrupt
from spark_cec.recovery.decide import OperatorDecision, StartOrders
from spark_cec.settings import PREFIX, WriteAt


@dataclass(frozen=True, slots=True)
class StartMessage:
    """A line for the driver's log. `warns`: something is wrong, or nearly wrong."""

    line: str
    warns: bool = True


def describe_new_owner(home: str, former: str, checkpoint: str) -> StartMessage:
    """Says that the log at `home` now belongs to another checkpoint."""
    return StartMessage(
        f"the log at {home} was that of the checkpoint {former}, which is gone or has another log: it belongs to "
        f"{checkpoint} from now on"
    )


def describe_damage(home: str, damages: Sequence[object]) -> list[StartMessage]:
    """A message on damaged bytes in the log; empty without damage."""
    places = [f"{each.segment} at byte {each.offset}" for each in damages if isinstance(each, Corrupt)]
    if not places:
        return []
    return [
        StartMessage(
            f"the log at {home} has damaged bytes ({', '.join(places)}), so a replay may begin earlier; `cec repair` "
            "takes them out while the query is stopped, and says what they cost"
        )
    ]


_COSTS_NOTHING = {
    "deduplication": "it writes each key once in any case, as it first sees it",
    "deduplication within watermark": "it writes each key once in any case, as it first sees it",
    "limit": "it has one key",
}
_COSTS_LITTLE = {"stream-stream join": "it writes each row once in any case, and with it how many rows its key has"}


def describe_eager_operators(operators: Sequence[OperatorDecision], asked: bool) -> list[StartMessage]:
    """A message on the eager operators, with reasons and costs; empty if no operator is eager.

    `asked`: the user set the eager mode, so the message is no warning.
    """
    eager = [each for each in operators if not each.deferred]
    if not eager:
        return []
    which = [f"operator {each.operator} ({each.kind}), {_describe_cost(each.kind, each.reason)}" for each in eager]
    return [
        StartMessage(
            f"eager, so that every commit writes all that its batch touched: {'; '.join(which)}", warns=not asked
        )
    ]


def _describe_cost(kind: str, reason: str) -> str:
    if kind in _COSTS_NOTHING:
        return f"which costs nothing, since {_COSTS_NOTHING[kind]} (reason: {reason})"
    if kind in _COSTS_LITTLE:
        return f"which costs little, since {_COSTS_LITTLE[kind]} (reason: {reason})"
    return f"which costs a record for each key that a batch touches (reason: {reason})"


def describe_plan(orders: StartOrders, decision: str, settings: str, home: str) -> list[StartMessage]:
    """Says how the query comes back. `decision` has the mode and its reason; `settings` has one line."""
    plan = orders.plan
    committed, begin = plan.committed_batch, plan.rewound_to + 1
    replay = f"replay from batch {begin}" if plan.replayed_batches else "nothing to replay"
    how = "a new query" if committed < 0 else f"last committed batch {committed}, {replay}"
    words = [StartMessage(f"{decision}; {settings}; log at {home}; {how}", warns=False)]
    if orders.makes_newest:
        unwritten = (
            f"Spark had committed batch {committed} before all stores had written it (writeAt=async): a replay of "
            f"batches {begin} to {committed} makes it again"
        )
        words.insert(0, StartMessage(unwritten, warns=False))
    elif plan.base <= committed:
        lost = (
            f"the log has lost a part of version {committed + 1}, and `cec repair` has found all stores at version "
            f"{plan.base}: what is missing is made again by a replay of batches {begin} to {committed}"
        )
        words.insert(0, StartMessage(lost))
    return words


def describe_write_at(asked: WriteAt | None, chosen: WriteAt) -> list[StartMessage]:
    """Warns if the stores of a query write at another time than the user asked for; empty otherwise."""
    if asked is None or asked is chosen:
        return []
    why = (
        "the rows of a batch for the `cec` sink must be durable before Spark commits it, and so must the state of an "
        "operator that is not deferred"
        if chosen is WriteAt.BATCH
        else "it has a memory sink, is under a protocol, or lets Spark record its sink "
        "(spark.sql.streaming.queryEvolution.enableSinkEvolution), so its sink does not wait for the stores"
    )
    return [StartMessage(f"the query has writeAt={chosen.value}, and not {PREFIX}writeAt={asked.value}: {why}")]
