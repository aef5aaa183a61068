"""Takes a query that is stopped back to the end of an earlier batch, as if none had come after it.

Its state at that version must be whole in its log, and its output up to there kept. A crash in between is mended by
doing the same again; until then a file says that it is under way, and a start is refused.
"""

from __future__ import annotations

from dataclasses import asdict

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.manifest import batches, retired_before, take_back
from spark_cec.log.readers import forget_reads
from spark_cec.log.storage import Storage
from spark_cec.recovery.file_sources import needed_no_more, unreadable_behind
from spark_cec.recovery.generations import next_generation, note_start
from spark_cec.recovery.query_files import FALLBACK, QUERY, ROLLBACK, Rollback, is_under_protocol
from spark_cec.recovery.spark_logs import committed_batch, operator_files, planned_batches


def roll_back(
    checkpoint: Storage, own: Storage, log: Storage, batch: int, *, anew: bool = False
) -> Rollback | None:
    """Takes the query back to the end of `batch`; None if that is where it is. It must not run meanwhile.

    `own` is rooted at the checkpoint's `cec` directory, `log` at the log's home. `anew`: also where it seems to be
    there, since Spark's logs were cut by hand, and the log has later commits. In this order:

    1. Refuse what cannot be done, before anything is written.
    2. Say that it is under way, with a number that no other run has; then, that this run begins behind the batch. Not
       before: until a start is refused, what earlier runs have written behind the batch must count.
    3. Take back the output behind the batch: whoever still writes there is fenced. No reader has read it.
    4. Cut Spark's commit log and its offset log, newest first: what is left of a crash is cut by the next try. What a
       power loss has left of later notes of files goes, too. At the beginning there is no state, whose operators may
       be other ones then.
    5. Forget what `cec repair` has decided for the end of a later batch.
    6. The run that begins now goes on from there.

    Raises `UnsuitableCheckpoint` where Spark does not keep that batch any more, or a rollback to before it has begun.
    """
    pending = pending_rollback(own)
    if not anew and pending is None and not ROLLBACK.is_in(own) and is_at(checkpoint, log, batch):
        return None
    if pending is None or pending.batch != batch:
        _refuse_what_is_taken_back(own, pending, batch)  # 1
        _refuse_a_forgotten_batch(checkpoint, log, batch)
        pending = Rollback(batch, next_generation(own))  # 2
        ROLLBACK.write(own, asdict(pending))
    note_start(own, pending.generation, batch)
    if log.exists("log.json"):
        take_back(log, batch, pending.generation)  # 3
        forget_reads(log, batch)
    for name in ("commits", "offsets"):  # 4
        _cut(checkpoint, name, batch)
    for path in unreadable_behind(checkpoint, batch):
        _delete(checkpoint, path)
    for path in reversed(list(operator_files(checkpoint) if batch < 0 else ())):
        _delete(checkpoint, path)
    decided = FALLBACK.read(own)  # 5
    if decided is not None and decided.committed_batch > batch:
        FALLBACK.delete(own)
    ROLLBACK.delete(own)  # 6
    return pending


def refuse_out_of_reach(checkpoint: Storage, own: Storage, log: Storage, batch: int) -> None:
    """`UnsuitableCheckpoint` where `roll_back` could not go there."""
    pending = pending_rollback(own)
    if pending is None or pending.batch != batch:
        _refuse_what_is_taken_back(own, pending, batch)
        _refuse_a_forgotten_batch(checkpoint, log, batch)


def is_at(checkpoint: Storage, log: Storage, batch: int) -> bool:
    """Whether nothing has come after a batch: neither a plan, nor output, whose plan may be what a power loss took."""
    if not committed_batch(checkpoint) == batch == max(planned_batches(checkpoint), default=-1):
        return False
    return all(each <= batch for each in batches(log)) and not unreadable_behind(checkpoint, batch)


def forget_batches(checkpoint: Storage, batch: int) -> None:
    """No rollback goes behind `batch` again: what Spark has of older ones goes, but for the one that it starts from.

    Oldest first, so that what is left of a crash has no gap.
    """
    for name in ("commits", "offsets"):
        for number in sorted(_numbers(checkpoint, name)):
            if number < batch - 1:
                _delete(checkpoint, f"{name}/{number}")
    for path in needed_no_more(checkpoint, batch - 1):
        _delete(checkpoint, path)


def has_whole(checkpoint: Storage, batch: int) -> bool:
    """Whether Spark's logs have a batch, to its end, and can start behind it: Spark reads the plan before it, too.

    After a power loss a file may be there, and empty.
    """
    return all(checkpoint.exists(path) and checkpoint.read(path).startswith(b"v") for path in files_to_start(batch))


def files_to_start(batch: int) -> list[str]:
    """What Spark reads of its logs where a query starts behind the end of a batch."""
    return [f"offsets/{each}" for each in (batch - 1, batch) if each >= 0] + [f"commits/{batch}"]


def refuse_if_under_way(own: Storage) -> None:
    """`UnsuitableCheckpoint` if a rollback was begun and not ended."""
    pending = _pending(own)
    if pending is not None:
        raise UnsuitableCheckpoint(
            f"{own.url} has {ROLLBACK.name}: its query is being taken back to the end of batch {pending.batch}, which "
            f"was not finished: {_who_does_the_rest(own, str(pending.batch))}, which does the rest"
        )


def pending_rollback(own: Storage) -> Rollback | None:
    """The one that was begun and not ended.

    None, too, for one that says nothing: whoever knows where to go begins anew, and overtakes it.
    """
    return ROLLBACK.read_if_sound(own)


def _pending(own: Storage) -> Rollback | None:
    return ROLLBACK.read(
        own,
        "its query was being taken back to an earlier batch; "
        f"{_who_does_the_rest(own, 'BATCH')}, which does the rest",
    )


def _who_does_the_rest(own: Storage, batch: str) -> str:
    """Of a flow that takes part in a protocol its pipeline, of another query the command line."""
    if is_under_protocol(QUERY.read(own)):
        return "start the pipeline that it belongs to"
    return f"run `cec rollback {own.url.removesuffix('/cec')} --to {batch}`"


def _refuse_what_is_taken_back(own: Storage, pending: Rollback | None, batch: int) -> None:
    """One to before `batch` was begun, and may have taken back what `batch` left already."""
    if pending is not None and pending.batch < batch:
        raise UnsuitableCheckpoint(
            f"{own.url} has {ROLLBACK.name}: its query is being taken back to the end of batch {pending.batch}, which "
            f"is before batch {batch}: {_who_does_the_rest(own, str(pending.batch))}, which does the rest"
        )


def _refuse_a_forgotten_batch(checkpoint: Storage, log: Storage, batch: int) -> None:
    planned, kept_from = planned_batches(checkpoint), retired_before(log)
    if batch < kept_from - 1:
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} cannot be taken back to batch {batch}: its output is kept from batch {kept_from} on; "
            f"begin the pipeline anew, in another home"
        )
    if batch < 0 < min(planned, default=0):
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} cannot be taken back to its beginning: Spark keeps batches from {min(planned)} on. If "
            f"files are missing in cec/checkpoints there, restore them; or begin the pipeline anew, in another home"
        )
    if batch >= 0 and not has_whole(checkpoint, batch):
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} cannot be taken back to batch {batch}: Spark keeps batches "
            f"{min(planned, default=-1)} to {max(planned, default=-1)} of it; let it keep more, with "
            f"spark.sql.streaming.minBatchesToRetain, or begin the pipeline anew, in another home"
        )


def _cut(checkpoint: Storage, name: str, batch: int) -> None:
    """Deletes the entries behind a batch, newest first, each with the checksum that Hadoop has beside it."""
    for number in sorted(_numbers(checkpoint, name), reverse=True):
        if number > batch:
            _delete(checkpoint, f"{name}/{number}")


def _numbers(checkpoint: Storage, name: str) -> list[int]:
    return [int(file.name) for file in checkpoint.list(name) if file.name.isascii() and file.name.isdigit()]


def _delete(checkpoint: Storage, path: str) -> None:
    """Of Spark's files, with the checksum: one that is left would keep Spark from writing the file anew."""
    directory, _, name = path.rpartition("/")
    # First what Hadoop can do without: without its file nobody would look for it.
    for each in (f"{directory}/.{name}.crc", path):
        if checkpoint.exists(each):
            checkpoint.delete(each)
