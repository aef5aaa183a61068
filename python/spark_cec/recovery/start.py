"""What a start of a query says, and for what it is refused, once its log and Spark's own files are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.scan import Corrupt
from spark_cec.log.storage import Storage
from spark_cec.recovery.plan import RecoveryPlan
from spark_cec.recovery.spark_logs import planned_batches

STATE_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True, slots=True)
class Word:
    """A line for the driver's log. `warns`: something is wrong, or nearly so."""

    line: str
    warns: bool = True


def refuse_without_log(checkpoint: Storage, home: str, has_query: bool) -> None:
    """Refuses a query with state that has committed batches, and has no log.

    `has_query`: whether the checkpoint has its `cec/query.json`, and so had a log once.
    """
    why = "its log is gone" if has_query else "its log is gone, or it holds state of another provider"
    raise UnsuitableCheckpoint(
        f"the checkpoint {checkpoint.url} has committed batches but no Spark CEC log at {home}: {why}. Restore the "
        "log, or start a new checkpoint"
    )


def refuse_a_lost_commit(checkpoint: Storage, committed: int) -> None:
    """Refuses a query whose state Spark names by ids, where the entry with those of batch `committed` is gone."""
    if committed >= 0 and not checkpoint.exists(f"commits/{committed}"):
        raise UnsuitableCheckpoint(
            f"{checkpoint.url}/commits/{committed} is gone, and with it the ids by which Spark names the state of "
            f"batch {committed} ({STATE_IDS} is 2): restore it, or the checkpoint whole with its log, from a copy; or "
            f"go back to an earlier batch with `cec rollback {checkpoint.url} --to BATCH`"
        )


def refuse_forgotten_batches(checkpoint: Storage, plan: RecoveryPlan) -> None:
    """Refuses a replay of batches that Spark's offset log no longer has."""
    if not plan.replayed_batches:
        return
    # The batch before the first one too: a batch is what lies between two offsets.
    wanted = range(max(plan.rewound_to, 0), plan.committed_batch + 1)
    forgotten = sorted(set(wanted) - set(planned_batches(checkpoint)))
    if forgotten:
        raise UnsuitableCheckpoint(
            f"Spark's offset log in {checkpoint.url} no longer has batch {forgotten[0]}, but the recovery of batch "
            f"{plan.committed_batch} replays from batch {plan.rewound_to + 1}: restore the checkpoint whole from a copy"
        )


def word_on_owner(home: str, former: str, checkpoint: str) -> Word:
    """That a log has another owner from now on."""
    return Word(
        f"the log at {home} was that of the checkpoint {former}, which is gone or has another log: it belongs to "
        f"{checkpoint} from now on"
    )


def words_on_damage(home: str, damages: Sequence[object]) -> list[Word]:
    """That the log has damaged bytes, if it has."""
    places = [f"{each.segment} at byte {each.offset}" for each in damages if isinstance(each, Corrupt)]
    if not places:
        return []
    return [
        Word(
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


def words_on_eager(operators: Sequence[Mapping[str, Any]], asked: bool) -> list[Word]:
    """Which stateful operators are eager, why, and what that costs; nothing if none is.

    `operators`: as the decision has them (`operator`, `kind`, `deferred`, `reason`). `asked`: the settings say so, and
    nobody is to be warned.
    """
    eager = [each for each in operators if not each["deferred"]]
    if not eager:
        return []
    which = [f"operator {each['operator']} ({each['kind']}), {_why(each['kind'], each['reason'])}" for each in eager]
    return [Word(f"eager, so that every commit writes all that its batch touched: {'; '.join(which)}", warns=not asked)]


def _why(kind: str, reason: str) -> str:
    if kind in _COSTS_NOTHING:
        return f"which costs nothing, since {_COSTS_NOTHING[kind]} (reason: {reason})"
    if kind in _COSTS_LITTLE:
        return f"which costs little, since {_COSTS_LITTLE[kind]} (reason: {reason})"
    return f"which costs a record for each key that a batch touches (reason: {reason})"


def words_on_plan(plan: RecoveryPlan, decision: str, settings: str, home: str) -> list[Word]:
    """How the query comes back. `decision`: its mode, and why; `settings`: in one line."""
    committed, begin = plan.committed_batch, plan.rewound_to + 1
    replay = f"replay from batch {begin}" if plan.replayed_batches else "nothing to replay"
    how = "a new query" if committed < 0 else f"last committed batch {committed}, {replay}"
    words = [Word(f"{decision}; {settings}; log at {home}; {how}", warns=False)]
    if plan.base <= committed:
        lost = (
            f"the log has lost a part of version {committed + 1}, and `cec repair` has found all stores at version "
            f"{plan.base}: what is missing is made again by a replay of batches {begin} to {committed}"
        )
        words.insert(0, Word(lost))
    return words
