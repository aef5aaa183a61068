"""The call by which the replicas of a pipeline agree on the batches of a flow that reads a source.

The agreement on a batch is an object that one of them creates, and creation is exclusive: the first one decides, and
the other one follows. So both channels have the same rows in each batch, and neither replica waits for the other one.

| in `<home>/agreed/<flow>` | what it has |
|---|---|
| `begin.json` | where the first batch begins in the source |
| `<batch>.json` | where a batch begins and ends in the source |
| `at-<replica>.json` | the batch at which a replica was, now and then |
| `kept.json` | the first batch whose agreement is kept. It is there before all others, and changes before old ones go |
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.messages import AgreeAnswer, AgreeRequest
from spark_cec.availability.replicas import REPLICAS
from spark_cec.errors import AlreadyExists, CecError, Consequence
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage

_LOG = logging.getLogger(__name__)

TIDY_EVERY = 100
"""Each replica notes where it is, and deletes what nobody needs, once in so many batches."""

KEPT = 1_000
"""The agreements that stay behind the replica that is last: a rollback may ask for them again."""

_KEPT_FILE = "kept.json"

MOST_BEHIND = 100_000
"""The agreements that stay for a replica that is last. One that is further behind cannot go on."""

_MEND = "begin the pipeline anew, in another home"


class ReplicasDiffer(CecError):
    """The replicas of a pipeline cannot give out the same rows: see the message."""

    consequence = Consequence.FIX


class AgreementCalls:
    """Answers where batches end. It remembers of which flows this process has noted where its replica is."""

    def __init__(self) -> None:
        self._noted: set[tuple[str, str]] = set()

    def agree(self, request: AgreeRequest) -> AgreeAnswer:
        """Answers where the batch ends: as was decided before; else, if the request decides, as it says.

        Batch -1 stands for the place in the source at which the first batch begins.

        Raises `ReplicasDiffer` if the batch begins elsewhere for the other replica, or if the agreements before it are
        gone; `DamagedLog` for a damaged one.
        """
        storage, key = open_storage(request.place), (request.place, request.replica)
        if key not in self._noted:  # it may be an earlier batch than before, which must not be deleted now
            _note_place(storage, request.replica, request.batch)
            self._noted.add(key)
        if request.batch < 0:
            _create_note(storage)
        made = _create(storage, request) if request.decides else None
        there = made or _read(storage, request)
        _refuse_forgotten(storage, request)
        if there is None:
            return AgreeAnswer(end=None, follows=False)
        if there["start"] != request.start:
            raise ReplicasDiffer(
                f"{storage.url}: batch {request.batch} of replica {request.replica} begins at {request.start} of its "
                f"source, and replica {there['replica']} has begun it at {there['start']}: {_MEND}"
            )
        if request.batch % TIDY_EVERY == 0:
            _note_place(storage, request.replica, request.batch)
            _tidy(storage, request)
        return AgreeAnswer(end=there["end"], follows=made is None)


def _create(storage: Storage, request: AgreeRequest) -> dict[str, Any] | None:
    """Creates the agreement on a batch, and answers it; None if there is one already."""
    mine = {"batch": request.batch, "start": request.start, "end": request.end, "replica": request.replica}
    try:
        storage.create(_path(request.batch), encode_object(mine))
    except AlreadyExists:
        return None
    return mine


def _read(storage: Storage, request: AgreeRequest) -> dict[str, Any] | None:
    """The agreement on a batch; None if there is none."""
    path = _path(request.batch)
    try:
        return decode_object(path, storage.read(path), "agreement of replicas")[0]
    except FileNotFoundError:
        return None


def _refuse_forgotten(storage: Storage, request: AgreeRequest) -> None:
    """Raises `ReplicasDiffer` if the agreement on this batch may have been deleted: another one must not replace it.

    Each deletion is noted before it begins, and this looks after the creation. So it sees each deletion.
    """
    kept = _read_number(storage, _KEPT_FILE, -1)
    if request.batch < 0 or 0 <= kept <= request.batch:
        return
    storage.delete(_path(request.batch))
    if kept < 0:
        raise ReplicasDiffer(f"{storage.url}: the agreements of the replicas are gone: bring them back, or {_MEND}")
    raise ReplicasDiffer(
        f"{storage.url}: replica {request.replica} is to run batch {request.batch}, and agreements are kept from batch "
        f"{kept} on, because the other replica is far ahead: {_MEND}"
    )


def _create_note(storage: Storage) -> None:
    """Notes that all agreements are kept, if no replica has begun before."""
    with contextlib.suppress(AlreadyExists):
        storage.create(_KEPT_FILE, encode_object({"batch": 0}))


def _note_place(storage: Storage, replica: str, batch: int) -> None:
    storage.replace(_place_of(replica), encode_object({"batch": batch}))


def _tidy(storage: Storage, request: AgreeRequest) -> None:
    """Deletes the agreements that neither replica needs. A failure only keeps more."""
    try:
        at = {each: _read_number(storage, _place_of(each), -1) for each in REPLICAS}
        keep_from = max(min(at.values()) - KEPT, request.batch - MOST_BEHIND)
        if min(at.values()) < request.batch - MOST_BEHIND // 2:
            behind = min(at, key=lambda each: at[each])
            _LOG.warning("replica %s is %d batches behind: it can go on up to %d", behind, request.batch - at[behind],
                         MOST_BEHIND)  # fmt: skip
        names = [each.name for each in storage.list("")]
        old = [each for each in names if each[:-5].isdigit() and int(each[:-5]) < keep_from]
        if old:
            storage.replace(_KEPT_FILE, encode_object({"batch": max(keep_from, _read_number(storage, _KEPT_FILE, 0))}))
            storage.delete_all(sorted(old))
    except (OSError, CecError):  # a damaged note of the other replica must not stop this one
        _LOG.warning("%s: old agreements of the replicas were not deleted", storage.url, exc_info=True)


def _read_number(storage: Storage, path: str, missing: int) -> int:
    """The batch in a note; `missing` if there is no such note."""
    try:
        return int(decode_object(path, storage.read(path), "note of replicas")[0]["batch"])
    except FileNotFoundError:
        return missing


def _place_of(replica: str) -> str:
    return f"at-{replica}.json"


def _path(batch: int) -> str:
    return "begin.json" if batch < 0 else f"{batch:019d}.json"
