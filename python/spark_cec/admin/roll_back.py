"""Plans and runs `cec rollback`: a stopped query goes back to the end of an earlier batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.committed import list_stores
from spark_cec.admin.fall_back import keep_runs_out
from spark_cec.admin.find_log import OWN_DIRECTORY, Place, open_to_read
from spark_cec.admin.state import open_catalog
from spark_cec.agent.lease import has_leases, is_held
from spark_cec.agent.owner import refuse_log_of_another
from spark_cec.errors import DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.index import Index
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.readers import newest_reads
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import CommittedAttempts, newest_allowed
from spark_cec.recovery.decide import (
    RecoveryPlan,
    choose_base,
    refuse_forgotten_batches,
    refuse_later_history,
    refuse_unfinished_rewind,
)
from spark_cec.recovery.facts import is_fallback_done, read_latest, read_plan
from spark_cec.recovery.fallback import Loss, make_probe
from spark_cec.recovery.file_sources import files_behind
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.migrated_away import refuse_migrated_query
from spark_cec.recovery.query_files import FALLBACK, REWIND, ROLLBACK, is_under_protocol, read_carried
from spark_cec.recovery.replay_input import ReplayInput, read_replay_input
from spark_cec.recovery.rollback import has_whole_batch, is_at_batch, pending_rollback, roll_back
from spark_cec.recovery.spark_logs import batch_before_strays, list_logs, planned_batches, stores_without_version


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Callbacks for the progress of the read: the number of stores, and each finished store."""

    stores_begin: Callable[[int], None]
    store_done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Output of the `cec` sink after the target batch: batches `first` to `last`, with `rows` rows."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class WayBack:
    """The plan and the costs of a rollback to the end of batch `to`.

    `newest`: the last batch that left any trace. `stores`: stores that are whole in the log at version `to` + 1. `plan`
    and `inputs`: the replay of the next start; `replay_input`: its input. `readers`: streams that have read the output
    that is taken back, and the last batch that each has read. `gone`: missing input files of the batches behind `to`.
    `begun`: an earlier attempt was interrupted. `locks`: a run of the query has a lock, which tells that it is alive.
    """

    place: Place
    to: int
    newest: int
    stores: int
    plan: RecoveryPlan
    inputs: int
    replay_input: ReplayInput
    output: TakenBack | None
    readers: dict[str, int]
    gone: tuple[str, ...]
    begun: bool
    locks: bool


@contextmanager
def while_stopped(place: Place, *, dry_run: bool) -> Iterator[Callable[[], None]]:
    """Keeps runs out, as `keep_runs_out`. A dry run leaves no trace, so it only looks whether a run is alive."""
    if not dry_run:
        with keep_runs_out(place) as confirm:
            yield confirm
        return
    if place.checkpoint is not None and is_held(_own_storage(place.checkpoint)):
        raise Fenced(f"the query with checkpoint {place.checkpoint.url} is running: stop that run first")
    if place.checkpoint is not None:
        refuse_log_of_another(place.checkpoint.url, place.home)
    yield lambda: None


def find_way_back(place: Place, batch: int, progress: ReadProgress) -> WayBack | None:
    """Checks whether the query can go back to the end of `batch`, and at which cost; None if it is there already.

    Writes nothing. Errors: `UnsuitableCheckpoint` if it cannot, with the nearest possible batch. `DamagedLog` if the
    log has lost state of that batch.
    """
    checkpoint = _refuse_unsuitable(place)
    own, cuts = _own_storage(checkpoint), read_cuts(place.storage).known
    pending = pending_rollback(own)
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    index, committed = catalog.index, batch_before_strays(*list_logs(checkpoint))
    refuse_unfinished_rewind(REWIND.read(own), committed)
    refuse_later_history(read_latest(index, committed), cuts, committed, newest_generation(own))
    newest = _find_newest_batch(place, checkpoint, index)
    if pending is not None and pending.batch != batch:
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} is being taken back to the end of batch {pending.batch}, which was not finished: finish "
            f"that first, with `cec rollback {checkpoint.url} --to {pending.batch}`"
        )
    if pending is None and batch > committed:
        raise UnsuitableCheckpoint(f"{checkpoint.url} ends at batch {committed}: give a batch before that")
    if not own.exists(ROLLBACK.name) and newest <= batch and is_at_batch(checkpoint, place.storage, batch):
        return None
    plan = _require_plan(place, checkpoint, index, batch)
    _refuse_lost_state(place, index, plan, progress)
    gone_in_replay, gone = _find_gone_files(checkpoint, plan)
    if gone_in_replay:
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} cannot be taken back to batch {batch}: its next start would replay batches "
            f"{plan.rewound_to + 1} to {batch}, which have read {_name_files(gone_in_replay)}: restore that, or choose "
            f"another batch"
        )
    return WayBack(
        place=place,
        to=batch,
        newest=newest,
        stores=len(plan.stores),
        plan=plan,
        inputs=_count_inputs(index, _read_attempts(place, checkpoint, batch), plan),
        replay_input=read_replay_input(checkpoint, plan.rewound_to + 1, batch),
        output=_find_output_behind(place.storage, batch),
        readers={name: read for name, read in sorted(newest_reads(place.storage).items()) if read > batch},
        gone=tuple(gone),
        begun=pending is not None,
        locks=has_leases(own) and place.is_ours,
    )


def go_back(way: WayBack) -> int:
    """Rolls the query back, and returns the run number that owns later versions; the caller keeps runs out."""
    checkpoint = way.place.checkpoint
    assert checkpoint is not None, "a way back is that of a checkpoint"
    writable = open_storage(checkpoint.url)
    done = roll_back(writable, open_storage(_own_url(checkpoint)), open_storage(way.place.home), way.to, anew=True)
    assert done is not None, "it was not there"
    return done.generation


def _refuse_unsuitable(place: Place) -> Storage:
    """The checkpoint of a query that may go back; raises `UnsuitableCheckpoint` for another place."""
    if place.checkpoint is None or place.query is None:
        raise UnsuitableCheckpoint(f"{place.home} is not the checkpoint of a query on Spark CEC: give that")
    if is_under_protocol(place.query):
        raise UnsuitableCheckpoint(
            f"{place.checkpoint.url} is a flow under a checkpointing protocol: it goes back with the other flows, to a "
            "line, when its pipeline starts after a failure"
        )
    refuse_migrated_query(_own_storage(place.checkpoint))
    if place.damage is not None:
        raise place.damage
    return place.checkpoint


def _find_newest_batch(place: Place, checkpoint: Storage, index: Index) -> int:
    """The last batch in Spark's logs, the log or its output that counts."""
    planned, committed = list_logs(checkpoint)
    allows = _read_attempts(place, checkpoint, batch_before_strays(planned, committed)).allows_read
    heads = [newest_allowed(index, store, allows) for store in index.stores()]
    known = [head.meta.version - 1 for head in heads if head is not None]
    return max([*known, *planned, *committed, *manifest.batches(place.storage)], default=-1)


def _require_plan(place: Place, checkpoint: Storage, index: Index, batch: int) -> RecoveryPlan:
    """The plan of the next start after a rollback; `UnsuitableCheckpoint`, with the nearest possible batch, without
    one.
    """
    plan, why = _try_plan(place, checkpoint, index, batch)
    if plan is not None:
        return plan
    later = [each for each in sorted(planned_batches(checkpoint)) if each > batch]
    nearest = next((each for each in later if _try_plan(place, checkpoint, index, each)[0] is not None), None)
    there = f"the nearest batch that it can go back to is {nearest}" if nearest is not None else "nor to a later one"
    raise UnsuitableCheckpoint(f"{checkpoint.url} cannot be taken back to batch {batch}: {why}; {there}")


def _try_plan(place: Place, checkpoint: Storage, index: Index, batch: int) -> tuple[RecoveryPlan | None, str]:
    """The plan of a start after `batch`, from frame headers; None, and the reason, if such a start is impossible."""
    kept_from, carried = manifest.retired_before(place.storage), read_carried(_own_storage(checkpoint))
    if not has_whole_batch(checkpoint, batch):
        planned = planned_batches(checkpoint)
        return None, (
            f"Spark's logs have batches {min(planned, default=-1)} to {max(planned, default=-1)}, and must have this "
            f"one and the one before it (spark.sql.streaming.minBatchesToRetain says how many they keep)"
        )
    if batch < kept_from - 1:
        return None, f"its output is kept from batch {kept_from} on (output.retainBatches, output.readers)"
    if batch + 1 < carried:
        return None, f"its state was carried here from another checkpoint, as batch {carried - 1} had left it"
    elsewhere = [] if place.is_ours else stores_without_version(checkpoint, batch + 1)
    if elsewhere:
        return None, f"store {elsewhere[0]}, which is one of Spark's own, has no version {batch + 1} any more"
    try:
        allows = _read_attempts(place, checkpoint, batch).allows
        stores = list_stores(place, index)
        plan = read_plan(index, stores, batch, _find_base(checkpoint, index, stores, batch), allows)
        refuse_forgotten_batches(checkpoint.url, planned_batches(checkpoint), plan)
    except DamagedLog as error:
        return None, f"the log has not all of the state that it left ({error.segment}: {error.reason})"
    except UnsuitableCheckpoint as error:
        return None, str(error)
    return plan, ""


def _find_base(checkpoint: Storage, index: Index, stores: Sequence[StoreId], batch: int) -> int:
    """The version from which a start after `batch` begins: an older one if `cec repair` has decided that, and no run
    has carried it out. It does so if a frame of that batch is damaged while a rollback to it is unfinished.
    """
    decided = FALLBACK.read(_own_storage(checkpoint))
    return choose_base(decided, decided is not None and is_fallback_done(index, stores, decided), batch)


def _refuse_lost_state(place: Place, index: Index, plan: RecoveryPlan, progress: ReadProgress) -> None:
    """Reads all frames that the start will read. `DamagedLog` if one of them is lost."""
    checkpoint, batch = place.checkpoint, plan.committed_batch
    assert checkpoint is not None, "a plan is that of a checkpoint"
    probe = make_probe(place.storage, index, _read_attempts(place, checkpoint, batch).allows)
    progress.stores_begin(len(plan.stores))
    for store in plan.stores:
        found = probe(store, plan.base) if plan.base else None
        if isinstance(found, Loss):
            raise DamagedLog(
                f"store {store}",
                -1,
                f"its query cannot be taken back to batch {batch}, whose state cannot be rebuilt ({found.reason}): "
                f"choose another batch; nothing was changed",
            )
        progress.store_done()


def _count_inputs(index: Index, attempts: CommittedAttempts, plan: RecoveryPlan) -> int:
    """Input tuples of the replayed batches, as far as the log has their footers."""
    first, last = plan.rewound_to + 2, plan.committed_batch + 1
    entries = [entry for store in plan.stores for entry in index.commits(store, first, last) if attempts.allows(entry)]
    return sum({(e.meta.store, e.meta.version): e.meta.inputs for e in entries}.values())


def _find_output_behind(log: Storage, batch: int) -> TakenBack | None:
    there = [each for each in manifest.batches(log) if each > batch]
    if not there:
        return None
    found = [each for _, each in manifest.load_between(log, there[0], there[-1])]
    return TakenBack(there[0], there[-1], sum(each.rows for each in found if isinstance(each, manifest.Manifest)))


def _find_gone_files(checkpoint: Storage, plan: RecoveryPlan) -> tuple[list[str], list[str]]:
    """Missing input files on this machine: of the replayed batches, and of the batches that run anew."""
    behind = [each for each in files_behind(checkpoint, plan.committed_batch) if _is_gone(each)]
    if not plan.replayed_batches:
        return [], behind
    replayed = [each for each in files_behind(checkpoint, plan.rewound_to) if _is_gone(each)]
    return [each for each in replayed if each not in set(behind)], behind


def _is_gone(url: str) -> bool:
    """Whether a local file is missing; false for a file on another storage."""
    parts = urlsplit(url)
    return parts.scheme in ("", "file") and not Path(unquote(parts.path)).exists()


def _name_files(files: list[str]) -> str:
    return f"{files[0]}, which is gone" if len(files) == 1 else f"{files[0]} and {len(files) - 1} more, which are gone"


def _read_attempts(place: Place, checkpoint: Storage, batch: int) -> CommittedAttempts:
    return CommittedAttempts(checkpoint, _own_storage(checkpoint), read_cuts(place.storage).known, batch)


def _own_storage(checkpoint: Storage) -> Storage:
    return open_to_read(_own_url(checkpoint))


def _own_url(checkpoint: Storage) -> str:
    return f"{checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}"
