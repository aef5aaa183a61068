"""The call of readers of tentative rows: the newest epoch of a flow (`availability.epochs`)."""

from __future__ import annotations

import contextlib
import logging
import math
import time

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.messages import EpochAnswer, EpochRequest, ViewOffsetsRequest
from spark_cec.agent.reader import ReaderCalls
from spark_cec.availability.epochs import Epoch, epoch_checkpoint, newest_epoch
from spark_cec.errors import CecError, DamagedLog
from spark_cec.log import manifest
from spark_cec.log.storage import Storage

_LOG = logging.getLogger(__name__)

_LOOK_S = 1.0
"""The shortest time between two looks for epochs on an object store."""


class EpochCalls:
    """Answers which tentative rows a flow has."""

    def __init__(self, readers: ReaderCalls) -> None:
        self._readers = readers
        self._known: dict[str, tuple[Epoch | None, float]] = {}
        self._with_rows: dict[str, int] = {}
        self._looked_through: dict[str, tuple[int, int]] = {}

    def newest(self, request: EpochRequest) -> EpochAnswer:
        """Answers the newest epoch of a flow, and how far its output goes.

        Stable rows come whatever becomes of an epoch. So one with a damaged note is none. If its other files are
        damaged or gone, it has no more rows.
        """
        epoch = self.find(request.path)
        if epoch is None:
            return EpochAnswer()
        newest = epoch.begins_after
        if epoch.is_open:
            with contextlib.suppress(CecError, OSError):
                newest = max(newest, self._find_newest(request, epoch))
        return EpochAnswer(
            number=epoch.number, begins_after=epoch.begins_after, follows=epoch.follows, newest=newest,
            has_rows=self._with_rows.get(request.path) == epoch.number, closed_after=epoch.closed_after,
            has_passed=epoch.has_passed,
        )  # fmt: skip

    def _find_newest(self, request: EpochRequest, epoch: Epoch) -> int:
        """The newest batch of an open epoch's output, -1 for none. Raises whatever is wrong with its files."""
        path = epoch_checkpoint(request.path, epoch.number)
        log = self._readers.find_log_or_none(ViewOffsetsRequest(path=path, conf=request.conf, may_wait=True))
        bounds = None if log is None else log.published.bounds()
        if log is None or bounds is None:
            return -1
        self._note_rows(request.path, epoch, log.storage, bounds[1])
        return bounds[1]

    def _note_rows(self, path: str, epoch: Epoch, log: Storage, newest: int) -> None:
        """Notes the epoch if it has rows. Looks at no batch twice, because an epoch may be without rows for long."""
        if self._with_rows.get(path) == epoch.number:
            return
        number, through = self._looked_through.get(path, (0, -1))
        first = through + 1 if number == epoch.number else epoch.begins_after + 1
        found = manifest.load_between(log, first, newest)
        if any(isinstance(each, manifest.Manifest) and each.rows for _, each in found):
            self._with_rows[path] = epoch.number
        self._looked_through[path] = epoch.number, newest

    def find(self, path: str) -> Epoch | None:
        """The newest epoch of the flow at a checkpoint, as of a moment ago; None if there is none, or it is damaged."""
        storage, now = open_storage(path), time.monotonic()
        known, asked = self._known.get(path, (None, -math.inf))
        if now - asked >= (0.0 if storage.can_append else _LOOK_S):
            try:
                known = newest_epoch(storage)
            except DamagedLog as damage:
                _LOG.warning("%s/%s: its rows do not count", path, damage)
                known = None
            self._known[path] = known, now
        return known
