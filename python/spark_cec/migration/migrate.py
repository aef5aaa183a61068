"""Migrates a query's state from one checkpoint to a new one beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from spark_cec.adapters.fsspec_storage import is_taken, open_storage, remove_all
from spark_cec.admin.fall_back import keep_runs_out, refuse_other_history, replay_due
from spark_cec.admin.find_log import OWN_DIRECTORY, Place, find_log
from spark_cec.agent.logs import cec_directory, home_of
from spark_cec.agent.owner import claim_log
from spark_cec.errors import Fenced, LogLocationError, LostLog, NoLogYet, UnsuitableCheckpoint
from spark_cec.log.home import relative_home
from spark_cec.log.manifest import batches as published_batches
from spark_cec.migration.checkpoint import (
    COMMITTED,
    PARTITIONS_KEY,
    PLANNED,
    Found,
    batches,
    copy_all_but_state,
    finish,
    inspect_checkpoint,
    lost_partitions,
    record_state_ids,
    running,
    taken,
)
from spark_cec.migration.files import HadoopFiles
from spark_cec.migration.rewrite import (
    FORMAT_WITH_IDS,
    FORMAT_WITHOUT_IDS,
    StateAt,
    StateRewriter,
    Store,
    StoreSums,
    Written,
    collect_ids,
    refuse_unknown_stores,
)
from spark_cec.recovery.decide import HDFS_BACKED
from spark_cec.recovery.migrated_away import refuse_migrated_query
from spark_cec.recovery.query_files import LEFT, mark_migrated, save_carried
from spark_cec.recovery.query_runs import begin_run
from spark_cec.recovery.rollback import refuse_during_rollback
from spark_cec.recovery.unfinished_copy import METADATA, UNFINISHED, refuse_unfinished_metadata
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY, parse_settings
from spark_cec.version import __version__

_BY_WHOLE_KEY = "spark.sql.streaming.statefulOperator.useStrictDistribution"
_LOOK_EVERY_S = 0.5
_TASKS_END_WITHIN_S = 30.0
_WHY = "its state was carried here by `cec`; nothing has run yet"


@dataclass(frozen=True, slots=True)
class Request:
    """The source, the target and the form of a migration.

    `provider`: the class of the target's state store provider. `partitions`: the target's number, None for the
    source's. `quiet_s`: the seconds without a write after which a query on Spark's own providers counts as stopped.
    """

    source: str
    target: str
    provider: str
    partitions: int | None = None
    quiet_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result: the old checkpoint, and each store as read back from the new one."""

    found: Found
    stores: tuple[StoreSums, ...]
    seconds: float


def migrate_state(spark: SparkSession, request: Request, say: Callable[[str], None]) -> Migrated:
    """Creates the new checkpoint; calls `say` with each step.

    1. Inspect the source, and refuse a state that cannot be migrated.
    2. Make sure that no query writes the source: by its lease, or by a wait for writes. Then claim the target, which
       another process may have taken meanwhile.
    3. Copy Spark's logs and schemas, with the new settings, to a checkpoint that cannot be started yet.
    4. Create the log, if our provider gets the state.
    5. Rewrite the state.
    6. Read the state back: every store must have the same rows.
    7. Check that the source has not changed, and complete the copy.

    Raises `UnsuitableCheckpoint`, `LogLocationError` or `Fenced` with the remedy, and removes the unfinished target.
    """
    started = time.monotonic()
    source, target = _open_files(spark, request.source), _open_files(spark, request.target)
    for files in (source, target):
        if not files.is_readable:
            raise LogLocationError(
                files.root, "Spark's reader of state does not find a name with spaces, % and the like: give one without"
            )
    _refuse_unfinished_source(source)
    found, ends = _refuse_pointless(request, inspect_checkpoint(source)), _read_ends(source)  # 1
    home = home_of(target.url, parse_settings(_read_cec_conf(spark)), None) if request.provider == PROVIDER else None
    _refuse_taken_place(source, target, home)
    here = _state_at(source, found, found.provider, found.partitions)
    there = _state_at(target, found, request.provider, request.partitions or found.partitions)
    rewriter = StateRewriter(spark, here, there, found.batch)
    every = rewriter.stores()
    refuse_unknown_stores(every)
    _refuse_lost_partitions(source, found, every, rewriter)
    is_ours = found.provider == PROVIDER
    claimed = _claim_places(spark, source, target, home, is_ours=is_ours)
    with _hold_source(source, found, request.quiet_s, say) as confirm, claimed:  # 2
        conf = _make_conf(request)
        say("copying the logs of the query")
        copy_all_but_state(source, target, found, conf)  # 3
        if home is not None:
            _begin_log(spark, target.url, home)  # 4
            save_carried(cec_directory(target.url), found.batch + 1)
        written = []
        for store in every:
            say(f"rewriting operator {store.operator} ({store.description}), store {store.name}")
            written.append(rewriter.write(store, {**found.conf, **conf}))  # 5
            _refuse_other_places(source, found, written[-1])
        if found.has_ids:
            record_state_ids(target, found.batch, collect_ids(written))
        stores = tuple(each.sums for each in written)
        for wanted in stores:
            about = f"operator {wanted.store.operator} ({wanted.store.description})"
            say(f"reading back {about}, store {wanted.store.name}")
            _refuse_difference(wanted, rewriter.read_back(wanted.store))  # 6
        if _read_ends(source) != ends:  # 7
            raise UnsuitableCheckpoint(f"the query of {source.root} runs: it has gone on meanwhile. Stop it first")
        confirm()
        _complete(source, target, is_ours=is_ours)
    return Migrated(found, stores, time.monotonic() - started)


def _refuse_unfinished_source(source: HadoopFiles) -> None:
    if source.exists(METADATA):
        refuse_unfinished_metadata(source.root, source.read(METADATA))


def _complete(source: HadoopFiles, target: HadoopFiles, *, is_ours: bool) -> None:
    """Completes the copy. If the source's state `is_ours`, its query cannot start any more."""
    metadata = source.read(METADATA)
    if is_ours:
        mark_migrated(cec_directory(source.url), target.root)
    finish(target, metadata)


def _make_conf(request: Request) -> dict[str, str]:
    """The settings that the new checkpoint records. A query whose rows move must look for them by the whole key."""
    conf = {PROVIDER_KEY: request.provider}
    if request.partitions is not None:
        conf |= {PARTITIONS_KEY: str(request.partitions), _BY_WHOLE_KEY: "true"}
    return conf


def _state_at(files: HadoopFiles, found: Found, provider: str, partitions: int) -> StateAt:
    """The state as the provider has it: the format follows the source, but the HDFS-backed provider has no ids."""
    has_ids = found.has_ids and provider != HDFS_BACKED
    return StateAt(files.url, FORMAT_WITH_IDS if has_ids else FORMAT_WITHOUT_IDS, partitions)


def _open_files(spark: SparkSession, path: str) -> HadoopFiles:
    jvm, conf = spark.sparkContext._jvm, spark._jsparkSession.sessionState().newHadoopConf()
    return HadoopFiles(jvm, conf, path)


def _refuse_pointless(request: Request, found: Found) -> Found:
    if request.partitions is None and found.provider == request.provider:
        raise UnsuitableCheckpoint(f"the state of {request.source} is that of {found.provider} already")
    if request.partitions is not None and request.partitions == found.partitions:
        raise UnsuitableCheckpoint(f"the query of {request.source} has {found.partitions} partitions already")
    return found


def _refuse_taken_place(source: HadoopFiles, target: HadoopFiles, home: str | None) -> None:
    if target.exists(""):
        raise taken(target.root)
    if home is not None and is_taken(home):
        raise LogLocationError(home, "there is something already: remove it, or give another place for the checkpoint")
    if f"{target.real}/".startswith(f"{source.real}/"):
        raise UnsuitableCheckpoint(f"--to {target.root} is within the checkpoint that is carried: give one beside it")


def _refuse_lost_partitions(source: HadoopFiles, found: Found, every: Iterable[Store], rewriter: StateRewriter) -> None:
    for store in every:
        if store.operator in found.alone and rewriter.has_keys(store):
            raise lost_partitions(source.root, store.operator, range(1, found.partitions))


@contextmanager
def _hold_source(
    source: HadoopFiles, found: Found, quiet_s: float, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Yields a function to call before the last write: it raises `Fenced` if a run has begun meanwhile."""
    if found.provider != PROVIDER:
        _watch_source(source, quiet_s, say)
        if source.exists(OWN_DIRECTORY):  # else it has no log: it never had our sink
            refuse_during_rollback(cec_directory(source.url))
            with suppress(NoLogYet, LostLog):  # no reader can have a batch of a lost log
                _refuse_published_batch(source, found, find_log(source.url))
        yield lambda: None
        return
    own, place = cec_directory(source.url), find_log(source.url)
    with ExitStack() as held:
        try:
            confirm = held.enter_context(keep_runs_out(place))
        except Fenced as error:
            raise running(source.root) from error
        refuse_migrated_query(own)
        refuse_during_rollback(own)
        refuse_other_history(place)
        _refuse_published_batch(source, found, place)
        _refuse_due_replay(source, place)
        yield confirm


def _refuse_published_batch(source: HadoopFiles, found: Found, place: Place) -> None:
    """Refuses a batch after V in the log of our sink: the new checkpoint would run it again, into a log of its own."""
    later = [batch for batch in published_batches(place.storage) if batch > found.batch]
    if later:
        raise UnsuitableCheckpoint(
            f"the query of {source.root} has published batch {later[0]} of its output, which Spark has not committed, "
            f"and the new checkpoint would publish it again: start the query once more and stop it"
        )


def _refuse_due_replay(source: HadoopFiles, place: Place) -> None:
    due = replay_due(place)
    if due is not None:
        raise UnsuitableCheckpoint(
            f"the state of {source.root} is not in its log alone, as after a crash: a replay of batches {due[0]} to "
            f"{due[1]} is due. Bring its query back: start it once more and stop it"
        )


def _watch_source(source: HadoopFiles, quiet_s: float, say: Callable[[str], None]) -> None:
    """Waits, and refuses the source if its query writes a batch: Spark's own providers leave no other sign of a run."""
    before, newest = _read_ends(source), source.newest_ms((PLANNED, COMMITTED))
    left = quiet_s - max(time.time() - newest / 1000, 0.0)  # another machine's clock may be ahead
    until = time.monotonic() + left
    while time.monotonic() < until:
        say(f"looking for {until - time.monotonic():.0f} s more whether its query has really stopped")
        time.sleep(_LOOK_EVERY_S)
        if _read_ends(source) != before:
            raise UnsuitableCheckpoint(f"the query of {source.root} runs: it has just written a batch. Stop it first")


def _read_ends(files: HadoopFiles) -> tuple[int, int]:
    """The newest commit, and the newest planned batch."""
    return max(batches(files, COMMITTED), default=-1), max(batches(files, PLANNED), default=-1)


@contextmanager
def _claim_places(
    spark: SparkSession, source: HadoopFiles, target: HadoopFiles, home: str | None, *, is_ours: bool
) -> Iterator[None]:
    """Claims target and log; after a failure, removes both as soon as no task writes there.

    If the source's state `is_ours`, it then has no mark that it was carried.
    """
    _refuse_taken_place(source, target, home)
    if not target.claim(METADATA, UNFINISHED):
        raise taken(target.root)
    try:
        yield
    except BaseException:
        # Else the unfinished copy stays, which no query can start.
        if _end_tasks(spark):
            if home is not None:
                remove_all(home)
            target.remove(last=METADATA)
            if is_ours:  # now its query goes on nowhere else
                LEFT.delete(cec_directory(source.url))
        raise


def _end_tasks(spark: SparkSession) -> bool:
    spark.sparkContext.cancelAllJobs()
    jvm_context: Any = spark.sparkContext._jsc.sc()
    until = time.monotonic() + _TASKS_END_WITHIN_S
    while time.monotonic() < until:
        if not sum(int(each.numRunningTasks()) for each in jvm_context.statusTracker().getExecutorInfos()):
            return True
        time.sleep(_LOOK_EVERY_S)
    return False


def _begin_log(spark: SparkSession, checkpoint: str, home: str) -> None:
    """Creates the log as a query's start does."""
    decision = {"mode": "eager", "reason": _WHY, "provider": True, "operators": []}
    own, log, log_home = cec_directory(checkpoint), open_storage(home), relative_home(checkpoint, home)
    log.probe_writable()
    begin_run(open_storage(checkpoint), own, log, log_home, _read_cec_conf(spark), decision, __version__, None)
    claim_log(checkpoint, home)


def _read_cec_conf(spark: SparkSession) -> Mapping[str, str]:
    return {key: value for key, value in spark.conf.getAll.items() if key.startswith(PREFIX)}


def _refuse_other_places(source: HadoopFiles, found: Found, written: Written) -> None:
    """Refuses rows that the query places by a part of their key, as a query from before Spark 3.3 may do."""
    store = written.sums.store
    if written.misplaced:
        raise UnsuitableCheckpoint(
            f"operator {store.operator} ({store.description}) of {source.root} has {written.misplaced:,} of "
            f"{written.sums.rows:,} rows in another partition than the hash of their whole key says, as a query from "
            f"before Spark 3.3 may have: keep its {found.partitions} partitions"
        )


def _refuse_difference(wanted: StoreSums, found: StoreSums) -> None:
    if wanted != found:
        raise UnsuitableCheckpoint(
            f"store {wanted.store.name} of operator {wanted.store.operator} came out with {found.rows:,} rows (hash "
            f"{found.digest}) where there were {wanted.rows:,} (hash {wanted.digest})"
            f": nothing was made; please report this"
        )
