"""Facts about channels that streams read by buckets: their boundaries, and the times of their batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from spark_cec.agent.logs import OpenLog
from spark_cec.agent.messages import BucketEndRequest, BucketLeaveRequest
from spark_cec.agent.reader import (
    LOOK_FOR_BOUNDARY_S,
    ReaderCalls,
    has_batch,
    identify_batch,
    is_case_sensitive,
    missing_batch,
    refuse_other_batch,
    refuse_other_log,
)
from spark_cec.availability.bucket_rows import find_times
from spark_cec.availability.buckets import Backlog, BatchTimes, ChannelFacts, Position, advance
from spark_cec.availability.replicas import REPLICAS
from spark_cec.availability.union import Member, Union
from spark_cec.checkpoint.columns import find_column
from spark_cec.checkpoint.readers import output_rows
from spark_cec.errors import BucketError, DamagedLog, NotKept
from spark_cec.log import manifest
from spark_cec.log.boundary import Boundary
from spark_cec.log.times import TimeRange, merge_ranges

_LEAST_LOOK_S = 0.25

BEGIN_MS = 1
"""Where a stream begins that has no row yet, as the shim's `BucketOffset.BeginMs`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch of a channel, and its identity; None if there was no log."""

    batch: int
    of: str | None


@dataclass(slots=True)
class _KnownTimes:
    """The ranges of a channel's batches that were read before, and the last answer to each stream, by its place.

    `cuts`: how many cuts the log had; after a rollback there is one more.
    """

    cuts: int
    batches: dict[int, BatchTimes] = field(default_factory=dict)
    read: dict[str, tuple[range, Backlog]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class ChannelLooks:
    """Looks at channels, for the plans of batches. Each batch is read once for all streams that read its channel."""

    def __init__(self, readers: ReaderCalls, clock: Callable[[], float]) -> None:
        """`clock`: seconds, which never go back."""
        self._readers = readers
        self._clock = clock
        self._times: dict[tuple[str, str, str, bool], _KnownTimes] = {}
        self._lock = threading.Lock()

    def look_at(self, request: BucketEndRequest, member: Member, union: Union) -> ChannelFacts:
        """What is known of the channel at the request's path, of which the stream may have read no batch yet.

        `request.first`: then the batch from which on it may need rows; 0 if it does not know.

        Errors as of `gather`, and `NotKept` if the channel may have let rows go that the stream needs.
        """
        if request.batch >= 0:
            return self.gather(request, member, union)
        log = self._readers.find_log_or_none(request)
        bounds = None if log is None else log.published.bounds()
        if log is None or bounds is None:
            return self.gather(request, member, union)
        first, may_lack = request.first, member.is_kept or not union.notes
        if 0 < first < bounds[0] and member.begins_after is None and not request.may_lose:
            if union.replicated:
                raise NotKept(first, bounds[0] - 1)
            first = bounds[0]  # Without replicas this is an epoch. The stream has let go what it did not need of it.
        if not first and union.replicated and not member.is_source and request.until_ms > BEGIN_MS:
            first = _find_first(log, bounds, member, request) or 0
            if not first and bounds[0] > 0 and may_lack:
                raise NotKept(0, bounds[0] - 1)
        facts = self.gather(msgspec.structs.replace(request, first=first or bounds[0]), member, union)
        there = replace(facts, position=replace(facts.position, batch=facts.newest))
        return replace(there, position=advance(there, there.position.until_ms))

    def identify_newest(self, request: BucketEndRequest, newest: int) -> Mark:
        """The newest batch that was looked at of the channel at the request's path, to know it again."""
        log = self._readers.find_log_or_none(request)
        return Mark(newest, None if log is None else identify_batch(log, newest))

    def has_still(self, request: BucketEndRequest, mark: Mark) -> bool:
        """Whether the channel has the batch still. If not, the facts about the channel may be old.

        Somebody may have brought it back from a copy, and it has gone on from there. A batch that was let go proves
        nothing.
        """
        log = self._readers.find_log_or_none(request)
        return log is None or mark.batch < 0 or identify_batch(log, mark.batch) == mark.of

    def forget(self, request: BucketEndRequest) -> bool:
        """Forgets which batches the channel has, and their times; answers whether there is a channel."""
        log = self._readers.find_log_or_none(request)
        if log is None:
            return False
        log.published.forget()
        with self._lock:
            self._times = {key: each for key, each in self._times.items() if key[0] != log.home}
        return True

    def find_pause_s(self, request: BucketEndRequest, union: Union) -> float:
        """The time between two looks at the boundary of a stream's channel."""
        log = self._readers.find_log_or_none(request)
        return 0.0 if log is None or log.storage.can_append else find_look_s(union.members[request.own], union)

    def is_elsewhere(self, request: BucketEndRequest, member: Member) -> bool:
        """Whether the stream's last batch is not in the channel, which is that of an epoch.

        The stream is of a fork, and its flow has read batches of the other flow that came after the epoch's begin.
        """
        if member.begins_after is None or request.batch <= member.begins_after:
            return False
        return not has_batch(self._readers.find_log_or_none(request), request.seen, request.batch)

    def look_elsewhere(self, request: BucketEndRequest, member: Member, union: Union) -> ChannelFacts:
        """As `look_at`, for such a stream. Buckets say how far it is, and not batches."""
        first = min(request.first, (member.begins_after or 0) + 1)
        return self.look_at(msgspec.structs.replace(request, batch=-1, first=first, seen=None), member, union)

    def gather(self, request: BucketEndRequest, member: Member, union: Union) -> ChannelFacts:
        """What is known of the channel of a stream, whose last request this is.

        Raises `OutputTakenBack` or `OutputBegunAnew` if the batch that the stream has read is another one, `DamagedLog`
        if a manifest is unreadable, and `BucketError` for a channel in complete mode. Raises `NotKept` if the channel
        of a replica has let rows go that the stream needs: another replica may have them.
        """
        log, position = self._readers.find_log_or_none(request), position_of(request)
        # The boundary before the bounds: its batch is among them.
        boundary = None if log is None else self._readers.read_boundary(log, find_look_s(member, union))
        bounds = None if log is None else log.published.bounds()
        if position.batch >= 0:
            if log is None or bounds is None or bounds[1] < position.batch:
                raise missing_batch(log, request, position.batch, -1 if bounds is None else bounds[1])
            refuse_other_log(log, request, position.batch)
            if not request.checked or log.published.cuts.known:
                refuse_other_batch(log, request, position.batch)
        holds = log is not None and boundary is not None and self._readers.holds(log, boundary)
        # Of sources replicas agree on the batches alone, and what the writer says comes at any time.
        counts = holds and not (union.replicated and member.is_source)
        said_ms = _read_said(boundary, member, request) if boundary is not None and counts else None
        if log is None or bounds is None:
            return ChannelFacts(member.name, position, Backlog(), position.batch, member.delay_ms, said_ms)
        if member.copies and position.batch >= 0 and position.first < bounds[0] and not request.may_lose:
            raise NotKept(position.first, bounds[0] - 1)
        first = max(position.first, bounds[0]) if request.may_lose else position.first
        measures = union.keep_bytes is not None
        backlog = self._read_backlog(log, member, range(first, bounds[1] + 1), request, measures=measures)
        if union.replicated and not member.is_source:
            backlog = replace(backlog, latest_ms=None)
        return ChannelFacts(member.name, position, backlog, bounds[1], member.delay_ms, said_ms)

    def leave(self, request: BucketLeaveRequest) -> None:
        """Forgets what a stream knows of its channels. The next plan reads it again."""
        with self._lock:
            known = list(self._times.values())
        for each in known:
            with each.lock:
                for replica in ("", *REPLICAS):
                    each.read.pop(name_stream(request, replica), None)
        with self._lock:  # Forks come and go, each with channels of its own.
            self._times = {key: each for key, each in self._times.items() if each.read}

    def _read_backlog(
        self, log: OpenLog, member: Member, batches: range, request: BucketEndRequest, *, measures: bool
    ) -> Backlog:
        """The batches with rows, and their times. Each batch is read once, and nothing is done if none is new.

        `measures`: their stored bytes, too.
        """
        # The sizes of batches cost a look at the log's index, so others that read the channel do not ask for them.
        key, cuts = (log.home, log.log_id, member.time, measures), len(log.published.cuts.known)
        with self._lock:  # Several queries may read a channel.
            known = self._times.get(key)
            if known is None or known.cuts != cuts:
                known = self._times[key] = _KnownTimes(cuts)
        with known.lock:
            stream = name_stream(request, request.replica)
            last, backlog = known.read.get(stream, (None, Backlog()))
            if last == batches:
                return backlog
            missing = [batch for batch in batches if batch not in known.batches]
            if missing:
                if measures:
                    log.catalog.refresh()
                for batch, each in manifest.load_between(log.storage, missing[0], missing[-1]):
                    if isinstance(each, DamagedLog):
                        if not request.may_lose:
                            raise each
                        known.batches[batch] = BatchTimes(batch, 0, TimeRange(None, None))
                    if isinstance(each, manifest.Manifest):
                        found = _read_times(log, each, member, request, self._clock())
                        known.batches[batch] = replace(found, size=_find_size(log, each)) if measures else found
            there = (known.batches[batch] for batch in batches if batch in known.batches)
            backlog = Backlog.of(each for each in there if each.rows)
            known.read[stream] = batches, backlog
            needed = min(each.start for each, _ in known.read.values())
            for batch in [each for each in known.batches if each < needed]:
                del known.batches[batch]
            return backlog


def position_of(request: BucketEndRequest) -> Position:
    return Position(request.until_ms, request.batch, request.first)


def name_stream(request: BucketEndRequest | BucketLeaveRequest, replica: str = "") -> str:
    return f"{request.query} {request.source} {replica}".rstrip()


def find_look_s(member: Member, union: Union) -> float:
    """How often a boundary is looked at, in s: four times while rows wait before they are answered without a channel.

    Less often, a channel that is in time would seem to stand still.
    """
    waits_ms = [2 * (union.silence_ms or 0), member.wait_ms]
    return min([LOOK_FOR_BOUNDARY_S, *(max(ms / 4000, _LEAST_LOOK_S) for ms in waits_ms if ms)])


def _find_first(log: OpenLog, bounds: tuple[int, int], member: Member, request: BucketEndRequest) -> int | None:
    """The newest batch with a row below the stream's time, by manifests from the newest back; None if there is none.

    The batches of such a channel follow one another in time: the rows of each are at or below its boundary, and none of
    a later one is. So no batch before the one that is found has a row that the stream needs.
    """
    for batch, each in manifest.load_back(log.storage, bounds[1], bounds[0]):
        if isinstance(each, manifest.Manifest) and each.rows:
            times = each.times.get(find_column(member.time, each.times, exact=is_case_sensitive(request)) or "")
            if times is not None and times.first_ms is not None and times.first_ms < request.until_ms:
                return batch
    return None


def _read_said(boundary: Boundary, member: Member, request: BucketEndRequest) -> int | None:
    """The time below which no row of a channel will come, as its boundary says; None if it says nothing."""
    column = find_column(member.time, boundary.columns, exact=is_case_sensitive(request))
    quiet_ms = None if boundary.quiet_ms is None else boundary.quiet_ms - member.delay_ms
    return max((ms for ms in (quiet_ms, boundary.columns.get(column or "")) if ms is not None), default=None)


def _find_size(log: OpenLog, found: manifest.Manifest) -> int:
    """The stored bytes of a batch, as far as the log's index has its frames."""
    entries = (log.catalog.index.output(bytes.fromhex(frame)) for frame in found.frames)
    return sum(each.location.length for each in entries if each is not None)


def _read_times(
    log: OpenLog, found: manifest.Manifest, member: Member, request: BucketEndRequest, now: float
) -> BatchTimes:
    """The times of a batch, seen first at `now`; from its rows if its manifest, of an earlier release, has none."""
    if found.truncate:
        raise BucketError(
            f"{request.path}: batch {found.batch} of {member.name} replaces all output, as in complete mode, so it has "
            f"no buckets: let that query write in append mode, or read it without buckets"
        )
    if not found.rows:
        return BatchTimes(found.batch, 0, TimeRange(None, None))
    # By this process's clock, which is never set. The writer's clock may be ahead.
    came_ms = now * 1000 - max(time.time() * 1000 - found.wall_ms, 0)
    exact = is_case_sensitive(request)
    column = find_column(member.time, found.times, exact=exact)
    if column is not None:
        return BatchTimes(found.batch, found.rows, found.times[column], came_ms)
    log.catalog.refresh()
    entries = [log.catalog.index.output(bytes.fromhex(frame)) for frame in found.frames]
    frames = {each.meta.frame_id: each.location for each in entries if each is not None}
    tables = [output_rows(log.storage, {frame: location}, None) for frame, location in frames.items()]
    ranges = [find_times(each, find_column(member.time, each.column_names, exact=exact)) for each in tables]
    return BatchTimes(found.batch, found.rows, merge_ranges(ranges), came_ms)
