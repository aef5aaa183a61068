"""Calls of the reader: the views `output`, `windows` and `log` of a log, and how far its streams are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs, cec_directory, conf_of
from spark_cec.agent.spool import Spool, write_rows
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.checkpoint.views import fail, first_published_since, log_records, output_batches, window_rows
from spark_cec.errors import CecError, LogLocationError, OutputBegunAnew
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.frame import Location
from spark_cec.log.home import absolute_home
from spark_cec.log.index import OutputEntry
from spark_cec.log.readers import begin_reader, note_reader
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import read_attempts
from spark_cec.recovery.plan import Allows
from spark_cec.recovery.query_file import read_query
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import parse_settings

SPLIT_BYTES = 32 << 20
"""Stored bytes that one read task takes."""


def _committed(path: str) -> Allows:
    """Which attempts may be committed ones, where `path` is a query's checkpoint; all, where it is a log's home."""
    own = cec_directory(path)
    return read_attempts(open_storage(path), own).allows_read if read_query(own) is not None else lambda _: True


class ReaderCalls:
    """What `spark.read.format("cec")` and `readStream` ask for. Reading never writes to the log, but beside it."""

    def __init__(self, logs: OpenLogs, spool: Spool) -> None:
        self._logs = logs
        self._spool = spool

    def _log_or_none(self, arguments: Mapping[str, Any]) -> OpenLog | None:
        """None where the query that will write the log has committed nothing, and the reader says that it waits."""
        try:
            return self._log(arguments)
        except LogLocationError:
            if arguments.get("may_wait") and committed_batch(open_storage(str(arguments["path"]))) < 0:
                return None
            raise

    def _log(self, arguments: Mapping[str, Any]) -> OpenLog:
        path = str(arguments["path"])
        query = read_query(cec_directory(path))
        home = absolute_home(path, query["log_home"]) if query else path
        log = self._logs.existing(home, parse_settings(conf_of(arguments)))
        if log is None:
            raise LogLocationError(
                path, "there is no log here: give the checkpoint of a query, or the `path` of its sink"
            )
        log.catalog.refresh()
        return log

    def schema(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`: the schemas (Spark's JSON) of the newest batch, and of the oldest; none before the first one.

        With `may_wait` a log that is not there yet has none, too.
        """
        log = self._log_or_none(arguments)
        if log is None:
            return {"schemas": []}
        bounds = log.published.bounds() or ()
        return {"schemas": [manifest.load(log.storage, batch).schema_json for batch in reversed(bounds)]}

    def offsets(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`, `starting_timestamp_ms` or None: the first batch since then, and the newest; -1 for none.

        With `after`, a batch, the last is the one with which a stream that has read up to there ends its next batch:
        `up_to`, `max_batches` and `max_rows` are its bounds, and with `may_lose` it passes over what is not kept.
        With `may_wait` a log that is not there yet has none, too.
        """
        log, since, after = self._log_or_none(arguments), arguments.get("starting_timestamp_ms"), arguments.get("after")
        bounds = log.published.bounds() if log is not None else None
        newest = -1 if bounds is None else bounds[1]
        if after is not None and int(after) > newest:
            raise OutputBegunAnew(str(arguments["path"]), int(after), newest)
        if bounds is None:
            return {"first": 0, "last": -1}
        assert log is not None
        if after is not None:
            return {"first": bounds[0], "last": _end_after(log.storage, int(after), bounds, arguments)}
        if since is None:
            return {"first": bounds[0], "last": bounds[1]}
        batches = manifest.batches(log.storage)
        hint = next((e.meta.batch for e in log.catalog.index.at(int(since)) if isinstance(e, OutputEntry)), None)
        return {"first": first_published_since(log.storage, batches, int(since), hint), "last": batches[-1]}

    def note(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`, `reader`, `batch`: the stream of that name never asks for this batch again, nor for older ones.

        With `anew` it has just begun behind that batch, whatever one of that name has noted before.
        """
        log = self._log_or_none(arguments)
        if log is not None:  # else there is nothing to keep, either
            note = begin_reader if arguments.get("anew") else note_reader
            note(log.storage, str(arguments["reader"]), int(arguments["batch"]))
        return {}

    def splits(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`, `view`, and its bounds: the pieces of work of a read, each a JSON object for `read_split`.

        Bounds: `first`, `last` batch for `output`; `operator`, `store`, `version` (or None) for `windows`. With
        `may_lose` output that is lost is named in the answer's `lost`, and not read.
        """
        told: list[CecError] = []
        log = self._log(arguments)
        view = arguments["view"]
        if view == "output":
            published = _published(log)
            if not arguments["whole"] and int(arguments["last"]) >= published.stop:
                raise OutputBegunAnew(str(arguments["path"]), int(arguments["last"]), published.stop - 1)
            entries = output_batches(
                log.storage,
                log.catalog,
                int(arguments["first"]),
                int(arguments["last"]),
                bool(arguments["whole"]),
                published,
                told.append if arguments.get("may_lose") else fail,
            )
            pieces = [{"frames": piece} for piece in _pack(e.location for e in entries)]
        elif view == "log":
            found = [e for s in sorted(log.catalog.index.stores()) for e in log.catalog.index.commits(s, 0, 1 << 62)]
            pieces = [{"frames": piece} for piece in _pack(e.location for e in found if e.meta.records)]
        else:
            pieces = _window_pieces(log, int(arguments["operator"]), str(arguments["store"]), arguments.get("version"))
        splits = [{"view": view, "home": log.home, **piece} for piece in pieces]
        return {"splits": splits, "lost": [str(each) for each in told]}

    def read_split(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`split`, `columns`, `conf`: the rows as an Arrow IPC stream in a spool file, which the caller removes.

        `may_lose` and `lost` as in `splits`.
        """
        split, told = arguments["split"], list[CecError]()
        log = self._logs.existing(split["home"], parse_settings(conf_of(arguments)))
        if log is None:
            raise LogLocationError(split["home"], "the log is gone")
        if split["view"] == "windows":
            log.catalog.refresh()
            store = StoreId(int(split["operator"]), int(split["partition"]), split["store"])
            allows = _committed(str(arguments["path"]))
            head = head_at(log.catalog.index, store, int(split["version"]), allows=allows)
            rows = window_rows(rebuild(log.storage, log.catalog.index, head))
        else:
            locations = [Location(segment, offset, length) for segment, offset, length in split["frames"]]
            lost = told.append if arguments.get("may_lose") else fail
            rows = log_records(log.storage, locations, arguments.get("columns"), split["view"], lost)
        return {"spool": self._write(rows), "rows": rows.num_rows, "lost": [str(each) for each in told]}

    def _write(self, rows: pa.Table) -> str | None:
        if not rows.num_rows:
            return None
        path = self._spool.new_file(rows.nbytes)
        write_rows(path, rows)
        return path


def _published(log: OpenLog) -> range:
    bounds = log.published.bounds()
    return range(bounds[0], bounds[1] + 1) if bounds else range(0)


def _end_after(storage: Storage, after: int, bounds: tuple[int, int], arguments: Mapping[str, Any]) -> int:
    # Else a bound would count batches that are not kept.
    begin = max(after, bounds[0] - 1) if arguments.get("may_lose") else after
    last = min(bounds[1], int(arguments.get("up_to", bounds[1])))
    if "max_batches" in arguments:
        last = min(last, begin + int(arguments["max_batches"]))
    if "max_rows" in arguments:
        last = manifest.last_within(storage, begin + 1, last, int(arguments["max_rows"]))
    return max(begin, last)


def _pack(locations: Iterable[Location]) -> list[list[Sequence[Any]]]:
    pieces: list[list[Sequence[Any]]] = []
    stored = SPLIT_BYTES
    for location in locations:
        if stored >= SPLIT_BYTES:
            pieces.append([])
            stored = 0
        pieces[-1].append([location.segment, location.offset, location.length])
        stored += location.length
    return pieces


def _window_pieces(log: OpenLog, operator: int, name: str, version: int | None) -> list[dict[str, Any]]:
    index = log.catalog.index
    stores = [store for store in sorted(index.stores()) if store.operator == operator and store.name == name]
    if not stores:
        known = sorted({f"operator {s.operator} store {s.name}" for s in index.stores()})
        raise LogLocationError(
            log.home, f"no store {name!r} of operator {operator}; there are: {', '.join(known) or 'none'}"
        )
    newest = min(index.newest(store, 1 << 62)[-1].meta.version for store in stores)
    at = newest if version is None else int(version)
    if not 0 < at <= newest:
        raise LogLocationError(log.home, f"it has no version {at} of all partitions: give one from 1 to {newest}")
    return [{"operator": s.operator, "partition": s.partition, "store": s.name, "version": at} for s in stores]
