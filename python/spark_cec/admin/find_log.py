"""Finds the log that a user names: by the query's checkpoint, or by the log's home."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cec.adapters.fsspec_storage import local_names, open_storage
from spark_cec.admin.read_only import ReadOnlyStorage
from spark_cec.errors import DamagedLog, LogLocationError, LostLog, NoLogYet, SettingsError, UnsuitableCheckpoint
from spark_cec.log.borrowed import LOAN_FILE, show_borrowed
from spark_cec.log.bundles import Bundles
from spark_cec.log.home import LOG_FILE, absolute_home, read_log_id
from spark_cec.log.meta import SegmentMeta, decode_meta
from spark_cec.log.recent_objects import RecentObjects
from spark_cec.log.scan import FoundFrame, scan
from spark_cec.log.segment import list_segments
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import has_committed
from spark_cec.recovery.query_files import PIPELINE_FILE, QUERY
from spark_cec.recovery.spark_logs import committed_batch, has_state, planned_batches, recorded_conf
from spark_cec.settings import PROVIDER, PROVIDER_KEY, Settings, parse_settings

OWN_DIRECTORY = "cec"
OWN_LOG = "cec/log"

_PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
_SPARKS = {
    f"{_PROVIDERS}RocksDBStateStoreProvider": "RocksDB",
    f"{_PROVIDERS}HDFSBackedStateStoreProvider": "HDFS-backed",
}

_ADVICE = "give the checkpoint of a query that runs on Spark CEC, or the home of a log"


@dataclass(frozen=True, slots=True)
class Place:
    """A log, and its query's files. All storages are read-only.

    `checkpoint` is Spark's checkpoint, None if only the log is known; `query` is its `query.json`. `log_id` is known
    even if `log.json` is damaged; then `damage` has the error.
    """

    home: str
    storage: Storage
    log_id: str
    damage: DamagedLog | None = None
    checkpoint: Storage | None = None
    query: Mapping[str, Any] | None = None

    @property
    def is_ours(self) -> bool:
        """Whether our provider keeps the query's state. A query without its `query.json` counts as one of ours."""
        return self.query is None or bool(self.query.get("provider"))

    @property
    def settings(self) -> Settings | None:
        """The settings of the last start; None if they are not recorded, or only another release understands them."""
        conf = (self.query or {}).get("settings_conf")
        if not isinstance(conf, dict):
            return None
        try:
            return parse_settings({str(key): str(value) for key, value in conf.items()})
        except SettingsError:
            return None


def open_to_read(url: str) -> Storage:
    """The storage at `url`, read-only; bundles in large ranges. `LogLocationError` as `open_storage`."""
    inner = open_storage(url)
    storage = ReadOnlyStorage(inner if inner.can_append else RecentObjects(inner))
    return Bundles(show_borrowed(storage, open_storage) if storage.exists(LOAN_FILE) else storage)


def find_log(path: str) -> Place:
    """The log at `path`: a checkpoint, or a home. Never writes.

    If a checkpoint was copied together with its log, the copy of the log counts, whatever `query.json` names. Errors:
    `LogLocationError` if there is no log, `NoLogYet` if none is missing. `UnsuitableCheckpoint` if `query.json` is
    unreadable or names another query's log. `DamagedLog` if the log is lost, or so damaged that its id is unknown;
    `NewerFormat`.
    """
    path = path.rstrip("/") or path
    if Path(path).is_file():
        raise LogLocationError(path, f"this is a file; {_ADVICE}")
    query = _read_query(path)
    if query is not None:
        return _locate_log(path, query)
    if _holds_log(open_to_read(path)):
        return _find_above(path) or _make_place(path)
    if _holds_log(open_to_read(f"{path}/{OWN_LOG}")):
        return _make_place(f"{path}/{OWN_LOG}", open_to_read(path))
    if open_to_read(path).exists(PIPELINE_FILE):
        one = f"the checkpoint of one of its flows, {path}/flows/<name>"
        raise LogLocationError(path, f"this is the home of a pipeline: give {one}")
    raise _explain_missing_log(path)


def _find_above(home: str) -> Place | None:
    """The log at this home by its checkpoint, if it lies in one: its query holds the checkpoint's lease.

    The home may be named from the working directory, or by a link.
    """
    for name in dict.fromkeys((home, *local_names(home))):
        checkpoint = name.removesuffix(f"/{OWN_LOG}")
        query = _read_query(checkpoint) if checkpoint != name else None
        if query is not None:
            return _locate_log(checkpoint, query)
    return None


def _explain_missing_log(path: str) -> LogLocationError:
    """Tells the user what to do about a checkpoint without a log."""
    checkpoint = open_to_read(path)
    if not planned_batches(checkpoint):
        return NoLogYet(path, f"there is no log here; {_ADVICE}")
    if not has_state(checkpoint):
        without = "this is the checkpoint of a query without state and without the `cec` sink"
        return NoLogYet(path, f"{without}, of which there is no log")
    provider = recorded_conf(checkpoint).get(PROVIDER_KEY)
    kind = LogLocationError if provider in (None, PROVIDER) else NoLogYet
    return kind(path, _explain_missing_state(path, provider))


def _explain_missing_state(path: str, provider: str | None) -> str:
    if provider == PROVIDER:
        return (
            "this is the checkpoint of a query on Spark CEC whose cec directory is gone, which says where its log is: "
            "restore it, or give the home of the log"
        )
    way_in = f"`cec import --from {path} --to NEW` makes a checkpoint for Spark CEC of it, with the state"
    if provider is None:
        return (
            "this is the checkpoint of an old release of Spark, which did not record where a query's state is. Start "
            f"the query once with this release, and stop it; then {way_in}"
        )
    where = f"this is the checkpoint of a query whose state is in {store_of(provider)}"
    return f"{where}, of which there is no log: {way_in}"


def store_of(provider: str) -> str:
    """A name for the state store provider's class, for people."""
    return f"Spark's {_SPARKS[provider]} state store ({provider})" if provider in _SPARKS else provider


def _read_query(checkpoint: str) -> dict[str, Any] | None:
    """`query.json` of a checkpoint, with an absolute `log_home`; None if it is missing. Raises `UnsuitableCheckpoint`.
    """
    query = QUERY.read(open_to_read(f"{checkpoint}/{OWN_DIRECTORY}"))
    return {**query, "log_home": absolute_home(checkpoint, str(query["log_home"]))} if query is not None else None


def _locate_log(checkpoint: str, query: Mapping[str, Any]) -> Place:
    storage, recorded, log_id = open_to_read(checkpoint), query["log_home"], query["log_id"]
    for home in (f"{checkpoint}/{OWN_LOG}", checkpoint, recorded):
        if _read_sound_id(open_to_read(home)) == log_id:
            return _make_place(home, storage, query)
    for home in (recorded, f"{checkpoint}/{OWN_LOG}"):
        if _holds_log(open_to_read(home)):
            return _refuse_other_log(_make_place(home, storage, query), checkpoint)
    committed = committed_batch(storage)
    has_written = query.get("provider") or has_committed(open_to_read(f"{checkpoint}/{OWN_DIRECTORY}"), committed)
    if committed >= 0 and has_written:
        raise LostLog(recorded)
    raise NoLogYet(
        recorded, f"the query of {checkpoint} has begun no log here yet; start it first, or {_ADVICE}"
    )


def _refuse_other_log(place: Place, checkpoint: str) -> Place:
    """The place; raises `UnsuitableCheckpoint` if a sound `log.json` there belongs to another query."""
    query = place.query or {}
    if place.damage is None and place.log_id != query["log_id"]:
        raise UnsuitableCheckpoint(
            f"{place.home} holds the log of another query (id {place.log_id}, not {query['log_id']}): give the "
            f"checkpoint that this log belongs to, or restore the log of {checkpoint}"
        )
    return place


def _make_place(home: str, checkpoint: Storage | None = None, query: Mapping[str, Any] | None = None) -> Place:
    storage = open_to_read(home)
    try:
        log_id = read_log_id(storage)
        damage = None if log_id else DamagedLog(LOG_FILE, -1, "it is missing, although there are segments")
    except DamagedLog as error:
        log_id, damage = None, error
    known = log_id or (query["log_id"] if query else _find_id_in_segments(storage))
    if known is None:
        raise damage or DamagedLog(LOG_FILE, -1, "nothing tells which log this is")
    return Place(home, storage, known, damage, checkpoint, query)


def _holds_log(storage: Storage) -> bool:
    return storage.exists(LOG_FILE) or bool(list_segments(storage))


def _read_sound_id(storage: Storage) -> str | None:
    try:
        return read_log_id(storage)
    except DamagedLog:
        return None


def _find_id_in_segments(storage: Storage) -> str | None:
    """The log id that most segments have: one of another log may be among them."""
    found = Counter[str]()
    for file in list_segments(storage):
        first = next(iter(scan(storage, file.name)), None)
        if isinstance(first, FoundFrame):
            with suppress(ValueError):  # its meta cannot be decoded
                meta = decode_meta(first.header.kind, first.header.meta)
                found.update([meta.log_id] if isinstance(meta, SegmentMeta) else [])
    return max(found, key=found.__getitem__, default=None)
