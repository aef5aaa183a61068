"""What `cec rollback` needs to know, and does: a query that is stopped goes back to the end of an earlier batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.fall_back import while_no_run_has_it
from spark_cec.admin.find_log import OWN_DIRECTORY, Place, open_to_read
from spark_cec.admin.state import catalog_of
from spark_cec.agent.lease import is_held
from spark_cec.errors import DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.log import manifest
from spark_cec.log.index import Index
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.readers import newest_reads
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import CommittedAttempts, newest_allowed
from spark_cec.recovery.fallback import Loss, make_probe
from spark_cec.recovery.file_sources import files_behind
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.migrated_away import refuse_if_migrated
from spark_cec.recovery.plan import RecoveryPlan, make_plan, refuse_later_history, refuse_unfinished_rewind
from spark_cec.recovery.preconditions import refuse_forgotten_batches
from spark_cec.recovery.query_files import ROLLBACK, is_under_protocol, read_carried
from spark_cec.recovery.replay_range import ReplayRange, read_replay_range
from spark_cec.recovery.rollback import has_whole_batch, is_at_batch, pending_rollback, roll_back
from spark_cec.recovery.spark_logs import all_stores, committed_batch, planned_batches, stores_without_version


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told how far the reading is: how many stores there are, and of each that it was read."""

    stores_begin: Callable[[int], None]
    store_done: Callable[[], None]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """Output of the `cec` sink behind the batch: batches `first` to `last`, with so many rows."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class WayBack:
    """What it takes to go back to the end of batch `to`, and what that costs.

    `newest`: the last batch of which there is anything; `stores` are whole in the log at version `to` + 1; `plan` and
    `inputs`: what the next start replays; `replay_range`: its input. `readers`: streams that have read
    output which is taken back, and the last batch that each has read. `gone`: files of the batches behind that are not
    there any more. `begun`: a try before this one was cut short. `locks`: whether something tells that no run is alive.
    """

    place: Place
    to: int
    newest: int
    stores: int
    plan: RecoveryPlan
    inputs: int
    replay_range: ReplayRange
    output: TakenBack | None
    readers: dict[str, int]
    gone: tuple[str, ...]
    begun: bool
    locks: bool


@contextmanager
def while_stopped(place: Place, *, dry_run: bool) -> Iterator[None]:
    """Keeps runs away; `Fenced` if there is one. A dry run leaves no trace, so it only looks."""
    if not dry_run:
        with while_no_run_has_it(place):
            yield
        return
    if place.checkpoint is not None and is_held(_own(place.checkpoint)):
        raise Fenced(f"the query with checkpoint {place.checkpoint.url} is running: stop that run first")
    yield


def find_way_back(place: Place, batch: int, watch: Watch) -> WayBack | None:
    """Looks whether the query can go back to the end of `batch`, and what that costs; None: it is there.

    Writes nothing. Errors: `UnsuitableCheckpoint` where it cannot, with the nearest batch that it can go back to;
    `DamagedLog` where the log has lost what that batch has left.
    """
    checkpoint = _refuse_what_never_goes_back(place)
    own, cuts = _own(checkpoint), read_cuts(place.storage).known
    pending = pending_rollback(own)
    catalog = catalog_of(place)
    catalog.refresh()
    index, committed = catalog.index, committed_batch(checkpoint)
    refuse_unfinished_rewind(own, committed)
    refuse_later_history(index, cuts, committed, newest_generation(own))
    newest = _newest_batch(place, checkpoint, index)
    if pending is not None and pending.batch != batch:
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} is being taken back to the end of batch {pending.batch}, which was not finished: finish "
            f"that first, with `cec rollback {checkpoint.url} --to {pending.batch}`"
        )
    if pending is None and batch > committed:
        raise UnsuitableCheckpoint(f"{checkpoint.url} ends at batch {committed}: give a batch before that")
    if not own.exists(ROLLBACK.name) and newest <= batch and is_at_batch(checkpoint, place.storage, batch):
        return None
    plan = _plan(place, checkpoint, index, batch)
    _refuse_lost_state(place, index, plan, watch)
    gone_in_replay, gone = _gone_files(checkpoint, plan)
    if gone_in_replay:
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} cannot be taken back to batch {batch}: its next start would replay batches "
            f"{plan.rewound_to + 1} to {batch}, which have read {_some(gone_in_replay)}: restore that, or choose "
            f"another batch"
        )
    return WayBack(
        place=place,
        to=batch,
        newest=newest,
        stores=len(plan.stores),
        plan=plan,
        inputs=_inputs(index, _attempts(place, checkpoint, batch), plan),
        replay_range=read_replay_range(checkpoint, plan.rewound_to + 1, batch),
        output=_output_behind(place.storage, batch),
        readers={name: read for name, read in sorted(newest_reads(place.storage).items()) if read > batch},
        gone=tuple(gone),
        begun=pending is not None,
        locks=is_held(own) is not None,
    )


def go_back(way: WayBack) -> int:
    """Does it; the caller keeps runs away meanwhile. Answers the number of the run that owns what comes."""
    checkpoint = way.place.checkpoint
    assert checkpoint is not None, "a way back is that of a checkpoint"
    writable = open_storage(checkpoint.url)
    done = roll_back(writable, open_storage(_own_url(checkpoint)), open_storage(way.place.home), way.to, anew=True)
    assert done is not None, "it was not there"
    return done.generation


def _refuse_what_never_goes_back(place: Place) -> Storage:
    """The checkpoint of a query that may go back at all."""
    if place.checkpoint is None or place.query is None:
        raise UnsuitableCheckpoint(f"{place.home} is not the checkpoint of a query on Spark CEC: give that")
    if is_under_protocol(place.query):
        raise UnsuitableCheckpoint(
            f"{place.checkpoint.url} is a flow under a checkpointing protocol: it goes back with the other flows, to a "
            "line, when its pipeline starts after a failure"
        )
    refuse_if_migrated(_own(place.checkpoint))
    if place.damage is not None:
        raise place.damage
    return place.checkpoint


def _newest_batch(place: Place, checkpoint: Storage, index: Index) -> int:
    """The last batch of which Spark's logs, the log or its output have anything that counts."""
    allows = _attempts(place, checkpoint, committed_batch(checkpoint)).allows_read
    heads = [newest_allowed(index, store, allows) for store in index.stores()]
    known = [head.meta.version - 1 for head in heads if head is not None]
    return max([*known, *planned_batches(checkpoint), *manifest.batches(place.storage)], default=-1)


def _plan(place: Place, checkpoint: Storage, index: Index, batch: int) -> RecoveryPlan:
    """What the start after that does. `UnsuitableCheckpoint` if it could not: it says to which batch it can go."""
    plan, why = _look(place, checkpoint, index, batch)
    if plan is not None:
        return plan
    later = [each for each in sorted(planned_batches(checkpoint)) if each > batch]
    nearest = next((each for each in later if _look(place, checkpoint, index, each)[0] is not None), None)
    there = f"the nearest batch that it can go back to is {nearest}" if nearest is not None else "nor to a later one"
    raise UnsuitableCheckpoint(f"{checkpoint.url} cannot be taken back to batch {batch}: {why}; {there}")


def _look(place: Place, checkpoint: Storage, index: Index, batch: int) -> tuple[RecoveryPlan | None, str]:
    """The plan of a start behind `batch`, from the headers of frames; without one, why there is none."""
    kept_from, carried = manifest.retired_before(place.storage), read_carried(_own(checkpoint))
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
    elsewhere = [] if (place.query or {}).get("provider") else stores_without_version(checkpoint, batch + 1)
    if elsewhere:
        return None, f"store {elsewhere[0]}, which is one of Spark's own, has no version {batch + 1} any more"
    try:
        allows = _attempts(place, checkpoint, batch).allows
        stores = all_stores(checkpoint, index.stores()) if (place.query or {}).get("provider") else []
        plan = make_plan(index, stores, batch, allows)
        refuse_forgotten_batches(checkpoint, plan)
    except DamagedLog as error:
        return None, f"the log has not all of the state that it left ({error.segment}: {error.reason})"
    except UnsuitableCheckpoint as error:
        return None, str(error)
    return plan, ""


def _refuse_lost_state(place: Place, index: Index, plan: RecoveryPlan, watch: Watch) -> None:
    """Reads all frames that the start will read. `DamagedLog` if one of them is lost."""
    checkpoint, batch = place.checkpoint, plan.committed_batch
    assert checkpoint is not None, "a plan is that of a checkpoint"
    look = make_probe(place.storage, index, _attempts(place, checkpoint, batch).allows)
    watch.stores_begin(len(plan.stores))
    for store in plan.stores:
        found = look(store, batch + 1)
        if isinstance(found, Loss):
            raise DamagedLog(
                f"store {store}",
                -1,
                f"its query cannot be taken back to batch {batch}, whose state cannot be rebuilt ({found.reason}): "
                f"choose another batch; nothing was changed",
            )
        watch.store_done()


def _inputs(index: Index, attempts: CommittedAttempts, plan: RecoveryPlan) -> int:
    """Input tuples of the batches that are replayed, as far as their footers are there."""
    first, last = plan.rewound_to + 2, plan.committed_batch + 1
    entries = [entry for store in plan.stores for entry in index.commits(store, first, last) if attempts.allows(entry)]
    return sum({(e.meta.store, e.meta.version): e.meta.inputs for e in entries}.values())


def _output_behind(log: Storage, batch: int) -> TakenBack | None:
    there = [each for each in manifest.batches(log) if each > batch]
    if not there:
        return None
    found = [each for _, each in manifest.load_between(log, there[0], there[-1])]
    return TakenBack(there[0], there[-1], sum(each.rows for each in found if isinstance(each, manifest.Manifest)))


def _gone_files(checkpoint: Storage, plan: RecoveryPlan) -> tuple[list[str], list[str]]:
    """Files on this machine that are gone: of the batches that are replayed, and of those that run anew."""
    behind = [each for each in files_behind(checkpoint, plan.committed_batch) if _is_gone(each)]
    if not plan.replayed_batches:
        return [], behind
    replayed = [each for each in files_behind(checkpoint, plan.rewound_to) if _is_gone(each)]
    return [each for each in replayed if each not in set(behind)], behind


def _is_gone(url: str) -> bool:
    """False, too, where this machine's file system does not tell."""
    parts = urlsplit(url)
    return parts.scheme in ("", "file") and not Path(unquote(parts.path)).exists()


def _some(files: list[str]) -> str:
    return f"{files[0]}, which is gone" if len(files) == 1 else f"{files[0]} and {len(files) - 1} more, which are gone"


def _attempts(place: Place, checkpoint: Storage, batch: int) -> CommittedAttempts:
    return CommittedAttempts(checkpoint, _own(checkpoint), read_cuts(place.storage).known, batch)


def _own(checkpoint: Storage) -> Storage:
    return open_to_read(_own_url(checkpoint))


def _own_url(checkpoint: Storage) -> str:
    return f"{checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}"
