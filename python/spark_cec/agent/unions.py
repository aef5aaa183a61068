"""The call of streams that read their channels by common buckets (`availability.buckets`).

Spark asks the streams of a query one after the other where its next batch ends. The first one, the leader, has a plan
made, and the others take it, so that a batch has the same buckets of all channels.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from spark_cec.agent.bucket_reads import BucketError
from spark_cec.agent.logs import OpenLog
from spark_cec.agent.messages import BucketEndAnswer, BucketEndRequest, BucketLeaveRequest, Done
from spark_cec.agent.reader import (
    EMPTY_WAIT_MS,
    ReaderCalls,
    identify_batch,
    is_case_sensitive,
    missing_batch,
    refuse_other_batch,
)
from spark_cec.availability.bucket_rows import find_times
from spark_cec.availability.buckets import (
    Backlog,
    BatchTimes,
    ChannelFacts,
    Held,
    Position,
    advance,
    as_of,
    find_boundary,
    find_holders,
    find_stable_end,
    is_back,
    note_holders,
    plan_end,
)
from spark_cec.availability.keep import LOW, Unread, measure_unread, measure_waits
from spark_cec.availability.replicas import REPLICAS, choose_copy
from spark_cec.availability.union import Member, Union, parse_union
from spark_cec.checkpoint.columns import find_column
from spark_cec.checkpoint.readers import output_rows
from spark_cec.errors import CecError, DamagedLog
from spark_cec.log import manifest
from spark_cec.log.boundary import Boundary
from spark_cec.log.times import TimeRange, merge_ranges
from spark_cec.settings import parse_settings

_LOG = logging.getLogger(__name__)

_WARN_S = 60.0

_GOES_ON = "query %s goes on without %s, %s: the rows of %s that come too late are kept aside, in the view late"


@dataclass(slots=True)
class _Stream:
    """A stream as of its last call, and what the plan of that call's batch knew of its channel; None before a plan.

    `replica`: the one whose channel the batch is read from, empty without replicas. `others`: what was known of the
    channel in the other ones.
    """

    request: BucketEndRequest
    facts: ChannelFacts | None = None
    replica: str = ""
    others: dict[str, ChannelFacts] = field(default_factory=dict)
    planned_for: tuple[Position, str] | None = None

    @property
    def has_plan(self) -> bool:
        """Whether the plan was made for the batch that the stream asks about now."""
        return self.facts is not None and self.planned_for == (_position_of(self.request), self.request.replica)


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A channel that is waited for no more. `boundary_ms`: its boundary then.

    `most_lag_ms`: it is back if it has gone on, and is less than that behind.
    """

    boundary_ms: int
    most_lag_ms: int


@dataclass(slots=True)
class _Streams:
    """The streams of one run of a query, by their source, and the present plan.

    `leader`: the stream that Spark asks first. `end_ms`: where the batch ends, None if no bucket became stable.
    `leaves_more`: stable buckets are left for the next batch, because this one would have too many rows.
    `held`: the channels that hold rows of others back, slowest first. `given_up`: those that are waited for no more.
    By the clock of this process, `moved_at`: when the last batch was planned. `unread`: what is unread of each channel,
    if the union has a bound for that.
    """

    leader: str
    moved_at: float
    members: dict[str, _Stream] = field(default_factory=dict)
    end_ms: int | None = None
    leaves_more: bool = False
    held: dict[str, Held] = field(default_factory=dict)
    given_up: dict[str, _GivenUp] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()

    def give_up(self, name: str, boundary_ms: int, most_lag_ms: int) -> None:
        """Gives up a channel that holds rows back. It is back when it is less than `most_lag_ms` behind."""
        del self.held[name]
        self.given_up[name] = _GivenUp(boundary_ms, most_lag_ms)

    def note_wait(self, holders: Mapping[str, int], ahead_ms: int, now: float) -> None:
        """Notes for which channels rows wait, as `note_holders` says."""
        self.held = note_holders(self.held, holders, ahead_ms, now)


@dataclass(slots=True)
class _KnownTimes:
    """The ranges of a channel's batches that were read before, and the last answer to each stream, by its place.

    `cuts`: how many cuts the log had; after a rollback there is one more.
    """

    cuts: int
    batches: dict[int, BatchTimes] = field(default_factory=dict)
    read: dict[str, tuple[range, Backlog]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class UnionCalls:
    """Plans the batches of queries that read channels by buckets."""

    def __init__(self, readers: ReaderCalls, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._clock = clock
        self._streams: dict[str, _Streams] = {}
        self._times: dict[tuple[str, str, str, bool], _KnownTimes] = {}
        self._warned: dict[str, float] = {}
        self._lock = threading.Lock()

    def end(self, request: BucketEndRequest) -> BucketEndAnswer:
        """Answers where the stream's next batch ends.

        Raises `OutputTakenBack` or `OutputBegunAnew` if the batch that the stream has read is another one, `DamagedLog`
        if a manifest is unreadable, and `BucketError` for a channel in complete mode.
        """
        streams = self._streams.get(request.query)
        is_new = streams is None or streams.leader != request.leader
        if streams is None or is_new:
            streams = self._streams[request.query] = _Streams(request.leader, self._clock())
        stream = streams.members.setdefault(request.source, _Stream(request))
        stream.request = request
        if request.leads and not is_new:
            self._plan(request, streams)
        position = _position_of(request)
        if streams.end_ms is None:
            return _answer(stream, position, None, streams, self._clock())
        if not stream.has_plan:  # Spark has not run the batch that was planned before.
            self._look(stream, parse_union(request.union))
        facts = stream.facts
        if facts is None or (stream.replica and find_boundary(facts) < streams.end_ms):
            return _answer(stream, position, None, streams, self._clock())
        moved, member = advance(facts, streams.end_ms), parse_union(request.union).members[request.own]
        there = _of_replica(request, member, stream.replica)
        log = self._readers.find_log_or_none(there) if moved != position else None
        of = None if log is None else identify_batch(log, moved.batch)
        answer = _answer(stream, moved, of, streams, self._clock())
        # The next plan comes before this stream asks again.
        seen = of or (request.seen if stream.replica == request.replica else None)
        stream.request = msgspec.structs.replace(
            request, until_ms=moved.until_ms, batch=moved.batch, first=moved.first, seen=seen, replica=stream.replica
        )
        return answer

    def leave(self, request: BucketLeaveRequest) -> Done:
        """Forgets a stream whose run has ended: forks of a flow come and go."""
        streams = self._streams.get(request.query)
        if streams is not None:
            streams.members.pop(request.source, None)
            if not streams.members:
                self._streams.pop(request.query, None)
        self.leave_channels(request)
        return Done()

    def find_ends(self, query: str, source: str, bucket_ms: int) -> dict[str, int]:
        """By replica, "" without replicas, the end of the buckets that were stable in a stream's channel at its last
        plan. Nothing before the first plan of a run.
        """
        streams = self._streams.get(query)
        stream = None if streams is None else streams.members.get(source)
        if stream is None or stream.facts is None:
            return {}
        known = {stream.replica: stream.facts, **stream.others}
        return {replica: find_stable_end([each], bucket_ms) or 0 for replica, each in known.items()}

    def look_at(self, request: BucketEndRequest) -> ChannelFacts:
        """What is known of the channel at the path of the request, which need not be one of its union's channels.

        Raises what `end` does. Call `leave_channels` when such a channel is not read any more.
        """
        union = parse_union(request.union)
        return self._look_at_copy(request, union.members[request.own], union)

    def leave_channels(self, request: BucketLeaveRequest) -> None:
        """Forgets what a stream knows of its channels. The next plan reads it again."""
        with self._lock:
            known = list(self._times.values())
        for each in known:
            with each.lock:
                for replica in ("", *REPLICAS):
                    each.read.pop(_name_stream(request, replica), None)
        with self._lock:  # Forks come and go, each with channels of its own.
            self._times = {key: each for key, each in self._times.items() if each.read}

    def _plan(self, request: BucketEndRequest, streams: _Streams) -> None:
        """Plans the next batch. In the leader's second call of a run all streams of the query have asked once."""
        union = parse_union(request.union)
        for stream in streams.members.values():
            self._look(stream, union)
        channels = [stream.facts for stream in streams.members.values() if stream.facts is not None]
        self._note_waits(request.query, streams, union, [each for each in channels if each.name not in union.absent])
        if union.pause_ms:
            then_ms = self._clock() * 1000 - union.pause_ms
            for stream in streams.members.values():
                stream.facts = None if stream.facts is None else as_of(stream.facts, then_ms)
            channels = [stream.facts for stream in streams.members.values() if stream.facts is not None]
        absent = streams.given_up.keys() | set(union.absent)
        wait_ms = min(EMPTY_WAIT_MS, parse_settings(request.conf).quiet_inputs_ms or EMPTY_WAIT_MS)
        rests_ms = (self._clock() - streams.moved_at) * 1000
        # A stream's bound is for its own channel, and the channels need not have equally many rows.
        max_rows = None if request.max_rows is None else request.max_rows * len(channels)
        streams.end_ms = plan_end(
            channels, union.bucket_ms, max_rows, may_be_empty=rests_ms >= wait_ms, absent=absent
        )
        stable_ms = find_stable_end(channels, union.bucket_ms, absent)
        streams.leaves_more = None not in (streams.end_ms, stable_ms) and streams.end_ms != stable_ms
        if streams.end_ms is not None:
            streams.moved_at = self._clock()

    def _note_waits(self, query: str, streams: _Streams, union: Union, channels: Sequence[ChannelFacts]) -> None:
        """Notes for which of these channels rows wait. Gives up those that hold rows for too long, until they are back.
        """
        boundaries = {each.name: find_boundary(each) for each in channels}
        ahead_ms = max(boundaries.values(), default=0)
        for each in channels:
            left = streams.given_up.get(each.name)
            if left is not None and is_back(each, union.bucket_ms, left.boundary_ms, ahead_ms, left.most_lag_ms):
                del streams.given_up[each.name]
                _LOG.warning("query %s waits for %s again", query, each.name)
        waited_for = [each for each in channels if each.name not in streams.given_up]
        ahead_ms = max((boundaries[each.name] for each in waited_for), default=0) // union.bucket_ms * union.bucket_ms
        streams.note_wait(find_holders(waited_for, union.bucket_ms), ahead_ms, self._clock())
        for name, most_lag_ms, why in _list_overdue(streams, union, waited_for, self._clock()):
            streams.give_up(name, boundaries[name], most_lag_ms)
            _LOG.warning(_GOES_ON, query, name, why, name)
        if union.keep_bytes is not None:
            # Spark makes two streams of a channel that is joined with itself.
            known = list({each.name: each for each in channels}.values())
            streams.unread = measure_unread(known, union.bucket_ms, streams.given_up.keys())

    def _look(self, stream: _Stream, union: Union) -> None:
        """Learns what is known of the channel of a stream, and chooses the replica to read, if there are any.

        A replica that cannot be read is none. If none can be read, raises the error of the present one.
        """
        request = stream.request
        member = union.members[request.own]
        stream.planned_for = _position_of(request), request.replica
        if not member.copies:
            stream.facts = self._gather(request, member, union)
            return
        found, errors = dict[str, ChannelFacts](), dict[str, Exception]()
        for copy in member.copies:
            try:
                found[copy.replica] = self._look_at_copy(_of_replica(request, member, copy.replica), member, union)
            except (CecError, OSError) as error:
                errors[copy.replica] = error
        for replica, why in errors.items():
            self.warn(request.query, f"the channel of {member.name} in replica {replica} cannot be read: {why}")
        if not found:
            raise errors.get(request.replica) or next(iter(errors.values()))
        ends = {replica: find_stable_end([each], union.bucket_ms) or 0 for replica, each in found.items()}
        stream.replica = choose_copy(request.replica, ends, request.until_ms, union.bucket_ms)
        stream.facts = found.pop(stream.replica)
        stream.others = found

    def _look_at_copy(self, request: BucketEndRequest, member: Member, union: Union) -> ChannelFacts:
        """What is known of the channel in one replica. `request`: of the stream, as for that channel."""
        if request.batch >= 0 or request.first > 0:
            return self._gather(request, member, union)
        # The stream comes from the other replica, or begins. So it reads whatever is kept from its buckets on.
        log = self._readers.find_log_or_none(request)
        bounds = None if log is None else log.published.bounds()
        if bounds is None:
            return self._gather(request, member, union)
        facts = self._gather(msgspec.structs.replace(request, first=bounds[0]), member, union)
        there = replace(facts, position=replace(facts.position, batch=facts.newest))
        return replace(there, position=advance(there, there.position.until_ms))

    def warn(self, query: str, message: str) -> None:
        """Warns, once a minute for each message."""
        now = self._clock()
        if now - self._warned.get(message, -math.inf) >= _WARN_S:
            self._warned[message] = now
            _LOG.warning("query %s: %s", query, message)

    def _gather(self, request: BucketEndRequest, member: Member, union: Union) -> ChannelFacts:
        """What is known of the channel of a stream, whose last request this is."""
        log, position = self._readers.find_log_or_none(request), _position_of(request)
        # The boundary before the bounds: its batch is among them.
        boundary = None if log is None else self._readers.read_boundary(log)
        bounds = None if log is None else log.published.bounds()
        if position.batch >= 0:
            if log is None or bounds is None or bounds[1] < position.batch:
                raise missing_batch(log, request, position.batch, -1 if bounds is None else bounds[1])
            if not request.checked or log.published.cuts.known:
                refuse_other_batch(log, request, position.batch)
        holds = log is not None and boundary is not None and self._readers.holds(log, boundary)
        # Of sources replicas agree on the batches alone, and what the writer says comes at any time.
        counts = holds and not (union.replicated and member.is_source)
        said_ms = _read_said(boundary, member, request) if boundary is not None and counts else None
        if log is None or bounds is None:
            return ChannelFacts(member.name, position, Backlog(), position.batch, member.delay_ms, said_ms)
        first = max(position.first, bounds[0]) if request.may_lose else position.first
        measures = union.keep_bytes is not None
        backlog = self._read_backlog(log, member, range(first, bounds[1] + 1), request, measures=measures)
        if union.replicated and not member.is_source:
            backlog = replace(backlog, latest_ms=None)
        return ChannelFacts(member.name, position, backlog, bounds[1], member.delay_ms, said_ms)

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
            stream = _name_stream(request, request.replica)
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


def _list_overdue(
    streams: _Streams, union: Union, channels: Sequence[ChannelFacts], now: float
) -> list[tuple[str, int, str]]:
    """The channels to give up: how far each may be behind when it is back, in ms, and for the log what waits for it.

    `channels`: those that are waited for. `streams.held` knows which of them hold rows back now.
    """
    found = []
    if union.most_wait_ms is not None:
        why = f"for which rows have waited for {union.most_wait_ms / 1000:g} s"
        due_since = now - union.most_wait_ms / 1000
        found = [(name, union.most_wait_ms, why) for name, each in streams.held.items() if each.since <= due_since]
    if union.keep_bytes is None or not union.goes_on:
        return found
    known = {each.name: each for each in channels}
    boundaries = {name: find_boundary(each) for name, each in known.items()}
    for name, size in measure_waits(list(known.values()), union.bucket_ms).items():
        if size > union.keep_bytes and name not in (each for each, *_ in found):
            # In event time the bytes that may wait are as much as the channel is behind now. It must come clearly
            # nearer: else a slow one would be waited for again at once, and be given up again.
            why = f"for which {size:,} bytes wait, more than {union.keep_bytes:,}"
            found.append((name, int(LOW * (max(boundaries.values()) - boundaries[name])), why))
    return found


def _position_of(request: BucketEndRequest) -> Position:
    return Position(request.until_ms, request.batch, request.first)


def _name_stream(request: BucketEndRequest | BucketLeaveRequest, replica: str = "") -> str:
    return f"{request.query} {request.source} {replica}".rstrip()


def _of_replica(request: BucketEndRequest, member: Member, replica: str) -> BucketEndRequest:
    """The request as for the channel of a replica. If it is another one, the stream has looked at no batch of it."""
    path = next((each.path for each in member.copies if each.replica == replica), request.path)
    if replica == request.replica:
        return msgspec.structs.replace(request, path=path)
    return msgspec.structs.replace(request, path=path, replica=replica, batch=-1, first=0, seen=None)


def _answer(stream: _Stream, at: Position, of: str | None, streams: _Streams, now: float) -> BucketEndAnswer:
    request, facts = stream.request, stream.facts
    moves = at != _position_of(request)
    has_changed = moves and facts is not None and stream.replica != request.replica
    needless = {replica: advance(each, at.until_ms).first - 1 for replica, each in stream.others.items()}
    return BucketEndAnswer(
        until_ms=at.until_ms, batch=at.batch, first=at.first, of=of, newest=at.batch + streams.leaves_more,
        waits_for=tuple(streams.held), held_ms=tuple(int((now - each.since) * 1000) for each in streams.held.values()),
        replica=stream.replica if moves else request.replica,
        since=facts.position.first if has_changed and facts is not None else None, others=needless if moves else {},
        unread=tuple(each.channel for each in streams.unread),
        due_bytes=tuple(each.due_bytes for each in streams.unread),
        waiting_bytes=tuple(each.waiting_bytes for each in streams.unread),
    )  # fmt: skip


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
