"""Decides how a query begins and which committed batches it replays: facts in, orders out.

This module reads and writes nothing. `recovery.facts` reads the facts of the log and of the checkpoint. `agent.starts`
carries out the orders. A fact that rules a start out raises an error, whose message names the mend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_cec.errors import DamagedLog, UnsuitableCheckpoint, Unsupported
from spark_cec.ids import StoreId
from spark_cec.log.meta import CommitMeta
from spark_cec.log.output_rollbacks import Cut
from spark_cec.recovery.query_files import FALLBACK, Fallback
from spark_cec.recovery.spark_logs import batch_before_strays, find_strays
from spark_cec.settings import PROVIDER, PROVIDER_KEY, WriteAt

HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

STATE_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@dataclass(frozen=True, slots=True)
class QueryFacts:
    """A query that starts.

    `provider`: this session's provider is ours. `stateful`: the query has state. `planned`: the query has planned a
    batch. `recorded_provider`: the provider of the newest planned batch, None if Spark did not record it.
    `transform_with_state`: it has such an operator. `speculation`: Spark may run a second copy of a task.
    """

    provider: bool
    stateful: bool
    planned: bool = False
    recorded_provider: str | None = None
    transform_with_state: bool = False
    speculation: bool = False


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """Whether the commits of a stateful operator are deferred, and the reason. `kind` is in words."""

    operator: int
    kind: str
    deferred: bool
    reason: str


@dataclass(frozen=True, slots=True)
class QueryDecision:
    """The decision for a query. `provider`: the query has state, and its provider is ours."""

    mode: str
    reason: str
    provider: bool
    operators: tuple[OperatorDecision, ...]


def refuse_provider(query: QueryFacts, checkpoint: str) -> None:
    """Refuses a query whose checkpoint at that URL began with another provider, or whose operators we cannot run.

    Raises `UnsuitableCheckpoint`, or `Unsupported` for transformWithState.
    """
    if not query.stateful:
        return
    recorded = query.recorded_provider
    if query.provider and recorded not in (None, PROVIDER):
        raise UnsuitableCheckpoint(
            f"the checkpoint {checkpoint} was begun with the state store provider {recorded}, and Spark goes on with "
            f"that one: `cec import` makes a checkpoint with the same state for {PROVIDER}; or start a new checkpoint, "
            f"or set {PROVIDER_KEY}={recorded}"
        )
    if query.provider and recorded is None and query.planned:
        raise UnsuitableCheckpoint(
            f"the checkpoint {checkpoint} was begun by an old release of Spark, which recorded no state store provider "
            f"in it: its state is that of another provider. Start a new checkpoint to use {PROVIDER}, or set "
            f"{PROVIDER_KEY} to the provider that it was begun with (by default {HDFS_BACKED})"
        )
    if not query.provider and recorded == PROVIDER:
        raise UnsuitableCheckpoint(
            f"the checkpoint {checkpoint} was begun with {PROVIDER}, and its state is in a Spark CEC log: set "
            f"{PROVIDER_KEY}={PROVIDER}; `cec export` makes a checkpoint with the same state for another provider; or "
            f"start a new checkpoint"
        )
    if query.provider and query.transform_with_state:
        raise Unsupported(
            "transformWithState cannot run on Spark CEC: Spark 4.3 ties it to RocksDBStateStoreProvider by name. Use "
            "flatMapGroupsWithState or applyInPandasWithState, or that provider for this query"
        )


def refuse_under_protocol(query: QueryFacts, flow: str) -> None:
    """Raises `Unsupported` for a flow under a protocol that keeps its state with another provider.

    The protocol's checkpoints would lack that state. Also raises it under speculation. A speculative copy of a task
    asks for state that only the first task has, in memory, and makes the first task take it back.
    """
    if query.stateful and not query.provider:
        raise Unsupported(
            f"flow {flow} has its state with another provider, and takes part in a checkpointing protocol, which can "
            f"take back what is in a Spark CEC log alone: leave {PROVIDER_KEY} out of its conf"
        )
    if query.stateful and query.speculation:
        raise Unsupported(
            f"flow {flow} has state, and takes part in a checkpointing protocol, whose stores write at checkpoints "
            "alone: a speculative copy of a task would need what only the first one has. Turn spark.speculation off"
        )


class SinkKind(str, Enum):
    """How a query's sink ends a batch: by itself, after the stores have written, or so with its rows in the log."""

    FREE = "free"
    WAITS = "waits"
    LOG = "log"


def choose_write_at(asked: WriteAt | None, decision: QueryDecision, sink: SinkKind, *, appends: bool) -> WriteAt:
    """When the stores of an executor write their commits.

    Together: until then a commit is in its executor alone. So the driver makes them write before the sink's commit, and
    fails the batch if an executor is gone. `appends`: the log's storage can append, so that a write of its own costs a
    task little. A query with a deferred operator fails in any case when an executor is gone.

    While Spark commits: a crash may lose the newest version, and a start makes it again by a replay. So every operator
    must be deferred: a replay of another one might make another state. Rows of a batch must be durable before Spark
    commits it, so a sink in the log does not allow that.
    """
    if not decision.provider or sink is SinkKind.FREE:
        return WriteAt.TASK
    if asked is WriteAt.ASYNC and (sink is SinkKind.LOG or not all(each.deferred for each in decision.operators)):
        return WriteAt.BATCH
    if asked is not None:
        return asked
    return WriteAt.BATCH if not appends and any(each.deferred for each in decision.operators) else WriteAt.TASK


@dataclass(frozen=True, slots=True)
class LogFacts:
    """A query's log at a start.

    `home`: where this start looks for the log. `recorded_home` and `recorded_id`: the log in `query.json`, None without
    that file. `found_id`: the id of the log at `home`, None without a log. `is_inside`: `home` is in the checkpoint.
    `was_begun`: a run of this checkpoint has begun the log at `home`; only read if `query.json` records another home.
    `committed`: V. `must_have_log`: the query has state of ours, or one of our runs has committed a batch; only read if
    there is no log at `home`.
    """

    checkpoint: str
    home: str
    recorded_home: str | None
    recorded_id: str | None
    found_id: str | None
    is_inside: bool
    was_begun: bool
    committed: int
    must_have_log: bool


def refuse_log(facts: LogFacts) -> None:
    """Refuses a start whose log has moved, is another query's, or is gone. Raises `UnsuitableCheckpoint`.

    If a query has committed nothing, its log may move, also to a home where an earlier run of it has begun one.
    """
    has_moved = facts.recorded_home not in (None, facts.home)
    if has_moved and facts.committed >= 0 and facts.found_id != facts.recorded_id:
        raise UnsuitableCheckpoint(
            f"the log of {facts.checkpoint} is at {facts.recorded_home}, but this query's settings place it at "
            f"{facts.home}: give back the sink's `path` and cec.log.path as they were; or, if this checkpoint was "
            "moved (under log.path each has a directory by its own path), move the log's directory there too, or give "
            "the path that it had, if that is a link"
        )
    # A log inside the checkpoint belongs to it, even if `query.json` is lost.
    is_own = facts.recorded_home != facts.home and (facts.is_inside or facts.was_begun)
    known = facts.found_id if is_own else facts.recorded_id
    if facts.found_id is not None and known != facts.found_id:
        raise UnsuitableCheckpoint(
            f"{facts.home} holds the log of another query (id {facts.found_id}): give this query a log location of its "
            f"own, or start it from the checkpoint that the log belongs to"
        )
    if facts.found_id is None and facts.committed >= 0 and facts.must_have_log:
        other = "" if facts.recorded_home is not None else ", or it holds state of another provider"
        raise UnsuitableCheckpoint(
            f"the checkpoint {facts.checkpoint} has committed batches but no Spark CEC log at {facts.home}: its log is "
            f"gone{other}. Restore the log, or start a new checkpoint"
        )


def choose_base(fallback: Fallback | None, is_done: bool, committed: int) -> int:
    """The version from which the stores begin at a start after V: that of the fallback if it must be carried out.

    A fallback is done if a later run has written every store whole at V+1. Until then every start repeats it.
    """
    is_due = fallback is not None and not is_done and committed == fallback.committed_batch
    return fallback.version if is_due and fallback is not None else committed + 1


def lacks_newest(stores: Iterable[StoreFacts]) -> bool:
    """Whether the log lacks the version that Spark has committed last, of some store. `stores`: at that version."""
    return any(each.damage is not None for each in stores)


def refuse_foreign_fallback(fallback: Fallback | None, is_done: bool, committed: int) -> None:
    """Raises `UnsuitableCheckpoint` if Spark's commit log ends before the batch of a fallback that is not done."""
    if fallback is not None and not is_done and committed < fallback.committed_batch:
        raise UnsuitableCheckpoint(
            f"cec/{FALLBACK.name} is for a checkpoint that ends at batch {fallback.committed_batch}, and this one ends "
            f"at {committed}: it was restored from a copy; delete cec/{FALLBACK.name} and run `cec repair` again"
        )


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """A store in the log at the version from which the query begins.

    `head`: the newest attempt that may be the committed one. `dirty_from`: the lowest D of that run's attempts,
    because a task may load any of them. `damage` replaces both if the log lacks the version.
    """

    store: StoreId
    head: CommitMeta | None
    dirty_from: int
    damage: DamagedLog | None = None


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """V, T, the version from which the stores begin, and each store's footer at that version.

    `base` is V+1. If a lost frame made the query fall back, `base` is an older version w (`recovery.fallback`). If a
    crash came before the stores had written V+1 (`WriteAt.ASYNC`), `base` is V.
    """

    committed_batch: int
    rewound_to: int
    base: int
    stores: tuple[StoreId, ...]
    heads: tuple[CommitMeta, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RecoveryPlan:
        """The inverse of `to_json`; ignores unknown fields."""
        stores = (StoreId(int(operator), int(partition), str(name)) for operator, partition, name in raw["stores"])
        heads = (CommitMeta.decode(bytes.fromhex(head)) for head in raw["heads"])
        committed, rewound_to, base = (int(raw[name]) for name in ("committed_batch", "rewound_to", "base"))
        return cls(committed, rewound_to, base, tuple(stores), tuple(heads))

    def to_json(self) -> dict[str, Any]:
        """The whole plan, so that another agent can use it after a restart. Footers are in hex, as the log has them."""
        return {
            "committed_batch": self.committed_batch,
            "rewound_to": self.rewound_to,
            "base": self.base,
            "stores": [[each.operator, each.partition, each.name] for each in self.stores],
            "heads": [head.encode().hex() for head in self.heads],
        }

    @property
    def replayed_batches(self) -> int:
        """The number of committed batches that run again: V - T."""
        return self.committed_batch - self.rewound_to


def plan_replay(committed: int, base: int, stores: Sequence[StoreFacts]) -> RecoveryPlan:
    """The plan of a recovery after batch `committed` (-1: none), with every store loaded at version `base`.

    T is the batch before the lowest D. Raises the first store's `DamagedLog` if Spark committed the batch but the log
    lacks the store's version.
    """
    if committed < 0:
        return nothing_to_replay(committed)
    for each in stores if base else ():
        if each.damage is not None:
            raise each.damage
    heads = [each for each in stores if each.head is not None] if base else []
    rewound_to = min((each.dirty_from for each in heads), default=base) - 1
    names = tuple(each.store for each in stores)
    return RecoveryPlan(committed, rewound_to, base, names, tuple(each.head for each in heads if each.head is not None))


def nothing_to_replay(committed: int) -> RecoveryPlan:
    """The plan of a query that continues after batch `committed` (-1: none) and has no store."""
    return RecoveryPlan(committed, committed, committed + 1, (), ())


@dataclass(frozen=True, slots=True)
class StartFacts:
    """All that decides where a query continues.

    `checkpoint` and `home`: URLs of the checkpoint and the log. `committed`: V. `newest_run`: the checkpoint's newest
    run. `lacks_commit`: Spark names state by checkpoint ids, and the entry of V is gone. `unfinished_rewind`: the batch
    that release 0.1 was recovering, None if it finished. `planned`: the batches in Spark's offset log. `cuts`: the
    rollbacks in the log. `latest`: each store's frames of versions above V+1, or of its newest version if there are
    none. `ahead`: each store's newest commit above version V+2 that no rollback took back. `published`: the batches
    with output, ascending. `base`: the version from which the stores begin. `stores`: at that version. `fallback`: the
    note of `cec repair`, None without one. `fallback_is_done`: a later run has carried it out. `was_unwritten`: a crash
    came before all stores had written V+1, so `base` is V.
    """

    checkpoint: str
    home: str
    committed: int
    newest_run: int
    lacks_commit: bool
    unfinished_rewind: int | None
    planned: Collection[int]
    cuts: Sequence[Cut]
    latest: Sequence[CommitMeta]
    ahead: Sequence[CommitMeta]
    published: Sequence[int]
    base: int
    stores: Sequence[StoreFacts]
    fallback: Fallback | None = None
    fallback_is_done: bool = False
    was_unwritten: bool = False


@dataclass(frozen=True, slots=True)
class StartOrders:
    """What a start does: it carries out `plan`, and `forgets_fallback`: it deletes the note of a finished fallback.

    `makes_newest`: the replay makes the version that the log lacks.
    """

    plan: RecoveryPlan
    forgets_fallback: bool = False
    makes_newest: bool = False


def decide_start(facts: StartFacts) -> StartOrders:
    """The orders of a start that can continue the query exactly; raises for any other start.

    Raises `UnsuitableCheckpoint` if the checkpoint and the log do not belong to one moment, and `DamagedLog` if a store
    lacks its version.
    """
    if facts.lacks_commit:
        raise _lost_commit(facts.checkpoint, facts.committed)
    refuse_unfinished_rewind(facts.unfinished_rewind, facts.committed)
    refuse_later_history(facts.latest, facts.cuts, facts.committed, facts.newest_run)
    refuse_later_batches(facts.ahead, facts.checkpoint, facts.committed)
    refuse_foreign_fallback(facts.fallback, facts.fallback_is_done, facts.committed)
    _refuse_later_output(facts)
    plan = plan_replay(facts.committed, facts.base, facts.stores)
    refuse_forgotten_batches(facts.checkpoint, facts.planned, plan)
    note = facts.fallback
    forgets = note is not None and (facts.fallback_is_done or note.committed_batch < facts.committed)
    return StartOrders(plan, forgets, facts.was_unwritten)


def _lost_commit(checkpoint: str, committed: int) -> UnsuitableCheckpoint:
    return UnsuitableCheckpoint(
        f"{checkpoint}/commits/{committed} is gone, and with it the ids by which Spark names the state of "
        f"batch {committed} ({STATE_IDS} is 2): restore it, or the checkpoint whole with its log, from a copy; or "
        f"go back to an earlier batch with `cec rollback {checkpoint} --to BATCH`"
    )


def refuse_unfinished_rewind(was_committed: int | None, committed: int) -> None:
    """Refuses a checkpoint whose Spark logs release 0.1 has cut for a recovery of batch `was_committed`.

    `committed`: V. Once V is that batch again, the recovery is finished.
    """
    if was_committed is not None and committed < was_committed:
        raise UnsuitableCheckpoint(
            f"release 0.1 has cut Spark's logs for a recovery of batch {was_committed} that it did not finish: start "
            f"the query with that release until it has committed batch {was_committed}, and change to this one then"
        )


def refuse_later_history(latest: Iterable[CommitMeta], cuts: Iterable[Cut], committed: int, newest_run: int) -> None:
    """Refuses a log that has frames or a rollback by a run that the checkpoint does not know.

    Then the checkpoint, which ends at batch `committed`, is an older copy that was restored without its log. The query
    would reuse run and version numbers. It could take commits of the abandoned history for its own.
    """
    runs = [(cut.generation, f"was cut after batch {cut.after} by run {cut.generation}") for cut in cuts]
    runs += [
        (meta.generation, f"has version {meta.version} of store {meta.store} by run {meta.generation}")
        for meta in latest
    ]
    newest, what = max(runs, default=(0, ""))
    if newest > newest_run:
        raise UnsuitableCheckpoint(
            f"the log is ahead of the checkpoint: it {what}, but the checkpoint ends at batch {committed} and run "
            f"{newest_run}; restore both from one copy, or start a new checkpoint with a log of its own"
        )


def refuse_stray_commits(checkpoint: str, planned: Collection[int], committed: Collection[int]) -> None:
    """Refuses a checkpoint whose commit log goes beyond its offset log, at a start or if it is carried elsewhere.

    Spark would run the newest planned batch again, though it is committed, and fail at each start at a commit that is
    there.
    """
    strays = find_strays(planned, committed)
    if strays:
        there = f"the newest batch in offsets is {max(planned)}" if planned else "offsets has none"
        raise UnsuitableCheckpoint(
            f"the commits of {checkpoint} are ahead of its offsets: commits/{strays[-1]} is there, but {there}. A run "
            f"that was cut off wrote it late, or entries of offsets are gone. "
            f"{way_back(checkpoint, batch_before_strays(planned, committed))}; or restore the checkpoint whole"
        )


def refuse_later_batches(ahead: Iterable[CommitMeta], checkpoint: str, committed: int) -> None:
    """Refuses a log with more batches than a crash after batch `committed` can leave.

    Then a person or a power loss has deleted the newest entries of Spark's logs.
    """
    first = next(iter(ahead), None)
    if first is not None:
        raise UnsuitableCheckpoint(
            f"the log is ahead of the checkpoint: store {first.store} has version {first.version}, of batch "
            f"{first.version - 1}, but the checkpoint ends at batch {committed}: entries of its offsets and "
            f"commits are gone. {way_back(checkpoint, committed)}; or restore these entries, or the checkpoint "
            "with its log from one copy"
        )


def _refuse_later_output(facts: StartFacts) -> None:
    """Refuses output of a batch that Spark never ran: it would hide the rows of the query's next run."""
    if facts.published and facts.published[-1] > facts.committed + 1:
        raise UnsuitableCheckpoint(
            f"{facts.home} holds output of batch {facts.published[-1]}, but the checkpoint ends at batch "
            f"{facts.committed}: entries of its offsets and commits are gone. "
            f"{way_back(facts.checkpoint, facts.committed)}; or restore the checkpoint whole"
        )


def refuse_forgotten_batches(checkpoint: str, planned: Collection[int], plan: RecoveryPlan) -> None:
    """Refuses a replay of batches that Spark's offset log no longer has."""
    if not plan.replayed_batches:
        return
    # The batch before the first one counts too, because the first batch begins at its end.
    wanted = range(max(plan.rewound_to, 0), plan.committed_batch + 1)
    forgotten = sorted(set(wanted) - set(planned))
    if forgotten:
        raise UnsuitableCheckpoint(
            f"Spark's offset log in {checkpoint} no longer has batch {forgotten[0]}, but the recovery of batch "
            f"{plan.committed_batch} replays from batch {plan.rewound_to + 1}: restore the checkpoint whole from a copy"
        )


def way_back(checkpoint: str, batch: int) -> str:
    """Tells the user what to do if entries of Spark's logs after `batch` were deleted."""
    if batch < 0:
        return "To begin anew, give the query a new checkpoint, with a log of its own"
    return f"To go back to batch {batch}, run `cec rollback {checkpoint.rstrip('/')} --to {batch}`"
