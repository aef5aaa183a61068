"""Opens and closes the epochs of a flow in its checkpoint, and deletes their files (`availability.epochs`)."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage, remove_all
from spark_cec.agent.logs import cec_directory, home_of
from spark_cec.availability.epochs import (
    Epoch,
    change_epoch,
    close_epoch,
    epoch_checkpoint,
    forget_epochs,
    list_numbers,
    newest_epoch,
    open_epoch,
    read_epoch,
)
from spark_cec.availability.failure import Progress
from spark_cec.errors import AlreadyExists, DamagedLog
from spark_cec.log import manifest
from spark_cec.log.home import absolute_home, is_inside, relative_home
from spark_cec.log.storage import Storage
from spark_cec.recovery.facts import Places
from spark_cec.recovery.fork import fork_query
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import planned_batches
from spark_cec.recovery.unfinished_copy import METADATA
from spark_cec.settings import parse_settings

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork of a flow, which becomes the epoch of that number.

    `begins_after`: the flow's last batch in its past, -1 for none. `follows`: the last one with rows.
    """

    number: int
    begins_after: int
    follows: int


def fork_flow(checkpoint: str) -> Fork:
    """Forks the flow at the URL `checkpoint`. A fork without a note goes: a driver was killed that made it.

    Errors: `ForkError`, and those of the storage.
    """
    number = max(list_numbers(open_storage(checkpoint)), default=0) + 1
    begins_after = _fork(checkpoint, number)
    return Fork(number, begins_after, _find_newest_rows(checkpoint, begins_after))


def note_epoch(
    checkpoint: str, fork: Fork, absent: tuple[str, ...], *, has_passed: bool, pause_ms: int = 0
) -> Epoch:  # fmt: skip
    """Notes the epoch of a fork: its rows count from now on.

    `has_passed`: the flow has given out all that earlier epochs have. `pause_ms`: how long each row waits in it.

    If the storage fails, nobody knows whether there is a note: `close_failed_epochs`.
    """
    epoch = Epoch(
        fork.number, fork.begins_after, fork.follows, absent, _now_ms(), has_passed=has_passed, pause_ms=pause_ms
    )
    open_epoch(open_storage(checkpoint), epoch)
    return epoch


def note_needless(checkpoint: str, fork: Fork) -> None:
    """Notes a fork as an epoch that is closed, without rows, so that no other one gets its number.

    The rows of the epoch before it go when they would have gone without it. If the fork has a note, that one stays: it
    may be of another driver, which has the home by now.
    """
    flow = open_storage(checkpoint)
    try:
        before = newest_epoch(flow)
    except DamagedLog as damage:
        _LOG.warning("%s/%s: the epoch counts as closed", checkpoint, damage)
        before = None
    after = fork.follows if before is None or before.closed_after is None else before.closed_after
    with suppress(AlreadyExists):
        open_epoch(flow, Epoch(fork.number, fork.begins_after, fork.follows, (), _now_ms(), closed_after=after))


def note_pause(checkpoint: str, epoch: Epoch, pause_ms: int) -> Epoch:
    """Notes how long each row waits in an open epoch from now on. The caller has confirmed that the home is its own."""
    changed = replace(epoch, pause_ms=pause_ms, wall_ms=_now_ms())
    if pause_ms != epoch.pause_ms:
        change_epoch(open_storage(checkpoint), changed)
    return changed


def read_until(checkpoint: str, batch: int) -> int | None:
    """The end of the buckets of a flow's batch, event time in ms since 1970; None for batch -1."""
    return None if batch < 0 else _read_plan(open_storage(checkpoint), batch).until_ms


def read_planned(checkpoint: str) -> Progress:
    """The progress of a query with its newest planned batch, whether or not that one has ended. Raises `DamagedLog`."""
    place = open_storage(checkpoint)
    newest = max(planned_batches(place), default=-1)
    return Progress() if newest < 0 else _read_plan(place, newest)


def _read_plan(checkpoint: Storage, batch: int) -> Progress:
    name = f"offsets/{batch}"
    entry = checkpoint.read(name).decode(errors="replace")
    try:
        # Behind its version and its metadata an entry has a line for each source, `-` for one without an offset.
        _, metadata, *offsets = entry.splitlines()
        ends = [manifest.read_bucket_end(each) for each in offsets if each.startswith("{")]
        watermark_ms = json.loads(metadata).get("batchWatermarkMs")
    except (ValueError, AttributeError) as error:
        raise DamagedLog(name, -1, f"it is no entry of Spark's offset log ({error})") from error
    answered_ms = int(watermark_ms) if isinstance(watermark_ms, int) and watermark_ms > 1 else None
    return Progress(max((end for end in ends if end is not None), default=None), answered_ms)


def find_begin(checkpoint: str, number: int) -> int:
    """The flow's last batch in an epoch's past; -1 if there is none. Raises `FileNotFoundError` for a forgotten epoch.
    """
    epoch = read_epoch(open_storage(checkpoint), number)
    if epoch is None:
        raise FileNotFoundError(f"epoch {number} of {checkpoint} is over")
    return epoch.begins_after


def end_epoch(checkpoint: str, epoch: Epoch) -> None:
    """Notes that the rows of the epoch do not count any more: those that the flow has given out replace them."""
    close_epoch(open_storage(checkpoint), epoch, _find_newest_rows(checkpoint), _now_ms())


def delete_epoch(checkpoint: str, number: int) -> None:
    """Deletes the files of the closed epochs up to this number, then their notes. The newest note stays.

    No note goes before the files of its epoch: nothing else tells that they are there.
    """
    flow = open_storage(checkpoint)
    for each in sorted({number, *(known for known in list_numbers(flow) if known < number)}):
        _remove_fork(checkpoint, each)
    forget_epochs(flow, number)


def close_failed_epochs(checkpoint: str, after: int = 0) -> int:
    """Closes the open epochs after that number; answers the newest number, 0 for none. Removes a fork without a note.

    A storage may fail after it has created a note, so the caller may not know of the epoch. Their queries must be
    over.
    """
    newest = _close_open(checkpoint, after)
    _remove_fork(checkpoint, newest + 1)
    return newest


def close_left_epochs(checkpoint: str) -> None:
    """Closes the epochs of a flow that an earlier driver left open, and deletes the files of all. No query may run.

    A query that worked ahead may have run in a fork without a note. An executor of it may be paused, and write there
    later. So that number is not used again.
    """
    newest = _close_open(checkpoint)
    left = epoch_checkpoint(checkpoint, newest + 1)
    if open_storage(left).exists(METADATA):
        newest += 1
        note_needless(checkpoint, Fork(newest, -1, -1))
    else:
        _remove_fork(checkpoint, newest + 1)
    if newest:
        delete_epoch(checkpoint, newest)


def _close_open(checkpoint: str, after: int = 0) -> int:
    """Closes the open epochs after that number; answers the newest number, 0 for none."""
    flow = open_storage(checkpoint)
    numbers = list_numbers(flow)
    for number in (each for each in numbers if each > after):
        try:
            epoch = read_epoch(flow, number)
        except DamagedLog as damage:
            _LOG.warning("%s/%s: the epoch counts as closed", checkpoint, damage)
            epoch = Epoch(number, -1, -1, (), 0)
        if epoch is not None and epoch.is_open:
            end_epoch(checkpoint, epoch)
    return max(numbers, default=0)


def _fork(checkpoint: str, number: int) -> int:
    """Makes the fork of this number; answers the flow's last batch in its past, -1 for none."""
    _remove_fork(checkpoint, number)  # of a driver that was killed here
    place = epoch_checkpoint(checkpoint, number)
    query = QUERY.read(cec_directory(checkpoint))
    if query is None:  # the flow has committed nothing
        return -1
    lender, home = absolute_home(checkpoint, query["log_home"]), _home_of_fork(place, query)
    source = Places(open_storage(checkpoint), cec_directory(checkpoint), open_storage(lender))
    target = Places(open_storage(place), cec_directory(place), open_storage(home))
    return fork_query(source, target, lender, relative_home(place, home))


def _remove_fork(checkpoint: str, number: int) -> None:
    """Removes the files of a fork, whole or in part. Its log may lie outside, and a fork in the making does not say so.
    """
    place = epoch_checkpoint(checkpoint, number)
    flow, fork = (QUERY.read_if_sound(cec_directory(each)) for each in (checkpoint, place))
    homes = {absolute_home(place, fork["log_home"])} if fork is not None else set[str]()
    homes |= {_home_of_fork(place, flow)} if flow is not None else set()
    for home in homes:
        if not is_inside(place, home):
            remove_all(home)
    remove_all(place)


def _home_of_fork(place: str, flow: Mapping[str, Any]) -> str:
    """Where the log of a fork at `place` begins. `flow`: the flow's `query.json`."""
    return home_of(place, parse_settings(flow.get("settings_conf") or {}), None)


def _find_newest_rows(checkpoint: str, through: int | None = None) -> int:
    """The flow's newest batch with rows, at most `through`; -1 for none. Readers leave batches without rows for later.
    """
    query = QUERY.read(cec_directory(checkpoint))
    if query is None:
        return -1
    log = open_storage(absolute_home(checkpoint, query["log_home"]))
    kept = manifest.batches(log)
    if not kept:
        return -1
    for batch, found in manifest.load_back(log, kept[-1] if through is None else min(kept[-1], through), kept[0]):
        if found is None and batch < manifest.retired_before(log):  # so all readers have it, and the older ones
            return -1
        if found is not None and (isinstance(found, DamagedLog) or found.rows):  # at damage a reader stops
            return batch
    return -1


def _now_ms() -> int:
    return int(time.time() * 1000)
