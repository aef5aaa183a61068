"""Takes a stopped query back to the end of an earlier batch, as if no later batch had run.

The log must have the whole state at that version, and the output up to that batch. If a crash interrupts a rollback,
the same call finishes it. Until then a note says that a rollback is under way, and a start is refused.
"""

from __future__ import annotations

from dataclasses import asdict

from spark_cec.errors import TransientError, UnsuitableCheckpoint
from spark_cec.log.bundles import Bundles
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.log.late import forget_late
from spark_cec.log.manifest import batches, manifest_path, retired_before, take_back
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.readers import forget_reads
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.facts import read_ahead
from spark_cec.recovery.file_sources import unneeded_entries, unreadable_entries
from spark_cec.recovery.generations import newest_generation, next_generation, record_start
from spark_cec.recovery.query_files import FALLBACK, QUERY, ROLLBACK, Rollback, is_under_protocol
from spark_cec.recovery.reach import Reach, name_finisher
from spark_cec.recovery.spark_logs import (
    committed_batch,
    files_of_later_batches,
    find_strays,
    list_logs,
    operator_files,
    planned_batches,
)

_DELETIONS = 3


def roll_back(
    checkpoint: Storage, own: Storage, log: Storage, batch: int, *, anew: bool = False
) -> Rollback | None:
    """Takes the query, which must not run, back to the end of `batch`; None if it is already there.

    If Spark's files are gone and the log has later commits, the query is not there: a start would refuse them. `own` is
    rooted at the checkpoint's `cec` directory, `log` at the log's home. `anew` forces the rollback even if the query is
    there. The order:

    1. Refuse an impossible rollback, before any write.
    2. Note that a rollback is under way, with a new run number. Then record that this run begins after `batch`. In the
       other order attempts of earlier runs would stop to count while a start is still possible.
    3. Take back the output after `batch`. This fences earlier runs, which might still write there. No reader has read
       it, and no row of it is late.
    4. Delete the entries of Spark's commit log and offset log, newest first, so that a retry can finish after a crash.
       Delete unreadable file-source entries of later batches. If one of Spark's own providers keeps the state, delete
       its files of later versions. At the beginning, delete the operator files too: there is no state, and the
       operators may change.
    5. Delete a fallback that `cec repair` has decided for the end of a later batch.
    6. Delete the note; the new run continues from `batch`.

    Raises `UnsuitableCheckpoint` if Spark no longer keeps that batch, or an unfinished rollback goes to an earlier
    batch.
    """
    pending = pending_rollback(own)
    if not anew and not ROLLBACK.is_in(own) and _is_there(checkpoint, own, log, batch):
        return None
    if pending is None or pending.batch != batch:
        refuse_out_of_reach(checkpoint, own, log, batch)  # 1
        pending = Rollback(batch, next_generation(own))  # 2
        ROLLBACK.write(own, asdict(pending))
    record_start(own, pending.generation, batch)
    if log.exists("log.json"):
        take_back(log, batch, pending.generation)  # 3
        forget_reads(log, batch)
        forget_late(log, batch)
    for name in ("commits", "offsets"):  # 4
        _delete_later_entries(checkpoint, name, batch)
    for path in unreadable_entries(checkpoint, batch):
        _delete(checkpoint, path)
    query = QUERY.read_if_sound(own)
    if query is not None and not query.get("provider"):
        _delete_later_state(checkpoint, batch)
    for path in reversed(list(operator_files(checkpoint) if batch < 0 else ())):
        _delete(checkpoint, path)
    decided = FALLBACK.read(own)  # 5
    if decided is not None and decided.committed_batch > batch:
        FALLBACK.delete(own)
    ROLLBACK.delete(own)  # 6
    return pending


def refuse_out_of_reach(checkpoint: Storage, own: Storage, log: Storage, batch: int) -> None:
    """Raises `UnsuitableCheckpoint` if `roll_back` cannot go to `batch`."""
    reach = read_reach(checkpoint, own, log)
    obstacle = reach.find_obstacle(batch, is_whole=batch >= 0 and has_whole_batch(checkpoint, batch))
    if obstacle is not None:
        raise UnsuitableCheckpoint(obstacle)


def read_reach(checkpoint: Storage, own: Storage, log: Storage) -> Reach:
    """The facts that bound a rollback of a query.

    If the note of an unfinished rollback is unreadable, the newest cut of the log tells how far that rollback had come.
    """
    pending = begun = pending_rollback(own)
    if pending is None and ROLLBACK.is_in(own):
        begun = _read_target_from_cut(own, log)
    return Reach(
        checkpoint=checkpoint.url,
        own=own.url,
        planned=planned_batches(checkpoint),
        kept_from=retired_before(log),
        pending=pending,
        begun=begun,
        is_flow=begun is not None and is_under_protocol(QUERY.read(own)),
    )


def is_at_batch(checkpoint: Storage, log: Storage, batch: int) -> bool:
    """Whether the query has neither a plan, nor a commit, nor output after `batch`.

    A power loss can take the plan and leave the output.
    """
    if not committed_batch(checkpoint) == batch == max(planned_batches(checkpoint), default=-1):
        return False
    if find_strays(*list_logs(checkpoint)):
        return False
    return all(each <= batch for each in batches(log)) and not unreadable_entries(checkpoint, batch)


def _is_there(checkpoint: Storage, own: Storage, log: Storage, batch: int) -> bool:
    return is_at_batch(checkpoint, log, batch) and not _has_later_commits(checkpoint, own, log, batch)


def _has_later_commits(checkpoint: Storage, own: Storage, log: Storage, batch: int) -> bool:
    """Whether the log has commits for which a start after `batch` is refused, though Spark knows no later batch.

    After a power loss the log can have them, and no output, if the rows went elsewhere. Output is published before the
    stores write the next version. So if the output ends with `batch`, the commits are not read.
    """
    log_id = read_log_id(log)
    if log_id is None or (batch >= 0 and log.exists(manifest_path(batch))):
        return False
    catalog = Catalog(Bundles(log), MemoryIndex(log_id))
    catalog.refresh(asks_sizes=True)
    attempts = CommittedAttempts(checkpoint, own, read_cuts(log).known, batch)
    return bool(read_ahead(catalog.index, batch, attempts.allows))


def forget_batches(checkpoint: Storage, batch: int) -> None:
    """Deletes Spark's entries before `batch` - 1, because no rollback will go back before `batch` again.

    Deletes the oldest first, so that a crash leaves no gap.
    """
    for name in ("commits", "offsets"):
        for number in sorted(_list_batches(checkpoint, name)):
            if number < batch - 1:
                _delete(checkpoint, f"{name}/{number}")
    for path in unneeded_entries(checkpoint, batch - 1):
        _delete(checkpoint, path)


def has_whole_batch(checkpoint: Storage, batch: int) -> bool:
    """Whether Spark's logs have all files to start after `batch`. After a power loss a file can be empty."""
    return all(checkpoint.exists(path) and checkpoint.read(path).startswith(b"v") for path in list_start_files(batch))


def list_start_files(batch: int) -> list[str]:
    """The files of Spark's logs that Spark reads if a query starts after `batch`; the plan before `batch` is one."""
    return [f"offsets/{each}" for each in (batch - 1, batch) if each >= 0] + [f"commits/{batch}"]


def refuse_during_rollback(own: Storage) -> None:
    """Raises `UnsuitableCheckpoint` if a rollback has begun and not ended."""
    pending = _read_pending(own)
    if pending is not None:
        raise UnsuitableCheckpoint(
            f"{own.url} has {ROLLBACK.name}: its query is being taken back to the end of batch {pending.batch}, which "
            f"was not finished: {_name_finisher(own, str(pending.batch))}, which does the rest"
        )


def pending_rollback(own: Storage) -> Rollback | None:
    """The rollback that has begun and not ended; None if there is none or its note is unreadable.

    If the note is unreadable, the caller knows the target and begins the rollback again.
    """
    return ROLLBACK.read_if_sound(own)


def _read_pending(own: Storage) -> Rollback | None:
    return ROLLBACK.read(
        own,
        "its query was being taken back to an earlier batch; "
        f"{_name_finisher(own, 'BATCH')}, which does the rest",
    )


def _name_finisher(own: Storage, batch: str) -> str:
    return name_finisher(own.url, batch, is_flow=is_under_protocol(QUERY.read(own)))


def _read_target_from_cut(own: Storage, log: Storage) -> Rollback | None:
    """The target of an unfinished rollback that has made its cut. No run begins behind it until it is finished."""
    cuts = read_cuts(log).known if log.exists("log.json") else ()
    if cuts and cuts[-1].generation == newest_generation(own):
        return Rollback(cuts[-1].after, cuts[-1].generation)
    return None


def _delete_later_entries(checkpoint: Storage, name: str, batch: int) -> None:
    """Deletes the entries after `batch`, newest first."""
    for number in sorted(_list_batches(checkpoint, name), reverse=True):
        if number > batch:
            _delete(checkpoint, f"{name}/{number}")


def _delete_later_state(checkpoint: Storage, batch: int) -> None:
    """Deletes what Spark's own provider has of later versions: it would begin from a snapshot that is left.

    Looks again after the deletion, because S3 may keep some of many files and not say so to fsspec.
    """
    for _ in range(_DELETIONS):
        later = files_of_later_batches(checkpoint, batch)
        if not later:
            return
        checkpoint.delete_all([_checksum_of(path) for path in later])  # first, as in `_delete`
        checkpoint.delete_all(later)
    left = files_of_later_batches(checkpoint, batch)
    if left:
        raise TransientError(
            f"{checkpoint.url}: {len(left)} files of later state are still there after {_DELETIONS} deletions, such as "
            f"{left[0]}: see why the storage keeps them, and take the query back again"
        )


def _list_batches(checkpoint: Storage, name: str) -> list[int]:
    return [int(file.name) for file in checkpoint.list(name) if file.name.isascii() and file.name.isdigit()]


def _delete(checkpoint: Storage, path: str) -> None:
    """Deletes a file of Spark and its Hadoop checksum.

    A remaining checksum would keep Spark from writing the file again.
    """
    # Delete the checksum first. If a crash came between and the file were gone, no retry would find the checksum.
    for each in (_checksum_of(path), path):
        if checkpoint.exists(each):
            checkpoint.delete(each)


def _checksum_of(path: str) -> str:
    """Hadoop's checksum of a file, which local file systems have."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/.{name}.crc"
