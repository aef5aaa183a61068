"""Calls of the reader: the views `output`, `windows` and `log` of a log, and the progress of its streams."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory, conf_of
from spark_cec.agent.output_cache import OutputCache
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.spool import Spool, write_rows
from spark_cec.checkpoint.columns import first_type_change
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.readers import (
    first_published_since,
    log_records,
    output_batches,
    output_rows,
    raise_loss,
    window_rows,
)
from spark_cec.errors import CecError, DamagedLog, LogLocationError, NotKept, OutputBegunAnew, OutputTakenBack
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.frame import Location
from spark_cec.log.home import absolute_home
from spark_cec.log.index import OutputEntry
from spark_cec.log.output_rollbacks import read_cuts
from spark_cec.log.readers import ReaderTrail
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import is_rolled_back, newest_allowed, read_attempts
from spark_cec.recovery.plan import Allows
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import parse_settings

_T = TypeVar("_T")

TRUSTED_S = 2.0
"""A stream checks that its log is still the same at most once in this time; it looks for batches ten times a second."""

EMPTY_WAIT_MS = 10_000
"""Batches without rows wait this long for one with rows. Then the stream reads them, so that the log may delete them.
"""

SPLIT_BYTES = 32 << 20
"""The stored bytes of one read task."""


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

    def __init__(self, logs: OpenLogs, spool: Spool, output_cache: OutputCache, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._spool = spool
        self._output_cache = output_cache
        self._trails: dict[tuple[str, str], ReaderTrail] = {}
        self._homes: dict[str, tuple[str, float]] = {}

    def _find_log_or_none(self, arguments: Mapping[str, Any]) -> OpenLog | None:
        """The log, for a look at its newest batch.

        None if its query has committed nothing and the reader says `may_wait`.
        """
        try:
            return self._find_log(arguments, TRUSTED_S)
        except LogLocationError:
            if arguments.get("may_wait") and committed_batch(open_storage(str(arguments["path"]))) < 0:
                return None
            raise

    def _find_log(self, arguments: Mapping[str, Any], trusted_s: float = 0.0) -> OpenLog:
        """The log; it is not checked again within `trusted_s` seconds."""
        path = str(arguments["path"])
        home, looked_at = self._homes.get(path, ("", -math.inf))
        now = time.monotonic()
        if now - looked_at >= trusted_s:
            query = QUERY.read(cec_directory(path))
            home = absolute_home(path, query["log_home"]) if query else path
            self._homes[path] = home, now
        log = self._logs.existing(home, parse_settings(conf_of(arguments)), trusted_s)
        if log is None:
            self._homes.pop(path, None)  # another reader of the channel may have got the same answer
            raise LogLocationError(
                path, "there is no log here: give the checkpoint of a query, or the `path` of its sink"
            )
        return log

    def schema(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the schemas (Spark's JSON) of the newest and the oldest batch; none before the first batch.

        Argument: `path`. With `may_wait`, a log that does not exist yet has none, too.
        """
        log = self._find_log_or_none(arguments)
        if log is None:
            return {"schemas": []}
        return {"schemas": _retry_once(lambda: _read_outer_schemas(log, bool(arguments.get("may_lose"))))}

    def offsets(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the first batch since a time, and the newest; -1 for none.

        Arguments: `path`, `starting_timestamp_ms` or None. With `after`, a batch, `last` ends the next batch of a
        stream that has read up to `after`. `up_to`, `max_batches` and `max_rows` bound it. With `may_lose`, it skips
        batches that are no longer kept.

        `newest` is the newest batch worth reading. `of` identifies the last batch beyond its number. `seen`, if given,
        identifies `after`; `checked` says that an earlier call compared it. With `may_wait`, a log that does not exist
        yet has no batches. `source` distinguishes the sources of one query.
        """
        log, since, after = (
            self._find_log_or_none(arguments),
            arguments.get("starting_timestamp_ms"),
            arguments.get("after"),
        )
        bounds = log.published.bounds() if log is not None else None
        kept_from = manifest.retired_before(log.storage) if log is not None and bounds is None else 0
        # A rollback may leave a log without any manifest: the earlier ones were deleted.
        newest = kept_from - 1 if bounds is None else bounds[1]
        if after is not None and int(after) > newest:
            raise _missing_batch(log, arguments, int(after), newest)
        if bounds is None:
            return {"first": kept_from, "last": newest, "newest": newest}
        assert log is not None
        if after is not None:
            if not arguments.get("checked") or log.published.cuts.known:
                _refuse_other_batch(log, arguments, int(after))
            settings, channel = parse_settings(conf_of(arguments)), str(arguments["path"])
            # Ask after the bounds are read: a batch published later may be behind a marker.
            up_to = self._protocols.end_of(settings, channel)
            last = _choose_end(log.storage, int(after), bounds, arguments, up_to)
            source = str(arguments.get("source", ""))
            self._protocols.will_read(settings, channel, log.storage, int(after), last, up_to, source)
            if not _is_worth_reading(log.storage, last + 1, newest):
                newest = last  # Else a reader that has read all rows would seem to lag.
            of = _identify_batch(log, last) if last > int(after) else None
            return {"first": bounds[0], "last": last, "newest": newest, "of": of}
        if since is None:
            return {"first": bounds[0], "last": newest, "newest": newest}
        first, newest = _retry_once(lambda: _find_since(log, int(since)))
        return {"first": first, "last": newest, "newest": newest}

    def note(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Records a stream's progress, so that the log can delete output that no reader needs.

        Arguments: `path`, `reader`, and one event. `begins`: the stream begins behind a batch, whatever an earlier
        stream of that name has read. `ends`: one of its batches ends with a batch of the log; Spark may run the newest
        `retained` ones again. Without either, its run is over.
        """
        key = str(arguments["path"]), str(arguments["reader"])
        trail = self._trails.get(key)
        if trail is None:
            log = self._find_log_or_none(arguments)
            if log is None:  # there is nothing to keep, either
                return {}
            trail = ReaderTrail(log.storage, log.log_id, key[1])
        if "begins" in arguments:
            trail.begin(int(arguments["begins"]))
        elif "ends" in arguments:
            again = self._protocols.read_again_from(parse_settings(conf_of(arguments)), key[0])
            trail.add(int(arguments["ends"]), int(arguments["retained"]), again)
        else:
            trail.save()
            self._trails.pop(key, None)
            return {}
        self._trails[key] = trail
        return {}

    def splits(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers a read's pieces of work, each a JSON object for `read_split`.

        Arguments: `path`, `view`, and bounds. Bounds for `output`: `first` and `last` batch; for `windows`: `operator`,
        `store`, `version` (or None). With `may_lose`, the answer's `lost` names the lost output, and the read skips it.
        `seen`, as in `offsets`, identifies the last batch at the first planning of the read. `schema` (Spark's JSON) is
        the reader's.
        """
        losses: list[CecError] = []
        view = arguments["view"]
        if view == "output" and int(arguments["last"]) < int(arguments["first"]):
            return {"splits": [], "lost": []}  # there may be no log yet
        log = self._find_log(arguments)
        # Read the manifests before the catalog, and no later ones: then the catalog has all their frames.
        published = _published_range(log) if view == "output" else range(0)
        log.catalog.refresh()
        if view == "output":
            if not arguments["whole"] and int(arguments["last"]) >= published.stop:
                raise _missing_batch(log, arguments, int(arguments["last"]), published.stop - 1)
            _refuse_other_batch(log, arguments, int(arguments["last"]))
            entries = output_batches(
                log.storage,
                log.catalog,
                int(arguments["first"]),
                min(int(arguments["last"]), published.stop - 1),
                bool(arguments["whole"]),
                published,
                losses.append if arguments.get("may_lose") else raise_loss,
                arguments.get("schema"),
                _is_case_sensitive(arguments),
            )
            begins = min((entry.meta.batch for entry in entries), default=0)
            pieces = [
                {"frames": piece, "begins": begins}
                for piece in _pack_frames((e.location, e.meta.frame_id.hex()) for e in entries)
            ]
        elif view == "log":
            found = [e for s in sorted(log.catalog.index.stores()) for e in log.catalog.index.commits(s, 0, 1 << 62)]
            pieces = [{"frames": piece} for piece in _pack_frames((e.location, "") for e in found if e.meta.records)]
        else:
            store, version = str(arguments["store"]), arguments.get("version")
            pieces = _list_window_pieces(log, int(arguments["operator"]), store, version)
        splits = [{"view": view, "home": log.home, **piece} for piece in pieces]
        return {"splits": splits, "lost": [str(each) for each in losses]}

    def read_split(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Answers the rows as an Arrow IPC stream in a spool file, which the caller deletes.

        Arguments: `split`, `columns`, `conf`. `may_lose` and `lost` as in `splits`.
        """
        split, losses = arguments["split"], list[CecError]()
        log = self._logs.existing(split["home"], parse_settings(conf_of(arguments)))
        if log is None:
            raise LogLocationError(split["home"], "the log is gone")
        if split["view"] == "windows":
            log.catalog.refresh()
            store = StoreId(int(split["operator"]), int(split["partition"]), split["store"])
            allows = _allowed_attempts(str(arguments["path"]), log)
            head = head_at(log.catalog.index, store, int(split["version"]), allows=allows)
            rows = window_rows(rebuild(log.storage, log.catalog.index, head))
        else:
            frames = [(bytes.fromhex(frame), Location(*place)) for *place, frame in split["frames"]]
            lost = losses.append if arguments.get("may_lose") else partial(_fail_to_read, log.storage, split)
            columns = arguments.get("columns")
            if split["view"] == "log":
                rows = log_records(log.storage, [location for _, location in frames], columns, lost)
            else:
                cached, exact = partial(self._output_cache.find, log.log_id), _is_case_sensitive(arguments)
                rows = output_rows(log.storage, dict(frames), columns, cached, lost, exact)
        return {"spool": self._write_spool(rows), "rows": rows.num_rows, "lost": [str(each) for each in losses]}

    def _write_spool(self, rows: pa.Table) -> str | None:
        if not rows.num_rows:
            return None
        path = self._spool.new_file(rows.nbytes)
        write_rows(path, rows)
        return path


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


def _is_case_sensitive(arguments: Mapping[str, Any]) -> bool:
    """Whether the reader's session distinguishes column names by case."""
    return conf_of(arguments).get("spark.sql.caseSensitive") == "true"


def _fail_to_read(storage: Storage, split: Mapping[str, Any], lost: CecError) -> NoReturn:
    """Raises `NotKept` if the batches were deleted since the read was planned, else the error."""
    kept_from = manifest.retired_before(storage)
    begins = int(split.get("begins", kept_from))
    raise NotKept(begins, kept_from - 1) if begins < kept_from else lost


def _find_since(log: OpenLog, wall_ms: int) -> tuple[int, int]:
    """The first batch published since then, and the newest; the log must have a batch."""
    batches = manifest.batches(log.storage)
    log.catalog.refresh()
    hint = next((e.meta.batch for e in log.catalog.index.at(wall_ms) if isinstance(e, OutputEntry)), None)
    return first_published_since(log.storage, batches, wall_ms, hint), batches[-1]


def _published_range(log: OpenLog) -> range:
    bounds = log.published.bounds()
    if bounds is None:
        kept_from = manifest.retired_before(log.storage)
        return range(kept_from, kept_from)
    return range(bounds[0], bounds[1] + 1)


def _choose_end(
    storage: Storage, after: int, bounds: tuple[int, int], arguments: Mapping[str, Any], up_to: int | None
) -> int:
    # Else a bound would count batches that are no longer kept.
    begin = max(after, bounds[0] - 1) if arguments.get("may_lose") else after
    last = min(bounds[1], int(arguments.get("up_to", bounds[1])), bounds[1] if up_to is None else up_to)
    if not _is_worth_reading(storage, begin + 1, last):
        return begin
    empty = _last_empty(storage, begin, last)  # batches without rows come along, outside the bounds
    if "max_batches" in arguments:
        last = min(last, empty + int(arguments["max_batches"]))
    if "max_rows" in arguments:
        last = manifest.last_within(storage, empty + 1, last, int(arguments["max_rows"]))
    changed = first_type_change(_read_schemas(storage, begin + 1, last), exact=_is_case_sensitive(arguments))
    if changed is not None:  # earlier batches are read with the types that they were written with
        last = changed - 1
    return max(begin, last)


def _last_empty(storage: Storage, begin: int, last: int) -> int:
    """The last of the batches without rows right behind `begin`; `begin` if there is none."""
    for batch, each in manifest.load_between(storage, begin + 1, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return batch - 1
    return last


def _read_schemas(storage: Storage, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Batches with rows, and their schemas."""
    for batch, each in manifest.load_between(storage, first, last):
        if isinstance(each, manifest.Manifest) and each.frames:
            yield batch, each.schema_json


def _is_worth_reading(storage: Storage, first: int, last: int) -> bool:
    """Whether these batches deserve a batch of the reader: batches without rows wait for a while.

    A flow that reads its own channel answers each batch with one of its own. Without the wait it would never rest.
    """
    oldest_ms = None
    for _, each in manifest.load_between(storage, first, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return True
        oldest_ms = oldest_ms or each.wall_ms
    # A writer's clock may be ahead. Then its batches must not seem new for that long.
    return oldest_ms is not None and abs(time.time() * 1000 - oldest_ms) > EMPTY_WAIT_MS


def _identify_batch(log: OpenLog, batch: int) -> str | None:
    """An identity for a batch beyond its number; without its second part if the manifest is missing or damaged.

    A manifest is missing if the batch is no longer kept. If it is damaged, the read of its rows raises the error.
    """
    if batch < 0:
        return None
    try:
        return f"{log.log_id[:8]}-{manifest.load(log.storage, batch).crc:08x}"
    except (FileNotFoundError, DamagedLog):
        return f"{log.log_id[:8]}-"


def _refuse_other_batch(log: OpenLog, arguments: Mapping[str, Any], batch: int) -> None:
    """Raises an error if the stream's `seen` batch differs from the log's batch of that number."""
    seen = arguments.get("seen")
    there = _identify_batch(log, batch) if seen else None
    if seen and there and not seen.startswith(there) and not there.startswith(seen):
        raise _missing_batch(log, arguments, batch, batch)


def _missing_batch(log: OpenLog | None, arguments: Mapping[str, Any], batch: int, newest: int) -> CecError:
    """Explains a missing batch: a rollback took it back, or the output is another one."""
    for cut in reversed(log.published.cuts.known) if log is not None else ():
        if cut.after < batch:
            return OutputTakenBack(str(arguments["path"]), batch, cut.after, cut.generation)
    return OutputBegunAnew(str(arguments["path"]), batch, newest)


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
