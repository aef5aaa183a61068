"""Calls of the reader: the views `output`, `windows` and `log` of a log, and how far its streams are."""

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
from spark_cec.agent.output_cache import RecentOutput
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
from spark_cec.log.output_rollbacks import cuts_of
from spark_cec.log.readers import ReaderTrail
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import is_rolled_back, newest_allowed, read_attempts
from spark_cec.recovery.plan import Allows
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import parse_settings

_T = TypeVar("_T")

BELIEVED_S = 2.0
"""For how long a stream that looks for news takes its log to be the one that it was: it looks ten times a second."""

EMPTY_WAIT_MS = 10_000
"""For how long a stream lets batches without rows wait for one with some. Then it reads them, so that they may go."""

SPLIT_BYTES = 32 << 20
"""Stored bytes that one read task takes."""


def _committed(path: str, log: OpenLog) -> Allows:
    """Which attempts may be committed ones.

    Where `path` is a log's home and no query's checkpoint, all but those that a rollback has taken back.
    """
    own = cec_directory(path)
    if QUERY.read(own) is not None:
        return read_attempts(open_storage(path), own, log.storage).allows_read
    cuts = cuts_of(log.storage).known
    return lambda entry: not is_rolled_back(entry, cuts)


class ReaderCalls:
    """What `spark.read.format("cec")` and `readStream` ask for. Reading never writes to the log, but beside it."""

    def __init__(self, logs: OpenLogs, spool: Spool, recent: RecentOutput, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._spool = spool
        self._recent = recent
        self._trails: dict[tuple[str, str], ReaderTrail] = {}
        self._homes: dict[str, tuple[str, float]] = {}

    def _log_or_none(self, arguments: Mapping[str, Any]) -> OpenLog | None:
        """To look how far it is. None where its query has committed nothing, and the reader says that it waits."""
        try:
            return self._log(arguments, BELIEVED_S)
        except LogLocationError:
            if arguments.get("may_wait") and committed_batch(open_storage(str(arguments["path"]))) < 0:
                return None
            raise

    def _log(self, arguments: Mapping[str, Any], believed_s: float = 0.0) -> OpenLog:
        """`believed_s`: for how long it is taken for what it was."""
        path = str(arguments["path"])
        home, looked_at = self._homes.get(path, ("", -math.inf))
        now = time.monotonic()
        if now - looked_at >= believed_s:
            query = QUERY.read(cec_directory(path))
            home = absolute_home(path, query["log_home"]) if query else path
            self._homes[path] = home, now
        log = self._logs.existing(home, parse_settings(conf_of(arguments)), believed_s)
        if log is None:
            self._homes.pop(path, None)  # another reader of the channel may have been told so, too
            raise LogLocationError(
                path, "there is no log here: give the checkpoint of a query, or the `path` of its sink"
            )
        return log

    def schema(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`: the schemas (Spark's JSON) of the newest batch, and of the oldest; none before the first one.

        With `may_wait` a log that is not there yet has none, too.
        """
        log = self._log_or_none(arguments)
        if log is None:
            return {"schemas": []}
        return {"schemas": _looked_again(lambda: _newest_and_oldest(log, bool(arguments.get("may_lose"))))}

    def offsets(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`, `starting_timestamp_ms` or None: the first batch since then, and the newest; -1 for none.

        With `after`, a batch, the last is the one with which a stream that has read up to there ends its next batch:
        `up_to`, `max_batches` and `max_rows` are its bounds, and with `may_lose` it passes over what is not kept.
        `newest` is the newest worth reading, `of` tells the last one from another of its number; `seen`, if given, is
        what it was for `after`, and `checked`, that it was the same before. With `may_wait` a log that is not there yet
        has none, too. `source` tells the sources of one query apart.
        """
        log, since, after = self._log_or_none(arguments), arguments.get("starting_timestamp_ms"), arguments.get("after")
        bounds = log.published.bounds() if log is not None else None
        kept_from = manifest.retired_before(log.storage) if log is not None and bounds is None else 0
        # A cut may leave a log without any manifest, all that still count having been let go.
        newest = kept_from - 1 if bounds is None else bounds[1]
        if after is not None and int(after) > newest:
            raise _not_there(log, arguments, int(after), newest)
        if bounds is None:
            return {"first": kept_from, "last": newest, "newest": newest}
        assert log is not None
        if after is not None:
            if not arguments.get("checked") or log.published.cuts.known:
                _refuse_another(log, arguments, int(after))
            settings, channel = parse_settings(conf_of(arguments)), str(arguments["path"])
            # Asked behind the bounds: what is published later than that may be behind a marker.
            up_to = self._protocols.end_of(settings, channel)
            last = _end_after(log.storage, int(after), bounds, arguments, up_to)
            source = str(arguments.get("source", ""))
            self._protocols.will_read(settings, channel, log.storage, int(after), last, up_to, source)
            if not _is_news(log.storage, last + 1, newest):
                newest = last  # else who has read all rows there are would seem to be behind
            of = _identity(log, last) if last > int(after) else None
            return {"first": bounds[0], "last": last, "newest": newest, "of": of}
        if since is None:
            return {"first": bounds[0], "last": newest, "newest": newest}
        first, newest = _looked_again(lambda: _since(log, int(since)))
        return {"first": first, "last": newest, "newest": newest}

    def note(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`path`, `reader`, and what befell the stream of that name: with that, output is let go that nobody asks for.

        `begins` behind a batch, whatever one of that name has read before; a batch of it `ends` with one of the log's,
        of which Spark may run the newest `retained` again; or none of these: its run is over.
        """
        key = str(arguments["path"]), str(arguments["reader"])
        trail = self._trails.get(key)
        if trail is None:
            log = self._log_or_none(arguments)
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
        """`path`, `view`, and its bounds: the pieces of work of a read, each a JSON object for `read_split`.

        Bounds: `first`, `last` batch for `output`; `operator`, `store`, `version` (or None) for `windows`. With
        `may_lose` output that is lost is named in the answer's `lost`, and not read. `seen`, as in `offsets`, is what
        the last batch was when the read was planned first. `schema`, Spark's JSON: of what the rows will be taken for.
        """
        told: list[CecError] = []
        view = arguments["view"]
        if view == "output" and int(arguments["last"]) < int(arguments["first"]):
            return {"splits": [], "lost": []}  # of a log that is waited for, there may be none yet
        log = self._log(arguments)
        # Before the catalog, and nothing newer: the frames of what is published then are in the log.
        published = _published(log) if view == "output" else range(0)
        log.catalog.refresh()
        if view == "output":
            if not arguments["whole"] and int(arguments["last"]) >= published.stop:
                raise _not_there(log, arguments, int(arguments["last"]), published.stop - 1)
            _refuse_another(log, arguments, int(arguments["last"]))
            entries = output_batches(
                log.storage,
                log.catalog,
                int(arguments["first"]),
                min(int(arguments["last"]), published.stop - 1),
                bool(arguments["whole"]),
                published,
                told.append if arguments.get("may_lose") else raise_loss,
                arguments.get("schema"),
                _exact(arguments),
            )
            begins = min((entry.meta.batch for entry in entries), default=0)
            pieces = [
                {"frames": piece, "begins": begins}
                for piece in _pack((e.location, e.meta.frame_id.hex()) for e in entries)
            ]
        elif view == "log":
            found = [e for s in sorted(log.catalog.index.stores()) for e in log.catalog.index.commits(s, 0, 1 << 62)]
            pieces = [{"frames": piece} for piece in _pack((e.location, "") for e in found if e.meta.records)]
        else:
            store, version = str(arguments["store"]), arguments.get("version")
            pieces = _window_pieces(log, int(arguments["operator"]), store, version)
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
            allows = _committed(str(arguments["path"]), log)
            head = head_at(log.catalog.index, store, int(split["version"]), allows=allows)
            rows = window_rows(rebuild(log.storage, log.catalog.index, head))
        else:
            frames = [(bytes.fromhex(frame), Location(*place)) for *place, frame in split["frames"]]
            lost = told.append if arguments.get("may_lose") else partial(_fail_to_read, log.storage, split)
            columns = arguments.get("columns")
            if split["view"] == "log":
                rows = log_records(log.storage, [location for _, location in frames], columns, lost)
            else:
                rows = output_rows(log.storage, dict(frames), columns, partial(self._recent.find, log.log_id), lost,
                                   _exact(arguments))  # fmt: skip
        return {"spool": self._write(rows), "rows": rows.num_rows, "lost": [str(each) for each in told]}

    def _write(self, rows: pa.Table) -> str | None:
        if not rows.num_rows:
            return None
        path = self._spool.new_file(rows.nbytes)
        write_rows(path, rows)
        return path


def _looked_again(look: Callable[[], _T]) -> _T:
    """What `look` finds, at its second try if a manifest was let go, or taken back, while it looked."""
    try:
        return look()
    except FileNotFoundError:
        return look()


def _newest_and_oldest(log: OpenLog, may_lose: bool) -> list[str]:
    bounds = log.published.bounds()
    if bounds is None:
        return []
    first, last = bounds
    if not may_lose:
        return [manifest.load(log.storage, batch).schema_json for batch in (last, first)]
    sound = (_sound_from(log.storage, batches) for batches in (range(last, first - 1, -1), range(first, last + 1)))
    return [each.schema_json for each in sound if each is not None]


def _sound_from(storage: Storage, batches: Iterable[int]) -> manifest.Manifest | None:
    """The first of these manifests that can be read."""
    for batch in batches:
        with suppress(DamagedLog):
            return manifest.load(storage, batch)
    return None


def _exact(arguments: Mapping[str, Any]) -> bool:
    """Whether names in another case are other columns to the session that asks."""
    return conf_of(arguments).get("spark.sql.caseSensitive") == "true"


def _fail_to_read(storage: Storage, split: Mapping[str, Any], lost: CecError) -> NoReturn:
    """What was let go since the read was planned is no damage."""
    kept_from = manifest.retired_before(storage)
    begins = int(split.get("begins", kept_from))
    raise NotKept(begins, kept_from - 1) if begins < kept_from else lost


def _since(log: OpenLog, wall_ms: int) -> tuple[int, int]:
    """The first batch that was published since then, and the newest. There is one at least."""
    batches = manifest.batches(log.storage)
    log.catalog.refresh()
    hint = next((e.meta.batch for e in log.catalog.index.at(wall_ms) if isinstance(e, OutputEntry)), None)
    return first_published_since(log.storage, batches, wall_ms, hint), batches[-1]


def _published(log: OpenLog) -> range:
    bounds = log.published.bounds()
    if bounds is None:
        kept_from = manifest.retired_before(log.storage)
        return range(kept_from, kept_from)
    return range(bounds[0], bounds[1] + 1)


def _end_after(
    storage: Storage, after: int, bounds: tuple[int, int], arguments: Mapping[str, Any], up_to: int | None
) -> int:
    # Else a bound would count batches that are not kept.
    begin = max(after, bounds[0] - 1) if arguments.get("may_lose") else after
    last = min(bounds[1], int(arguments.get("up_to", bounds[1])), bounds[1] if up_to is None else up_to)
    if not _is_news(storage, begin + 1, last):
        return begin
    empty = _empty_up_to(storage, begin, last)  # these come along, and count for no bound
    if "max_batches" in arguments:
        last = min(last, empty + int(arguments["max_batches"]))
    if "max_rows" in arguments:
        last = manifest.last_within(storage, empty + 1, last, int(arguments["max_rows"]))
    changed = first_type_change(_schemas(storage, begin + 1, last), exact=_exact(arguments))
    if changed is not None:  # what comes before can be read by the types that it was written with
        last = changed - 1
    return max(begin, last)


def _empty_up_to(storage: Storage, begin: int, last: int) -> int:
    """The last of the batches right behind `begin` that have no rows; `begin` if there is none."""
    for batch, each in manifest.load_between(storage, begin + 1, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return batch - 1
    return last


def _schemas(storage: Storage, first: int, last: int) -> Iterator[tuple[int, str]]:
    """Of the batches with rows."""
    for batch, each in manifest.load_between(storage, first, last):
        if isinstance(each, manifest.Manifest) and each.frames:
            yield batch, each.schema_json


def _is_news(storage: Storage, first: int, last: int) -> bool:
    """Whether these batches are worth one of the reader's: not those without a row, for a while.

    A flow that reads its own channel answers each batch with one of its own: without this it would never rest.
    """
    oldest_ms = None
    for _, each in manifest.load_between(storage, first, last):
        if not isinstance(each, manifest.Manifest) or each.rows or each.truncate:
            return True
        oldest_ms = oldest_ms or each.wall_ms
    # A writer's clock that is ahead must not make its batches young for so long.
    return oldest_ms is not None and abs(time.time() * 1000 - oldest_ms) > EMPTY_WAIT_MS


def _identity(log: OpenLog, batch: int) -> str | None:
    """What tells a batch of this log from another one of its number; without its second part where nobody can tell.

    A manifest is gone where the batch is not kept any more; of one that is damaged, who reads its rows is told.
    """
    if batch < 0:
        return None
    try:
        return f"{log.log_id[:8]}-{manifest.load(log.storage, batch).crc:08x}"
    except (FileNotFoundError, DamagedLog):
        return f"{log.log_id[:8]}-"


def _refuse_another(log: OpenLog, arguments: Mapping[str, Any], batch: int) -> None:
    """An error if the batch that a stream has `seen` is not the one that is there."""
    seen = arguments.get("seen")
    there = _identity(log, batch) if seen else None
    if seen and there and not seen.startswith(there) and not there.startswith(seen):
        raise _not_there(log, arguments, batch, batch)


def _not_there(log: OpenLog | None, arguments: Mapping[str, Any], batch: int, newest: int) -> CecError:
    """Why a batch that a stream has read is not there: it was taken back, or the output is another one."""
    for cut in reversed(log.published.cuts.known) if log is not None else ():
        if cut.after < batch:
            return OutputTakenBack(str(arguments["path"]), batch, cut.after, cut.generation)
    return OutputBegunAnew(str(arguments["path"]), batch, newest)


def _pack(frames: Iterable[tuple[Location, str]]) -> list[list[Sequence[Any]]]:
    """Places of frames, each with its id, in pieces of some size."""
    pieces: list[list[Sequence[Any]]] = []
    stored = SPLIT_BYTES
    for location, frame in frames:
        if stored >= SPLIT_BYTES:
            pieces.append([])
            stored = 0
        pieces[-1].append([location.segment, location.offset, location.length, frame])
        stored += location.length
    return pieces


def _window_pieces(log: OpenLog, operator: int, name: str, version: int | None) -> list[dict[str, Any]]:
    index, cuts = log.catalog.index, cuts_of(log.storage).known
    stores = [store for store in sorted(index.stores()) if store.operator == operator and store.name == name]
    if not stores:
        known = sorted({f"operator {s.operator} store {s.name}" for s in index.stores()})
        raise LogLocationError(
            log.home, f"no store {name!r} of operator {operator}; there are: {', '.join(known) or 'none'}"
        )
    # An attempt that cannot be the committed one says all the same that there is a later version, which may be lost.
    heads = [newest_allowed(index, store, lambda entry: not is_rolled_back(entry, cuts)) for store in stores]
    newest = min(head.meta.version if head is not None else 0 for head in heads)
    at = newest if version is None else int(version)
    if not 0 < at <= newest:
        raise LogLocationError(log.home, f"it has no version {at} of all partitions: give one from 1 to {newest}")
    return [{"operator": s.operator, "partition": s.partition, "store": s.name, "version": at} for s in stores]
