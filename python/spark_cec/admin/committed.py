"""Reads Spark's progress from the checkpoint's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from spark_cec.admin.find_log import OWN_DIRECTORY, Place, open_to_read
from spark_cec.errors import DamagedLog, NoLine, TransientError, UnsuitableCheckpoint
from spark_cec.ids import StoreId
from spark_cec.log.index import Index
from spark_cec.log.output_rollbacks import Cut, read_cuts
from spark_cec.log.storage import Storage
from spark_cec.protocols.messages import Checkpoint, Line, Process
from spark_cec.protocols.records import checkpoints_of, read_records, records_in
from spark_cec.protocols.runtime import find_line
from spark_cec.protocols.spec import Spec, read_spec
from spark_cec.recovery.attempts import Allows, CommittedAttempts, is_rolled_back, living_stores
from spark_cec.recovery.decide import lacks_newest
from spark_cec.recovery.facts import is_fallback_done, read_stores
from spark_cec.recovery.query_files import FALLBACK, QUERY, Fallback, ReplayProgress, is_under_protocol
from spark_cec.recovery.report import read_progress
from spark_cec.recovery.rollback import pending_rollback
from spark_cec.recovery.spark_logs import all_stores, batch_not_run_again, find_strays, list_logs

_LOOKS_FOR_LINE = 5
"""The flows' checkpoints are read so often if they make no line, because a run changes them."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest batch V that Spark has committed, -1 if there is none.

    `replay`: the progress of a replay, if one runs. `checkpoint`: for a flow under a protocol, the batch to which its
    next start takes it back. `under_way`: the target batch of an unfinished rollback. `is_unwritten`: Spark committed
    the batch before all stores had written it (`WriteAt.ASYNC`). A run writes it, or the next start makes it again.
    `strays`: the commits behind the newest planned batch, for which a start is refused.
    """

    batch: int
    replay: ReplayProgress | None = None
    checkpoint: int | None = None
    under_way: int | None = None
    is_unwritten: bool = False
    strays: tuple[int, ...] = ()

    @property
    def last(self) -> int:
        """The batch after which the next start continues: V, or the batch to which the query goes back."""
        if self.under_way is not None:
            return self.under_way
        return self.batch if self.checkpoint is None else self.checkpoint

    @property
    def version(self) -> int | None:
        """The newest store version that the log must have, mostly that at the end of `last`; None if there is none."""
        newest = self.last if self.is_unwritten else self.last + 1
        return newest if newest > 0 else None


def committed(place: Place) -> Committed | None:
    """The last committed batch, None if no checkpoint is known.

    For a flow under a protocol raises `DamagedLog`, `NoLine` or `TransientError` if there is no line to be read.
    """
    if place.checkpoint is None:
        return None
    runs = place.checkpoint.list(f"{OWN_DIRECTORY}/generations")
    newest = max((int(file.name.removesuffix(".json")) for file in runs), default=0)
    replay = read_progress(_own_storage(place.checkpoint), newest)
    pending = pending_rollback(_own_storage(place.checkpoint))
    back_to = pending.batch if pending is not None else None
    planned, done = list_logs(place.checkpoint)
    return Committed(
        batch_not_run_again(planned, done), replay, _read_protocol_batch(place.checkpoint), back_to,
        strays=tuple(find_strays(planned, done)),
    )  # fmt: skip


def note_unwritten(place: Place, index: Index, done: Committed | None) -> Committed | None:
    """The same progress, with `is_unwritten` as the log tells. The index must be read after the progress."""
    if place.checkpoint is None or done is None or done.version is None or done.last != done.batch:
        return done
    stores = list_stores(place, index)
    attempts = _read_attempts(place, place.checkpoint, done)
    is_lacking = lacks_newest(read_stores(index, stores, done.version, attempts.allows))
    return replace(done, is_unwritten=is_lacking and attempts.may_lack_newest(index))


def _read_protocol_batch(checkpoint: Storage) -> int | None:
    is_flow = False
    with suppress(UnsuitableCheckpoint):  # commands that need the file report the error
        is_flow = is_under_protocol(QUERY.read(_own_storage(checkpoint)))
    if not is_flow:
        return None
    home, _, flow = checkpoint.url.rstrip("/").rpartition("/flows/")
    spec = read_spec(open_to_read(home)) if home else None
    if spec is None or flow not in spec.inputs:  # a copy of a flow alone
        return read_records(_own_storage(checkpoint), flow, ()).newest.batch
    return _read_line(home, spec)[flow].sent - 1


def _read_line(home: str, spec: Spec) -> Line:
    """The line to which the flows go back. The flows may run: then a later look may find what an earlier one does not.

    Raises `NoLine` if nothing changes between two looks, `TransientError` if each look comes too late.
    """
    before: Mapping[Process, Sequence[Checkpoint]] = {}
    for _ in range(_LOOKS_FOR_LINE):
        found = checkpoints_of(records_in(home, spec.inputs, open_to_read))
        try:
            return find_line(spec.protocol, found)
        except NoLine:
            if found == before:
                raise
            before = found
    raise TransientError(
        f"{home}: its flows go on faster than their checkpoints can be read: try again, stop the pipeline before that, "
        "or give it a longer checkpoint_interval"
    )


def list_stores(place: Place, index: Index) -> list[StoreId]:
    """The stores that the log must have, as a start counts them: none of a history that was taken back whole."""
    return all_stores(place.checkpoint, living_stores(index, _read_cuts_if_sound(place)), is_ours=place.is_ours)


def count_recoveries(place: Place) -> int:
    """The number of recoveries with a report."""
    if place.checkpoint is None:
        return 0
    return sum(file.name.endswith(".json") for file in place.checkpoint.list(f"{OWN_DIRECTORY}/recoveries"))


def decided_fallback(place: Place, index: Index, done: Committed | None) -> Fallback | None:
    """The fallback that `cec repair` has decided for the next start; None without one, or if it is finished."""
    if place.checkpoint is None or done is None:
        return None
    decided = FALLBACK.read(_own_storage(place.checkpoint))
    if decided is None or done.last > decided.committed_batch:
        return None
    stores = list_stores(place, index)
    return None if is_fallback_done(index, stores, decided) else decided


def committed_attempts(place: Place, done: Committed | None) -> Allows:
    """Tells which attempts may be the committed ones; without a checkpoint, all that no rollback took back."""
    if place.checkpoint is None or done is None:
        cuts = _read_cuts_if_sound(place)
        return lambda entry: not is_rolled_back(entry, cuts)
    return _read_attempts(place, place.checkpoint, done).allows_read


def _read_attempts(place: Place, checkpoint: Storage, done: Committed) -> CommittedAttempts:
    return CommittedAttempts(checkpoint, _own_storage(checkpoint), _read_cuts_if_sound(place), done.batch)


def _read_cuts_if_sound(place: Place) -> tuple[Cut, ...]:
    """The log's cuts; empty if one is damaged: the search for damage reports it."""
    with suppress(DamagedLog):
        return read_cuts(place.storage).known
    return ()


def _own_storage(checkpoint: Storage) -> Storage:
    return open_to_read(f"{checkpoint.url.rstrip('/')}/{OWN_DIRECTORY}")
