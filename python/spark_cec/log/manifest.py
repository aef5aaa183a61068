"""Manifests: the output frames of each batch that count (`FORMAT.md`, section 3)."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from spark_cec.errors import AlreadyExists, DamagedLog, Fenced, UnsuitableCheckpoint
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.output_rollbacks import Cut, Cuts, append_cut, read_all_cuts, read_cuts
from spark_cec.log.storage import Storage, delete_until, reads_at_once
from spark_cec.log.times import TimeRange

MANIFESTS = "manifests"

RETIRED = f"{MANIFESTS}/retired.json"
"""Records the batch before which output is no longer kept: a slower reader must not skip that output."""

RELIST_S = 30.0
"""`PublishedBatches` lists the manifests at most this often while no batch is new."""

RELIST_MOST_S = 600.0
"""The longest time between two listings, after several found no batch."""

_LISTING_FROM = 1_000
_ROUNDS = 4
"""So many manifests for each read that may be under way are asked for together."""

_RETIRED_BEFORE_CHECKSUMS = re.compile(rb'\{"before":([0-9]{1,18})\}')
_NO_OFFSET = "-"
_DIGITS = 20
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Consumed:
    """A source's progress after a batch: `end` in the source's own form, None if it had no data yet.

    `files`: the checksum of a file source's entries under that end; None for another kind of source.
    """

    source: str
    end: str | None
    files: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The output of one batch.

    `frames`: ids of its output frames, 32 hex digits each, in order. `schema_json`: the rows' schema. `truncate`:
    earlier batches no longer count. `wall_ms`: ms since the epoch. `consumed`: each source's progress, in Spark's
    order; empty if it is unknown.

    `boundary_ms`: the watermark of the batch, event time in ms since the epoch, None without one; older rows are late.
    `crc`: the checksum of a manifest from the storage, which distinguishes it from another one of its batch; 0 before
    it is written. `piggyback`: the data of a protocol (`spark_cec.protocols`), None without such data.

    `other_sink`: somebody has said that another sink had the rows of the batch (`log.other_sink`).
    """

    batch: int
    frames: tuple[str, ...]
    rows: int
    schema_json: str
    truncate: bool
    generation: int
    wall_ms: int
    consumed: tuple[Consumed, ...] = ()
    boundary_ms: int | None = None
    piggyback: Mapping[str, Any] | None = None
    times: Mapping[str, TimeRange] = field(default_factory=dict, hash=False)
    other_sink: bool = False
    crc: int = field(default=0, compare=False)


def publish(storage: Storage, manifest: Manifest, cuts: Cuts | None = None, *, looks: bool = True) -> Manifest:
    """Publishes the manifest, unless the batch has one that counts; returns the manifest that counts.

    `cuts`: the caller's `Cuts`, if it has them. `looks`: whether there may be new ones. Errors: `Fenced` if a cut takes
    back this run's output. `DamagedLog` if the existing manifest or a cut is unreadable. `UnsuitableCheckpoint` if the
    existing manifest has other input.
    """
    cuts = cuts or Cuts(storage)
    if looks:
        cuts.look()
    refuse_taken_back(storage.url, cuts, manifest.batch, manifest.generation)
    path, content = manifest_path(manifest.batch), _encode_manifest(manifest)
    try:
        storage.create(path, content)
    except AlreadyExists:
        cuts.look()
        refuse_taken_back(storage.url, cuts, manifest.batch, manifest.generation)
        there = load(storage, manifest.batch)
        if cuts.of(there.batch, there.generation) is None:
            _refuse_other_input(storage, there, manifest)
            return there
        storage.replace(path, content)
    return manifest


def refuse_taken_back(url: str, cuts: Cuts, batch: int, generation: int) -> None:
    """Raises `Fenced` if a cut takes back what this run has published, or would publish, of a batch."""
    cut = cuts.of(batch, generation)
    if cut is not None:
        raise Fenced(
            f"{url}: run {cut.generation} has taken back the output after batch {cut.after}, so that run "
            f"{generation} cannot publish batch {batch} any more: a later run of the query owns it"
        )


def _refuse_other_input(storage: Storage, there: Manifest, planned: Manifest) -> None:
    """Refuses a manifest with other input: rows between the two inputs would be lost or doubled."""
    before, now = [each.end for each in there.consumed], [each.end for each in planned.consumed]
    known = zip((each.files for each in there.consumed), (each.files for each in planned.consumed), strict=False)
    if before and now and before == now and any(None not in (a, b) and a != b for a, b in known):
        raise UnsuitableCheckpoint(
            f"{storage.url}: batch {there.batch} of the output was made of other files than it is planned with now: "
            f"the checkpoint is an older copy, or has lost what it had noted of them in sources/, as after a power "
            f"loss. Restore it from a copy, with the log; or begin the query anew{_rollback_hint(there.batch)}"
        )
    if before and now and before != now:
        was, becomes = _format_ends(before), _format_ends(now)
        raise UnsuitableCheckpoint(
            f"{storage.url}: batch {there.batch} of the output was made of input up to {was}, and is planned "
            f"up to {becomes} now: the checkpoint is an older copy, or has lost offsets/{there.batch}, as after a "
            f"power loss. Restore it; or write these first {len(before)} offsets into its offsets/{there.batch}, a "
            f"line each, in the place of those that are there, delete offsets/.{there.batch}.crc, and start again"
            f"{_rollback_hint(there.batch)}"
        )


def _rollback_hint(batch: int) -> str:
    """Suggests a rollback before the batch; empty for the first batch, which has none before it."""
    return f"; or have `cec rollback` with --to {batch - 1} take this output back, and start again" if batch else ""


def _format_ends(ends: Sequence[str | None]) -> str:
    return " and ".join(_NO_OFFSET if end is None else end for end in ends)


def take_back(storage: Storage, after: int, generation: int) -> Cut:
    """Takes back the output after batch `after` (-1: all), so that run `generation` and later ones write it anew.

    After a crash the same call completes it. Errors: `AlreadyExists` if another process cuts at the same moment,
    `DamagedLog`, `NewerFormat`. `ValueError` if the output of the next batch is no longer kept.
    """
    kept_from = retired_before(storage)
    if after < kept_from - 1:
        raise ValueError(f"{storage.url}: output is kept from batch {kept_from} on, and cannot end with batch {after}")
    cut = append_cut(storage, after, generation, int(time.time() * 1000))
    for batch in reversed(_list_batches(storage)):
        if batch <= after:
            break
        if _is_older(storage, batch, generation):
            storage.delete(manifest_path(batch))
    return cut


def _is_older(storage: Storage, batch: int, generation: int) -> bool:
    """Whether an earlier run wrote the manifest of a batch, or it is damaged: its batch will be written anew."""
    try:
        return load(storage, batch).generation < generation
    except DamagedLog:
        return True


def load(storage: Storage, batch: int) -> Manifest:
    """The manifest of a batch. Errors: `FileNotFoundError` if there is none, `DamagedLog`, `NewerFormat`."""
    path = manifest_path(batch)
    manifest = _decode_manifest(path, storage.read(path))
    if manifest.batch != batch:
        raise DamagedLog(path, 0, f"it is the manifest of batch {manifest.batch}")
    return manifest


def batches(storage: Storage, cuts: Cuts | None = None) -> list[int]:
    """The batches whose manifest counts, sorted; from one listing. `cuts`: the caller's `Cuts`, if it has them."""
    found = _list_batches(storage)
    known = read_cuts(storage) if cuts is None else cuts
    while found and not _is_counted(storage, found[-1], known):
        found.pop()
    return found


def readable_batches(storage: Storage) -> tuple[list[int], tuple[DamagedLog, ...]]:
    """As `batches`, for a search for damage: if a cut is unreadable, all batches with a manifest, and the damage."""
    try:
        return batches(storage, read_all_cuts(storage)), ()
    except DamagedLog as damage:
        return _list_batches(storage), (damage,)


def _list_batches(storage: Storage) -> list[int]:
    stems = [file.name.removesuffix(_SUFFIX) for file in storage.list(MANIFESTS) if file.name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isascii() and stem.isdigit())


def _is_counted(storage: Storage, batch: int, cuts: Cuts) -> bool:
    """Whether no cut takes back the manifest of a batch.

    A damaged manifest counts: a reader of its batch gets the error. A manifest that was deleted since the listing does
    not.
    """
    if not any(cut.after < batch for cut in cuts.known):
        return True
    try:
        return cuts.of(batch, load(storage, batch).generation) is None
    except FileNotFoundError:
        return False
    except DamagedLog:
        return True


class PublishedBatches:
    """Tracks the first and the newest batch whose manifest counts, mostly without a listing.

    It asks for the batches after the newest known one by name. A listing finds the rest, such as batches behind a gap.
    It lists at first, when the first known batch is retired, and when a new cut appears. It also lists after `RELIST_S`
    without a new batch, then at growing intervals.
    """

    def __init__(self, storage: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._bounds: tuple[int, int] | None = None
        self.cuts = Cuts(storage)
        self._cuts_then = 0  # At the last listing; the publisher uses the same cuts.
        self._every_s, self._list_at = RELIST_S, 0.0

    def bounds(self) -> tuple[int, int] | None:
        """(first, newest), None if there is no manifest."""
        with self._lock:
            self.cuts.look()
            is_cut = len(self.cuts.known) != self._cuts_then
            if is_cut or self._bounds is None or not self._storage.exists(manifest_path(self._bounds[0])):
                return self._list_bounds()
            first, newest = self._bounds
            while self._storage.exists(manifest_path(newest + 1)) and _is_counted(self._storage, newest + 1, self.cuts):
                newest += 1
            if newest > self._bounds[1]:
                self._bounds = first, newest
                self._schedule_listing(RELIST_S)
            elif self._clock() >= self._list_at:
                self._list_bounds()
            return self._bounds

    def forget(self) -> None:
        """Has the next look list the batches: those that are known were replaced."""
        with self._lock:
            self._bounds = None

    def _list_bounds(self) -> tuple[int, int] | None:
        self._cuts_then = len(self.cuts.known)
        kept_from = 0
        with suppress(DamagedLog):  # a read of batches raises that error
            kept_from = retired_before(self._storage)
        # A crash may have come between the note and the deletion of the manifests.
        known, found = self._bounds, [each for each in batches(self._storage, self.cuts) if each >= kept_from]
        self._bounds = (found[0], found[-1]) if found else None
        # After months a log has millions of manifests, and a listing is slow.
        self._schedule_listing(RELIST_S if self._bounds != known else min(2 * self._every_s, RELIST_MOST_S))
        return self._bounds

    def _schedule_listing(self, after_s: float) -> None:
        self._every_s, self._list_at = after_s, self._clock() + after_s


def load_between(storage: Storage, first: int, last: int) -> Iterator[tuple[int, Manifest | DamagedLog | None]]:
    """The batches `first` to `last`, each with its manifest, its damage, or None for a missing manifest.

    A long range is limited to the batches that have a manifest. An object store is asked for several at once: a channel
    may have a day of batches for a reader that waits. It is asked for as many as the caller has taken, so that one that
    stops early costs few requests.
    """
    if last - first >= _LISTING_FROM:
        there = batches(storage)
        if not there:
            return
        first, last = max(first, there[0]), min(last, there[-1])
    yield from load_each(storage, range(max(first, 0), last + 1))


def load_back(storage: Storage, last: int, first: int) -> Iterator[tuple[int, Manifest | DamagedLog | None]]:
    """As `load_between`, from `last` back to `first`."""
    yield from load_each(storage, range(last, max(first, 0) - 1, -1))


def load_each(storage: Storage, wanted: Sequence[int]) -> Iterator[tuple[int, Manifest | DamagedLog | None]]:
    """As `load_between`, for any batches: a search for damage takes those that do not count, too."""
    most = reads_at_once(storage)
    if storage.can_append or len(wanted) <= 1:
        yield from (_load_or_damage(storage, batch) for batch in wanted)
        return
    taken = 0
    with ThreadPoolExecutor(min(most, len(wanted))) as pool:
        while taken < len(wanted):
            several = wanted[taken : taken + min(max(taken, 1), most * _ROUNDS)]
            yield from pool.map(partial(_load_or_damage, storage), several)
            taken += len(several)


def _load_or_damage(storage: Storage, batch: int) -> tuple[int, Manifest | DamagedLog | None]:
    try:
        return batch, load(storage, batch)
    except DamagedLog as damage:
        return batch, damage
    except FileNotFoundError:
        return batch, None


def last_within(storage: Storage, first: int, last: int, rows: int) -> int:
    """The last batch for which batches `first` to it have at most `rows` rows; at least `first`.

    A missing manifest counts as no rows. A batch with an unreadable manifest is the last: its reader gets the error.
    """
    found = 0
    for batch, manifest in load_between(storage, first, last):
        if isinstance(manifest, DamagedLog):
            return batch
        found += 0 if manifest is None else manifest.rows
        if found > rows:
            return max(first, batch - 1)
    return last


def retire(storage: Storage, before: int, end: float = math.inf) -> list[int]:
    """Records that output before `before` is retired, deletes its manifests, and returns their batches, oldest first.

    If time runs out (`delete_until`), some manifests are left for later.
    """
    retired = [batch for batch in batches(storage) if batch < before]
    if retired and before > retired_before(storage):
        restore_retirement(storage, before)
    return retired[: len(delete_until(storage, [manifest_path(batch) for batch in retired], end))]


def retired_before(storage: Storage) -> int:
    """The batch before which output is no longer kept; 0 if all is kept. Errors: `DamagedLog`."""
    if not storage.exists(RETIRED):
        return 0
    data = storage.read(RETIRED)
    old = _RETIRED_BEFORE_CHECKSUMS.fullmatch(data)
    if old:
        return int(old[1])
    fields, _ = decode_object(RETIRED, data, "note of what was let go")
    return int(fields["before"])


def damaged_retirement(storage: Storage) -> int | None:
    """If the retirement note is unreadable, the oldest batch with a manifest; else None.

    None, too, if no batch has a manifest: then the log has no evidence.
    """
    try:
        retired_before(storage)
    except DamagedLog:
        there, _ = readable_batches(storage)
        return there[0] if there else None
    return None


def restore_retirement(storage: Storage, before: int) -> None:
    """Rewrites the note that output is kept from `before` on."""
    storage.replace(RETIRED, encode_object({"before": before}))


def read_batch(offset: str) -> int:
    """The last batch of a stream's offset (`FORMAT.md`, section 3). `ValueError` if it is no such offset."""
    found = json.loads(offset)
    batch = found.get("batch") if isinstance(found, dict) else found
    if not isinstance(batch, int):
        raise ValueError(f"{offset!r} is no offset of a stream from a log")
    return batch


def read_bucket_end(offset: str) -> int | None:
    """The time before which a stream by buckets has given out all rows, ms since the epoch; None for another offset."""
    found = json.loads(offset)
    return int(found["until"]) if isinstance(found, dict) and "until" in found else None


def manifest_path(batch: int) -> str:
    """Path of a batch's manifest below the log's home."""
    if batch < 0:
        raise ValueError(f"batch {batch} is negative; batches count from 0")
    return f"{MANIFESTS}/{batch:0{_DIGITS}d}{_SUFFIX}"


def _encode_manifest(manifest: Manifest) -> bytes:
    fields = asdict(manifest)
    del fields["crc"]
    if manifest.piggyback is None:
        del fields["piggyback"]
    if not manifest.times:
        del fields["times"]
    if not manifest.other_sink:
        del fields["other_sink"]
    return encode_object(fields)


def _decode_manifest(path: str, data: bytes) -> Manifest:
    fields, crc = decode_object(path, data, "manifest")
    return Manifest(
        fields["batch"], tuple(fields["frames"]), fields["rows"], fields["schema_json"], fields["truncate"],
        fields["generation"], fields["wall_ms"], _parse_consumed(fields),
        fields.get("boundary_ms"), fields.get("piggyback"),
        {name: TimeRange(**times) for name, times in fields.get("times", {}).items()},
        bool(fields.get("other_sink", False)), crc,
    )  # fmt: skip


def _parse_consumed(fields: dict[str, Any]) -> tuple[Consumed, ...]:
    return tuple(Consumed(each["source"], each["end"], each.get("files")) for each in fields.get("consumed", ()))

