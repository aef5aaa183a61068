"""Calls of the reader: the views `output`, `windows` and `log` of a log, and the progress of its streams."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.bucket_reads import describe_buckets, may_have_rows, read_floors, take_bucket_rows
from spark_cec.agent.loads import Loads
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory
from spark_cec.agent.messages import (
    BucketEndRequest,
    Done,
    NoteReaderRequest,
    ReadSplitAnswer,
    ReadSplitRequest,
    ViewOffsetsAnswer,
    ViewOffsetsRequest,
    ViewSchemaAnswer,
    ViewSchemaRequest,
    ViewSplitsAnswer,
    ViewSplitsRequest,
)
from spark_cec.agent.output_cache import OutputCache
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.spool import Spool
from spark_cec.availability.epochs import find_forked
from spark_cec.checkpoint.columns import first_type_change
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.readers import (
    concat_tables,
    first_published_since,
    log_records,
    output_batches,
    output_tables,
    raise_loss,
    window_rows,
)
from spark_cec.errors import CecError, DamagedLog, LogLocationError, NotKept, OutputBegunAnew, OutputTakenBack
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.boundary import Boundary, read_boundary, still_holds
from spark_cec.log.frame import Location
from spark_cec.log.home import absolute_home
from spark_cec.log.index import OutputEntry
from spark_cec.log.late import list_late, read_late
from spark_cec.log.output_rollbacks import Cut, read_cuts
from spark_cec.log.readers import ReaderTrail
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import Allows, is_rolled_back, newest_allowed, read_attempts
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import parse_settings

_T = TypeVar("_T")

TRUSTED_S = 2.0
"""A stream checks that its log is still the same at most once in this time; it looks for batches ten times a second."""

EMPTY_WAIT_MS = 10_000
"""Batches without rows wait this long for one with rows, or for a step of `sources.quiet`. Then the stream reads them,
so that the log may delete them, and so that it knows a boundary behind them.
"""

LOOK_FOR_BOUNDARY_S = 5.0
"""The time between two looks for a boundary on an object store, if nobody needs it sooner."""

SPLIT_BYTES = 32 << 20
"""The stored bytes of one read task."""


class _Look(Protocol):
    """The fields of a request that looks into a log."""

    @property
    def path(self) -> str: ...

    @property
    def conf(self) -> dict[str, str]: ...


class _PatientLook(_Look, Protocol):
    """One that may wait for a log that does not exist yet."""

    @property
    def may_wait(self) -> bool: ...


def _allowed_attempts(path: str, log: OpenLog) -> Allows:
    """Tells which attempts may be the committed ones.

    If `path` is a log's home and no checkpoint, all attempts count except those that a rollback took back.
    """
    own = cec_directory(path)
    if QUERY.read(own) is not None:
        return read_attempts(open_storage(path), own, log.storage).allows_read
    cuts = read_cuts(log.storage).known
    return lambda entry: not is_rolled_back(entry, cuts)


class ReaderCalls:
    """The calls of `spark.read.format("cec")` and `readStream`. They never write to the log's segments."""

    def __init__(
        self, logs: OpenLogs, spool: Spool, output_cache: OutputCache, protocols: ProtocolCalls, loads: Loads
    ) -> None:
        self._logs = logs
        self._loads = loads
        self._protocols = protocols
        self._spool = spool
        self._output_cache = output_cache
        self._trails: dict[tuple[str, str], ReaderTrail] = {}
        self._homes: dict[str, tuple[str, float]] = {}
        self._boundaries: dict[str, tuple[Boundary | None, float]] = {}
        self._held: dict[str, tuple[Boundary, str, int]] = {}

    def find_log_or_none(self, request: _PatientLook) -> OpenLog | None:
        """The log, for a look at its newest batch.

        None if its query has committed nothing and the reader says `may_wait`.
        """
        try:
            return self._find_log(request, TRUSTED_S)
        except LogLocationError:
            if request.may_wait and committed_batch(open_storage(request.path)) < 0:
                return None
            raise

    def _find_log(self, request: _Look, trusted_s: float = 0.0) -> OpenLog:
        """The log; it is not checked again within `trusted_s` seconds."""
        path = request.path
        home, looked_at = self._homes.get(path, ("", -math.inf))
        now = time.monotonic()
        if now - looked_at >= trusted_s:
            query = QUERY.read(cec_directory(path))
            home = absolute_home(path, query["log_home"]) if query else path
            self._homes[path] = home, now
        log = self._logs.existing(home, parse_settings(request.conf), trusted_s)
        if log is None:
            self._homes.pop(path, None)  # another reader of the channel may have got the same answer
            raise LogLocationError(
                path, "there is no log here: give the checkpoint of a query, or the `path` of its sink"
            )
        return log

    def schema(self, request: ViewSchemaRequest) -> ViewSchemaAnswer:
        """Answers the schemas (Spark's JSON) of the newest and the oldest batch; none before the first batch."""
        log = self.find_log_or_none(request)
        if log is None:
            return ViewSchemaAnswer(schemas=())
        return ViewSchemaAnswer(schemas=tuple(_retry_once(lambda: _read_outer_schemas(log, request.may_lose))))

    def offsets(self, request: ViewOffsetsRequest) -> ViewOffsetsAnswer:
        """Answers the first batch since a time, and the newest; -1 for none. With `after`, the end of a next batch."""
        log, since, after = self.find_log_or_none(request), request.starting_timestamp_ms, request.after
        # Before the bounds: the batches of the boundary are among them.
        is_asked = after is not None and parse_settings(request.conf).quiet_inputs_ms is not None
        boundary = self.read_boundary(log) if log is not None and is_asked else None
        bounds = log.published.bounds() if log is not None else None
        kept_from = manifest.retired_before(log.storage) if log is not None and bounds is None else 0
        # A rollback may leave a log without any manifest: the earlier ones were deleted.
        newest = kept_from - 1 if bounds is None else bounds[1]
        if after is not None and after > newest:
            raise missing_batch(log, request, after, newest)
        settings, channel = parse_settings(request.conf), request.path
        if bounds is None:
            if after is not None:  # A channel without a batch has markers, too.
                up_to = self._protocols.end_of(settings, channel)
                storage = None if log is None else log.storage
                self._protocols.will_read(settings, channel, storage, after, after, up_to, request.source)
            said = _say(boundary if boundary is not None and boundary.batch < 0 else None)
            return ViewOffsetsAnswer(first=kept_from, last=newest, newest=newest, **said)
        assert log is not None
        if after is not None:
            refuse_other_log(log, request, after)
            if not request.checked or log.published.cuts.known:
                refuse_other_batch(log, request, after)
            # Ask after the bounds are read: a batch published later may be behind a marker.
            up_to = self._protocols.end_of(settings, channel)
            wait_ms = min(EMPTY_WAIT_MS, settings.quiet_inputs_ms or EMPTY_WAIT_MS)
            last = _choose_end(log.storage, after, bounds, request, up_to, wait_ms)
            self._protocols.will_read(settings, channel, log.storage, after, last, up_to, request.source)
            if not _is_worth_reading(log.storage, last + 1, newest, wait_ms):
                newest = last  # Else a reader that has read all rows would seem to lag.
            of = identify_end(log, request, last) if last > after else None
            has_read_all = last == after and up_to is None and request.up_to is None
            # What the stream has taken in, its offset must name: then it notices a rollback of the boundary's batch.
            holds = boundary is not None and boundary.batch <= after and self.holds(log, boundary)
            said = _say(boundary if has_read_all and holds else None)
            return ViewOffsetsAnswer(first=bounds[0], last=last, newest=newest, of=of, **said)
        if since is None:
            return ViewOffsetsAnswer(first=bounds[0], last=newest, newest=newest)
        first, newest = _retry_once(lambda: _find_since(log, since))
        return ViewOffsetsAnswer(first=first, last=newest, newest=newest)

    def _is_in_epoch(self, request: ViewSplitsRequest) -> bool:
        with suppress(LogLocationError):  # the epoch has no log yet
            return has_batch(self._find_log(request), request.seen, request.last)
        return False

    def read_boundary(self, log: OpenLog, every_s: float = LOOK_FOR_BOUNDARY_S) -> Boundary | None:
        """The boundary of the output; an object store is asked so often."""
        now = time.monotonic()
        known, asked = self._boundaries.get(log.home, (None, -math.inf))
        if now - asked >= (0.0 if log.storage.can_append else every_s):
            known, asked = read_boundary(log.storage), now
            self._boundaries[log.home] = known, asked
        return known

    def holds(self, log: OpenLog, boundary: Boundary) -> bool:
        """Whether the boundary's batch is the one that is there. The bounds of the output were read just before.

        Only a rollback makes another batch of it, so each boundary is checked once for each number of cuts.
        """
        known = boundary, log.log_id, len(log.published.cuts.known)
        if self._held.get(log.home) == known:
            return True
        found = still_holds(log.storage, boundary)
        if found:
            self._held[log.home] = known
        return found

    def forget_trails(self, path: str) -> None:
        """Forgets how far the streams are that read this channel: its batches are others now. Notes stay."""
        for key in [each for each in self._trails if each[0] == path]:
            del self._trails[key]

    def note(self, request: NoteReaderRequest) -> Done:
        """Records a stream's progress, so that the log can delete output that no reader needs."""
        key = request.path, request.reader
        trail = self._trails.get(key)
        if trail is None:
            log = self.find_log_or_none(request)
            if log is None:  # there is nothing to keep, either
                return Done()
            trail = ReaderTrail(log.storage, log.log_id, key[1])
        if request.begins is not None:
            trail.begin(request.begins)
        elif request.resumes is not None:
            trail.resume(request.resumes)
        elif request.ends is not None:
            again = self._protocols.read_again_from(parse_settings(request.conf), key[0])
            trail.add(request.ends, request.retained, again)
        else:
            trail.save()
            self._trails.pop(key, None)
            return Done()
        self._trails[key] = trail
        return Done()

    def splits(self, request: ViewSplitsRequest) -> ViewSplitsAnswer:
        """Answers a read's pieces of work, each a JSON object for `read_split`."""
        losses, view = list[CecError](), request.view
        if view == "output" and request.last < request.first:
            return ViewSplitsAnswer(splits=(), lost=())  # there may be no log yet
        if request.or_flow and not self._is_in_epoch(request):
            request = msgspec.structs.replace(request, path=find_forked(request.path) or request.path)
        log = self._find_log(request)
        if view == "output":
            pieces, losses = _plan_output(log, request)
        elif view == "late":
            pieces = [{"path": each} for each in list_late(log.storage, request.reader or "")]
        elif view == "log":
            log.catalog.refresh()
            found = [e for s in sorted(log.catalog.index.stores()) for e in log.catalog.index.commits(s, 0, 1 << 62)]
            pieces = [{"frames": piece} for piece in _pack_frames((e.location, "") for e in found if e.meta.records)]
        else:
            log.catalog.refresh()
            pieces = _list_window_pieces(log, request.operator, request.store, request.version)
        splits = tuple({"view": view, "home": log.home, **piece} for piece in pieces)
        return ViewSplitsAnswer(splits=splits, lost=tuple(str(each) for each in losses))

    def read_split(self, request: ReadSplitRequest) -> ReadSplitAnswer:
        """Answers the rows as an Arrow IPC stream in a spool file, which the caller deletes."""
        split, losses = request.split, list[CecError]()
        log = self._logs.existing(split["home"], parse_settings(request.conf))
        if log is None:
            raise LogLocationError(split["home"], "the log is gone")
        if split["view"] == "windows":
            log.catalog.refresh()
            store = StoreId(int(split["operator"]), int(split["partition"]), split["store"])
            allows = _allowed_attempts(request.path, log)
            version = int(split["version"])
            head = log.catalog.ask_twice(lambda: head_at(log.catalog.index, store, version, allows=allows))
            with self._loads.taking_turn(log, head, request.conf):
                return self._give(window_rows(rebuild(log.storage, log.catalog.index, head)), losses)
        if split["view"] == "late":
            rows = concat_tables([read_late(log.storage, split["path"])], request.columns, is_case_sensitive(request))
        else:
            frames = [(bytes.fromhex(frame), Location(*place)) for *place, frame in split["frames"]]
            lost = losses.append if request.may_lose else partial(_fail_to_read, log.storage, split)
            columns = request.columns
            if split["view"] == "log":
                rows = log_records(log.storage, [location for _, location in frames], columns, lost)
            else:
                cached, exact = partial(self._output_cache.find, log.log_id), is_case_sensitive(request)
                tables = output_tables(log.storage, dict(frames), cached, lost)
                if "buckets" in split:
                    rows = take_bucket_rows(log.storage, split, tables, columns, exact=exact)
                else:
                    rows = concat_tables(list(tables.values()), columns, exact)
        return self._give(rows, losses)

    def _give(self, rows: pa.Table, losses: Sequence[CecError]) -> ReadSplitAnswer:
        spool = self._spool.write(rows) if rows.num_rows else None
        return ReadSplitAnswer(spool=spool, rows=rows.num_rows, lost=tuple(str(each) for each in losses))


def _retry_once(look: Callable[[], _T]) -> _T:
    """The result of `look`; tries once more if a manifest is deleted or taken back meanwhile."""
    try:
        return look()
    except FileNotFoundError:
        return look()


def _read_outer_schemas(log: OpenLog, may_lose: bool) -> list[str]:
    bounds = log.published.bounds()
    if bounds is None:
        return []
    first, last = bounds
    if not may_lose:
        return [manifest.load(log.storage, batch).schema_json for batch in (last, first)]
    sound = (_first_readable(log.storage, batches) for batches in (range(last, first - 1, -1), range(first, last + 1)))
    return [each.schema_json for each in sound if each is not None]


def _first_readable(storage: Storage, batches: Iterable[int]) -> manifest.Manifest | None:
    """The first readable manifest in the given order."""
    for batch in batches:
        with suppress(DamagedLog):
            return manifest.load(storage, batch)
    return None


def is_case_sensitive(request: _Look) -> bool:
    """Whether the reader's session distinguishes column names by case."""
    return request.conf.get("spark.sql.caseSensitive") == "true"


def _fail_to_read(storage: Storage, split: Mapping[str, Any], lost: CecError) -> NoReturn:
    """Raises `NotKept` if the batches were deleted since the read was planned, else the error."""
    kept_from = manifest.retired_before(storage)
    begins = int(split.get("begins", kept_from))
    raise NotKept(begins, kept_from - 1) if begins < kept_from else lost


def _find_since(log: OpenLog, wall_ms: int) -> tuple[int, int]:
    """The first batch published since then, and the newest, which is the one before if there is none."""
    kept_from = manifest.retired_before(log.storage)
    batches = [batch for batch in manifest.batches(log.storage) if batch >= kept_from]  # as `PublishedBatches` does
    if not batches:  # A rollback has taken all back since the bounds were read.
        return kept_from, kept_from - 1
    log.catalog.refresh()
    hint = next((e.meta.batch for e in log.catalog.index.at(wall_ms) if isinstance(e, OutputEntry)), None)
    return first_published_since(log.storage, batches, wall_ms, hint), batches[-1]


def _plan_output(log: OpenLog, request: ViewSplitsRequest) -> tuple[list[dict[str, Any]], list[CecError]]:
    """The pieces of a read of the output, and the losses.

    If a rollback comes meanwhile, plans again: the manifests that it deletes are not lost, and later ones with the same
    numbers do not follow the earlier ones. A stream without losses need not look for one: its next look finds it.
    """
    while True:
        cuts, published = _look_at_output(log)
        losses: list[CecError] = []
        try:
            pieces = _list_output_pieces(log, request, published, losses)
            if not (request.whole or losses) or not _has_new_cut(log, cuts):
                return pieces, losses
        except CecError:
            if not _has_new_cut(log, cuts):
                raise


def _look_at_output(log: OpenLog) -> tuple[Sequence[Cut], range]:
    """The cuts, and the batches with a manifest that counts under them."""
    while True:
        cuts = log.published.cuts.known
        published = _published_range(log)
        if log.published.cuts.known == cuts:
            return cuts, published


def _has_new_cut(log: OpenLog, known: Sequence[Cut]) -> bool:
    log.published.cuts.look()
    return log.published.cuts.known != known


def _list_output_pieces(
    log: OpenLog, request: ViewSplitsRequest, published: range, losses: list[CecError]
) -> list[dict[str, Any]]:
    """The pieces of a read of the output. `published`: as in `output_batches`; `losses` gets those that it may have."""
    log.catalog.refresh()  # After the look at the manifests, and no later ones are read: so it has all their frames.
    if not request.whole and request.last >= published.stop:
        raise missing_batch(log, request, request.last, published.stop - 1)
    refuse_other_batch(log, request, request.last)
    exact = is_case_sensitive(request)
    entries = output_batches(
        log.storage,
        log.catalog,
        request.first,
        min(request.last, published.stop - 1),
        request.whole,
        published,
        losses.append if request.may_lose else raise_loss,
        request.schema,
        exact,
        partial(may_have_rows, request.buckets, exact=exact),
    )
    begins = min((entry.meta.batch for entry in entries), default=0)
    pieces: list[dict[str, Any]] = [
        {"frames": piece, "begins": begins}
        for piece in _pack_frames((e.location, e.meta.frame_id.hex()) for e in entries)
    ]
    if request.buckets is None:
        return pieces
    floors = read_floors(log.storage, request.first, request.last, request.buckets, exact=exact)
    return describe_buckets(pieces, entries, request.buckets, floors)


def _published_range(log: OpenLog) -> range:
    bounds = log.published.bounds()
    if bounds is None:
        kept_from = manifest.retired_before(log.storage)
        return range(kept_from, kept_from)
    return range(bounds[0], bounds[1] + 1)


def _choose_end(
    storage: Storage,
    after: int,
    bounds: tuple[int, int],
    request: ViewOffsetsRequest,
    up_to: int | None,
    wait_ms: float,
) -> int:
    # Else a bound would count batches that are no longer kept.
    begin = max(after, bounds[0] - 1) if request.may_lose else after
    last = min(bound for bound in (bounds[1], request.up_to, up_to) if bound is not None)
    if not _is_worth_reading(storage, begin + 1, last, wait_ms):
        return begin
    empty = _last_empty(storage, begin, last)  # batches without rows come along, outside the bounds
    if request.max_batches is not None:
        last = min(last, empty + request.max_batches)
    if request.max_rows is not None:
        last = manifest.last_within(storage, empty + 1, last, request.max_rows)
    changed = first_type_change(_read_schemas(storage, begin + 1, last), exact=is_case_sensitive(request))
    if changed is not None:  # earlier batches are read with the types that they were written with
        last = changed - 1
    return max(begin, last)


def _last_empty(storage: Storage, begin: int, last: int) -> int:
    """The last of the batches without rows right after `begin`; `begin` if there is none."""
    for batch, each in manifest.load_between(storage, begin + 1, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return batch - 1
    return last


def _read_schemas(storage: Storage, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Batches with rows, and their schemas."""
    for batch, each in manifest.load_between(storage, first, last):
        if isinstance(each, manifest.Manifest) and each.frames:
            yield batch, each.schema_json


def _is_worth_reading(storage: Storage, first: int, last: int, wait_ms: float) -> bool:
    """Whether these batches deserve a batch of the reader: batches without rows wait for `wait_ms`.

    A flow that reads its own channel answers each batch with one of its own. Without the wait it would never rest.
    """
    oldest_ms = None
    for _, each in manifest.load_between(storage, first, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return True
        oldest_ms = oldest_ms or each.wall_ms
    # A writer's clock may be ahead. Then its batches must not seem new for that long.
    return oldest_ms is not None and abs(time.time() * 1000 - oldest_ms) > wait_ms


def _say(boundary: Boundary | None) -> dict[str, Any]:
    """The fields of an answer for a boundary that holds."""
    return {} if boundary is None else {"quiet_ms": boundary.quiet_ms, "columns": dict(boundary.columns)}


def identify_batch(log: OpenLog, batch: int) -> str | None:
    """An identity for a batch beyond its number; without its second part if the manifest is missing or damaged.

    A manifest is missing if the batch is no longer kept. If it is damaged, the read of its rows raises the error.
    """
    if batch < 0:
        return None
    try:
        return f"{log.log_id[:8]}-{manifest.load(log.storage, batch).crc:08x}"
    except (FileNotFoundError, DamagedLog):
        return f"{log.log_id[:8]}-"


def identify_end(log: OpenLog, request: ViewOffsetsRequest | BucketEndRequest, batch: int) -> str | None:
    """The identity of the batch with which a stream's next batch ends.

    Raises `OutputTakenBack` if a rollback took the batch back after its number was read: an offset without an identity
    would fit each batch that has the number later.
    """
    of = identify_batch(log, batch)
    if of is None or not of.endswith("-"):
        return of
    bounds = log.published.bounds()
    newest = -1 if bounds is None else bounds[1]
    if batch > newest:
        raise missing_batch(log, request, batch, newest)
    return identify_batch(log, batch)


def refuse_other_log(log: OpenLog, request: ViewOffsetsRequest | BucketEndRequest, batch: int) -> None:
    """Raises an error if the stream's `seen` batch is of another log. It asks the storage nothing."""
    if request.seen and not request.seen.startswith(log.log_id[:8]):
        raise missing_batch(log, request, batch, batch)


def refuse_other_batch(
    log: OpenLog, request: ViewOffsetsRequest | ViewSplitsRequest | BucketEndRequest, batch: int
) -> None:
    """Raises an error if the stream's `seen` batch differs from the log's batch of that number."""
    if is_other_batch(log, request.seen, batch):
        raise missing_batch(log, request, batch, batch)


def has_batch(log: OpenLog | None, seen: str | None, batch: int) -> bool:
    """Whether a channel has a batch, and it is the one that a stream has seen, by its identity."""
    bounds = None if log is None else log.published.bounds()
    return log is not None and bounds is not None and bounds[1] >= batch and not is_other_batch(log, seen, batch)


def is_other_batch(log: OpenLog, seen: str | None, batch: int) -> bool:
    """Whether the batch that a stream has seen, by its identity, differs from the log's batch of that number."""
    there = identify_batch(log, batch) if seen else None
    return bool(seen and there and not seen.startswith(there) and not there.startswith(seen))


def missing_batch(log: OpenLog | None, request: _Look, batch: int, newest: int) -> CecError:
    """Explains a missing batch: a rollback took it back, or the output is another one."""
    for cut in reversed(log.published.cuts.known) if log is not None else ():
        if cut.after < batch:
            return OutputTakenBack(request.path, batch, cut.after, cut.generation)
    return OutputBegunAnew(request.path, batch, newest)


def _pack_frames(frames: Iterable[tuple[Location, str]]) -> list[list[Sequence[Any]]]:
    """Places of frames with their ids, in pieces of about `SPLIT_BYTES`."""
    pieces: list[list[Sequence[Any]]] = []
    stored = SPLIT_BYTES
    for location, frame in frames:
        if stored >= SPLIT_BYTES:
            pieces.append([])
            stored = 0
        pieces[-1].append([location.segment, location.offset, location.length, frame])
        stored += location.length
    return pieces


def _list_window_pieces(log: OpenLog, operator: int, name: str, version: int | None) -> list[dict[str, Any]]:
    index, cuts = log.catalog.index, read_cuts(log.storage).known
    stores = [store for store in sorted(index.stores()) if store.operator == operator and store.name == name]
    if not stores:
        known = sorted({f"operator {s.operator} store {s.name}" for s in index.stores()})
        raise LogLocationError(
            log.home, f"no store {name!r} of operator {operator}; there are: {', '.join(known) or 'none'}"
        )
    # An attempt that was not committed still shows that a later version exists, whose committed attempt may be lost.
    heads = [newest_allowed(index, store, lambda entry: not is_rolled_back(entry, cuts)) for store in stores]
    newest = min(head.meta.version if head is not None else 0 for head in heads)
    at = newest if version is None else int(version)
    if not 0 < at <= newest:
        raise LogLocationError(log.home, f"it has no version {at} of all partitions: give one from 1 to {newest}")
    return [{"operator": s.operator, "partition": s.partition, "store": s.name, "version": at} for s in stores]
