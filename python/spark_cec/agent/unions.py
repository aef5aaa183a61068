"""The call of streams that read their channels by common buckets (`availability.buckets`).

Spark asks the streams of a query one after the other where its next batch ends. The first one, the leader, has a plan
made, and the others take it, so that a batch has the same buckets of all channels.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from spark_cec.agent.channel_looks import ChannelLooks, Mark, position_of
from spark_cec.agent.logs import cec_directory
from spark_cec.agent.messages import BucketEndAnswer, BucketEndRequest, BucketLeaveRequest, Done
from spark_cec.agent.reader import (
    EMPTY_WAIT_MS,
    ReaderCalls,
    identify_batch,
    identify_end,
)
from spark_cec.availability.buckets import (
    ChannelFacts,
    Held,
    Position,
    Stand,
    advance,
    as_of,
    find_back,
    find_boundary,
    find_holders,
    find_silent,
    find_stable_end,
    is_back,
    leave_out_future,
    note_holders,
    note_left,
    note_stands,
    plan_end,
)
from spark_cec.availability.epochs import find_flow
from spark_cec.availability.keep import LOW, Unread, measure_unread, measure_waits
from spark_cec.availability.replicas import choose_copy
from spark_cec.availability.union import Member, Union, parse_union
from spark_cec.errors import CecError
from spark_cec.recovery.query_files import QUERY
from spark_cec.settings import parse_settings

_LOG = logging.getLogger(__name__)

_WARN_S = 60.0

_PLANS = 3
"""A plan is made anew so often, at most, because batches of a channel turn out to be others. Later another one is made.
"""

AHEAD_MS = 10_000
"""Rows may be dated so far ahead of this machine's clock: clocks differ. For later ones nobody waits before their time.
"""

_GOES_ON = "query %s goes on without %s, %s: the rows of %s that come too late are kept aside, in the view late"


@dataclass(slots=True)
class _Stream:
    """A stream as of its last call, and what the plan of that call's batch knew of its channel; None before a plan.

    `replica`: the one whose channel the batch is read from, empty without replicas. `others`: what was known of the
    channel in the other ones. `ends`: by replica, the end of the stable buckets, and since when it is there.
    `is_elsewhere`: the batch before is of another channel, as `judged` for that batch and its identity. `marks`: by
    replica, the newest batch that was looked at. `is_checked`: in this run the batch before was compared with `seen`.
    `listed`: the replicas whose batches were listed anew in this run. `broken`: those that could not be read last time.
    """

    request: BucketEndRequest
    facts: ChannelFacts | None = None
    replica: str = ""
    others: dict[str, ChannelFacts] = field(default_factory=dict)
    ends: dict[str, tuple[int, float]] = field(default_factory=dict)
    planned_for: tuple[Position, str] | None = None
    is_elsewhere: bool = False
    judged: tuple[int, str | None] | None = None
    marks: dict[str, Mark] = field(default_factory=dict)
    is_checked: bool = False
    listed: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    @property
    def has_plan(self) -> bool:
        """Whether the plan was made for the batch that the stream asks about now."""
        return self.facts is not None and self.planned_for == (position_of(self.request), self.request.replica)

    def find_first(self, replica: str) -> int:
        """The batch from which on the stream may need rows of a replica that it has not read; 0 if it is unknown."""
        known = self.facts if replica == self.replica else self.others.get(replica)
        return 0 if known is None else advance(known, self.request.until_ms).first

    def forget(self, replica: str) -> None:
        """Forgets what it knows of the channel in a replica, whose batches are others now."""
        self.marks.pop(replica, None)
        self.others.pop(replica, None)
        self.listed.discard(replica)
        if replica == self.replica:
            self.facts = None
        if replica == self.request.replica:
            self.is_checked = False

    def note_end(self, replica: str, end_ms: int, now: float) -> float:
        """Notes the end of the stable buckets in a replica; answers since when it is there."""
        before = self.ends.get(replica)
        if before is None or before[0] != end_ms:
            self.ends[replica] = end_ms, now
        return self.ends[replica][1]


@dataclass(frozen=True, slots=True)
class Standing:
    """A stream's channel in one replica. `end_ms`: the end of its stable buckets, which is there for `still_s` seconds.

    `first`: the oldest batch of which the stream may need rows.
    """

    end_ms: int
    first: int
    still_s: float


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
    `held`: the channels that hold rows of others back, slowest first. `left_ms`: the boundaries of those for which the
    query does not wait, when they were left out; `back`: those of them that are back. `has_planned`: before, `held` is
    what the flow of a fork knew, which may be old. `given_up`: those that are waited for no more. By the clock of this
    process, `moved_at`: when the last batch was planned. `unread`: what is unread of each channel, if the union has a
    bound for that. `stands`: since when the boundaries stand still, and `silent`, as of `find_silent`, if it has a
    bound for that. `has_state`: the query has operators with state, as far as is known; then it has them until its end.
    `asked_at`: when that was read. `yields_since`: since when all channels are back for which the query did not wait;
    None if it waited for all, or if some are away.
    """

    leader: str
    moved_at: float
    members: dict[str, _Stream] = field(default_factory=dict)
    end_ms: int | None = None
    leaves_more: bool = False
    held: dict[str, Held] = field(default_factory=dict)
    back: tuple[str, ...] = ()
    has_planned: bool = False
    left_ms: dict[str, int] = field(default_factory=dict)
    given_up: dict[str, _GivenUp] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()
    stands: dict[str, Stand] = field(default_factory=dict)
    silent: dict[str, float] = field(default_factory=dict)
    has_state: bool = False
    asked_at: float = -math.inf
    yields_since: float | None = None

    @property
    def facts(self) -> list[ChannelFacts]:
        """The facts about the channels."""
        return [stream.facts for stream in self.members.values() if stream.facts is not None]

    @property
    def waits(self) -> dict[str, float]:
        """The channels for which rows wait, in a channel or in the query's state, and since when."""
        found = {name: each.since for name, each in self.held.items()}
        for name, since in self.silent.items():  # a row that comes later must not begin the wait anew
            found[name] = min(since, found.get(name, since))
        return found

    def give_up(self, name: str, boundary_ms: int, most_lag_ms: int) -> None:
        """Gives up a channel that holds rows back. It is back when it is less than `most_lag_ms` behind."""
        del self.held[name]
        self.given_up[name] = _GivenUp(boundary_ms, most_lag_ms)

    def note_wait(self, holders: Mapping[str, int], ahead_ms: int, now: float) -> None:
        """Notes for which channels rows wait, as `note_holders` says."""
        self.held, self.has_planned = note_holders(self.held, holders, ahead_ms, now), True


class UnionCalls:
    """Plans the batches of queries that read channels by buckets."""

    def __init__(
        self, readers: ReaderCalls, channels: ChannelLooks, clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`clock`: seconds, which never go back. `wall`: seconds since 1970."""
        self._readers = readers
        self._clock = clock
        self._wall = wall
        self._streams: dict[str, _Streams] = {}
        self._channels = channels
        self._warned: dict[str, float] = {}

    def end(self, request: BucketEndRequest) -> BucketEndAnswer:
        """Answers where the stream's next batch ends.

        Raises the errors of `ChannelLooks.gather`.
        """
        streams = self._streams.get(request.query)
        is_new = streams is None or streams.leader != request.leader
        if streams is None or is_new:
            streams = self._streams[request.query] = self._begin(request)
        stream = streams.members.setdefault(request.source, _Stream(request))
        stream.request = request
        if request.leads and not is_new:
            self._plan(request, streams)
        position = position_of(request)
        if streams.end_ms is None:
            return _answer(stream, position, None, streams, self._clock())
        if not stream.has_plan:  # Spark has not run the batch that was planned before.
            stream.facts, stream.others = None, {}  # They are of a later time.
            self._look(stream, parse_union(request.union))
        facts = stream.facts
        if facts is None or (stream.replica and find_boundary(facts) < streams.end_ms):
            return _answer(stream, position, None, streams, self._clock())
        moved, member = advance(facts, streams.end_ms), parse_union(request.union).members[request.own]
        there = _of_replica(request, member, stream.replica)
        log = self._readers.find_log_or_none(there) if moved != position else None
        of = None
        if log is not None:  # A replica may have been brought back from a copy: its next look says so.
            of = identify_batch(log, moved.batch) if stream.replica else identify_end(log, there, moved.batch)
        answer = _answer(stream, moved, of, streams, self._clock())
        # The next plan comes before this stream asks again.
        seen = of or (request.seen if stream.replica == request.replica else None)
        stream.request = msgspec.structs.replace(
            request, until_ms=moved.until_ms, batch=moved.batch, first=moved.first, seen=seen, replica=stream.replica
        )
        return answer

    def _begin(self, request: BucketEndRequest) -> _Streams:
        """The streams of a run. A fork goes on with the waits of its flow, and with what that one has given up.

        Else rows would wait anew for an input that went away before the fork began.
        If this agent came after one that died between two streams of a query, the leader has not asked here. Then its
        next call begins anew, so that it plans when all others have asked.
        """
        flow, leader = self._streams.get(find_flow(request.query) or ""), request.leader if request.leads else ""
        if flow is None:
            return _Streams(leader, self._clock())
        return _Streams(
            leader, self._clock(), held=dict(flow.held), given_up=dict(flow.given_up),
            stands=dict(flow.stands), has_state=flow.has_state,
        )  # fmt: skip

    def leave(self, request: BucketLeaveRequest) -> Done:
        """Forgets a stream whose run has ended: forks of a flow come and go."""
        streams = self._streams.get(request.query)
        if streams is not None:
            streams.members.pop(request.source, None)
            if not streams.members:
                self._streams.pop(request.query, None)
        self._channels.leave(request)
        return Done()

    def leaves_rows(self, query: str) -> bool:
        """Whether the last plan of a query has left stable rows for the next batch, because of its bound."""
        streams = self._streams.get(query)
        return streams is not None and streams.leaves_more

    def find_standings(self, query: str, source: str, until_ms: int, bucket_ms: int) -> dict[str, Standing]:
        """How a stream's channel stood in each replica at its last plan; one replica "" without replicas.

        `until_ms`: the stream has all rows below. It is empty before the first plan of a run.
        """
        streams = self._streams.get(query)
        stream = None if streams is None else streams.members.get(source)
        if stream is None or stream.facts is None:
            return {}
        now, found = self._clock(), dict[str, Standing]()
        for replica, each in {stream.replica: stream.facts, **stream.others}.items():
            end_ms = find_stable_end([each], bucket_ms) or 0
            still_s = now - stream.note_end(replica, end_ms, now)
            found[replica] = Standing(end_ms, advance(each, until_ms).first, still_s)
        return found

    def _plan(self, request: BucketEndRequest, streams: _Streams) -> None:
        """Plans the next batch. In the leader's second call of a run all streams of the query have asked once.

        If somebody has brought a channel back from a copy, the facts about it are old, and no plan may follow them. To
        find out costs a request for each replica, so it is done when there is a batch.
        """
        for _ in range(_PLANS):
            self._plan_once(request, streams)
            if streams.end_ms is None:
                return
            if not self._forget_replaced(streams, parse_union(request.union)):
                streams.moved_at = self._clock()
                return
        streams.end_ms = None

    def _forget_replaced(self, streams: _Streams, union: Union) -> bool:
        """Forgets the channels of replicas whose batches are others now; answers whether there are any."""
        replaced = [
            (stream, replica)
            for stream in streams.members.values()
            for replica in list(stream.marks)
            if not self._has_still(stream, replica, union.members[stream.request.own])
        ]
        for stream, replica in replaced:
            self._forget(stream, replica, union.members[stream.request.own])
        return bool(replaced)

    def _forget(self, stream: _Stream, replica: str, member: Member) -> None:
        """Forgets the facts about a replica's channel, whose batches are others now."""
        stream.forget(replica)
        self._readers.forget_trails(_of_replica(stream.request, member, replica).path)

    def _plan_once(self, request: BucketEndRequest, streams: _Streams) -> None:
        union = parse_union(request.union)
        if request.absent is not None:
            union = replace(union, absent=request.absent)
        for stream in streams.members.values():
            self._look(stream, union)
        channels = self._leave_out_future(request.query, streams.facts)
        self._note_waits(request.query, streams, union, channels)
        streams.left_ms = note_left(streams.left_ms, channels, union.absent)
        back = find_back(channels, streams.left_ms, union.most_lag_ms)
        if union.pause_ms:
            then_ms = self._clock() * 1000 - union.pause_ms
            for stream in streams.members.values():
                stream.facts = None if stream.facts is None else as_of(stream.facts, then_ms)
            channels = self._leave_out_future(request.query, streams.facts)
        # Its rows must have waited, too: else the batch would wait for them.
        streams.back = tuple(sorted(back & find_back(channels, streams.left_ms, union.most_lag_ms)))
        if self._yields(streams, union):
            streams.end_ms, streams.leaves_more = None, False
            return
        absent = streams.given_up.keys() | set(union.absent)
        if not absent:  # all inputs have come as far
            channels = streams.facts
        known_ms = parse_settings(request.conf).quiet_inputs_ms, union.pause_of_empty_ms
        wait_ms = min([EMPTY_WAIT_MS, *(each for each in known_ms if each is not None)])
        rests_ms = (self._clock() - streams.moved_at) * 1000
        # A stream's bound is for its own channel, and the channels need not have equally many rows.
        max_rows = None if request.max_rows is None else request.max_rows * len(channels)
        streams.end_ms = plan_end(
            channels, union.bucket_ms, max_rows, may_be_empty=rests_ms >= wait_ms, absent=absent
        )
        stable_ms = find_stable_end(channels, union.bucket_ms, absent)
        streams.leaves_more = None not in (streams.end_ms, stable_ms) and streams.end_ms != stable_ms

    def _yields(self, streams: _Streams, union: Union) -> bool:
        """Whether the epoch of a flow that catches up lets it have the processors, and plans no batch.

        If the driver has the query wait for the channels again, it is because they are back.
        """
        if union.absent:
            since = self._clock() if streams.yields_since is None else streams.yields_since
            streams.yields_since = since if set(streams.back).issuperset(union.absent) else None
        return streams.yields_since is not None and self._clock() - streams.yields_since < union.yields_ms / 1000

    def _leave_out_future(self, query: str, channels: Sequence[ChannelFacts]) -> list[ChannelFacts]:
        """The channels without the rows that are dated too far ahead of this machine's clock, of which this warns."""
        most_ms = int(self._wall() * 1000) + AHEAD_MS
        for each in channels:
            if (each.backlog.latest_ms or 0) > most_ms:
                self.warn(
                    query, f"{each.name} has rows that are dated more than {AHEAD_MS // 1000} seconds ahead of this "
                    f"machine's clock: no other input counts as away because it has not come so far",
                )  # fmt: skip
        return [leave_out_future(each, most_ms) for each in channels]

    def _note_waits(self, query: str, streams: _Streams, union: Union, channels: Sequence[ChannelFacts]) -> None:
        """Notes for which channels rows wait. Gives up those that hold rows for too long, until they are back."""
        boundaries = {each.name: find_boundary(each) for each in channels}
        ahead_ms = max(boundaries.values(), default=0)
        for each in channels:
            left = streams.given_up.get(each.name)
            if left is not None and is_back(each, union.bucket_ms, left.boundary_ms, ahead_ms, left.most_lag_ms):
                del streams.given_up[each.name]
                _LOG.warning("query %s waits for %s again", query, each.name)
        waited_for = [each for each in channels if each.name not in streams.given_up]
        ahead_ms = max((boundaries[each.name] for each in waited_for), default=0) // union.bucket_ms * union.bucket_ms
        streams.note_wait(find_holders(waited_for, union.bucket_ms, union.absent), ahead_ms, self._clock())
        streams.silent = self._find_silent(query, streams, union, waited_for)
        for name, most_lag_ms, why in _list_overdue(streams, union, waited_for, self._clock()):
            streams.give_up(name, boundaries[name], most_lag_ms)
            _LOG.warning(_GOES_ON, query, name, why, name)
        if union.keep_bytes is not None:
            # Spark makes two streams of a channel that is joined with itself.
            known = list({each.name: each for each in channels}.values())
            streams.unread = measure_unread(known, union.bucket_ms, streams.given_up.keys())

    def _find_silent(
        self, query: str, streams: _Streams, union: Union, channels: Sequence[ChannelFacts]
    ) -> dict[str, float]:
        """The channels that hold back what the query has in its state, as `find_silent` says.

        Such a channel is never given up: its rows would be late, and none waits for it.
        """
        if union.silence_ms is None:
            return {}
        now, silence_s = self._clock(), union.silence_ms / 1000
        streams.stands = note_stands(streams.stands, channels, union.bucket_ms, now)
        found = find_silent(streams.stands, now - silence_s, union.absent)
        if found and not streams.has_state and now - streams.asked_at >= silence_s / 4:
            streams.asked_at, streams.has_state = now, has_state(query)
        if not found or not streams.has_state:
            return {}
        # Between two looks at a boundary it seems to stand still.
        pause_s = max(self._channels.find_pause_s(each.request, union) for each in streams.members.values())
        return {name: since for name, since in found.items() if now - since >= 2 * pause_s}

    def _look(self, stream: _Stream, union: Union) -> None:
        """Learns what is known of the channel of a stream, and chooses the replica to read, if there are any.

        A replica that cannot be read is none. If none can be read, raises the error of the present one.
        """
        request = stream.request
        member = union.members[request.own]
        stream.planned_for = position_of(request), request.replica
        if not member.copies:
            if stream.judged != (request.batch, request.seen):  # Spark asks many times for each batch.
                stream.judged = request.batch, request.seen
                stream.is_elsewhere = self._channels.is_elsewhere(request, member)
            look = self._channels.look_elsewhere if stream.is_elsewhere else self._channels.gather
            stream.facts = look(_check_once(stream, request), member, union)
            stream.is_checked = True
            return
        found, errors = dict[str, ChannelFacts](), dict[str, Exception]()
        for copy in member.copies:
            try:
                found[copy.replica] = self._look_at_copy(stream, copy.replica, member, union)
            except (CecError, OSError) as error:
                errors[copy.replica] = error
                stream.marks.pop(copy.replica, None)  # no plan follows it
                stream.broken.add(copy.replica)
        for replica, why in errors.items():
            self.warn(request.query, f"the channel of {member.name} in replica {replica} cannot be read: {why}")
        if not found:
            raise errors.get(request.replica) or next(iter(errors.values()))
        ends = {replica: find_stable_end([each], union.bucket_ms) or 0 for replica, each in found.items()}
        stream.replica = choose_copy(request.replica, ends, request.until_ms, union.bucket_ms)
        stream.facts = found.pop(stream.replica)
        stream.others = found

    def _look_at_copy(self, stream: _Stream, replica: str, member: Member, union: Union) -> ChannelFacts:
        """Looks at the channel in a replica.

        If somebody has brought that replica back from a copy, the numbers of batches say nothing any more, and the look
        begins anew. Raises `OutputBegunAnew` if the stream has read such a batch.
        """
        mark = stream.marks.get(replica)
        facts, asks = self._look_on(stream, replica, member, union)
        if replica in stream.broken:  # somebody may have brought it back meanwhile
            self._forget(stream, replica, member)
            facts, asks = self._look_on(stream, replica, member, union)
            stream.broken.discard(replica)
        if mark is not None and mark.batch == facts.newest:
            return facts
        if mark is not None and not self._channels.has_still(asks, mark):
            self._forget(stream, replica, member)
            facts, asks = self._look_on(stream, replica, member, union)
        stream.marks[replica] = self._channels.identify_newest(asks, facts.newest)
        return facts

    def _look_on(
        self, stream: _Stream, replica: str, member: Member, union: Union
    ) -> tuple[ChannelFacts, BucketEndRequest]:
        """Looks at the channel in a replica; answers the facts, and the request for them."""
        asks = _of_replica(stream.request, member, replica, stream.find_first(replica))
        if replica not in stream.listed and self._channels.forget(asks):
            stream.listed.add(replica)
        is_read = replica == stream.request.replica
        facts = self._channels.look_at(_check_once(stream, asks) if is_read else asks, member, union)
        stream.is_checked = stream.is_checked or is_read
        return facts, asks

    def _has_still(self, stream: _Stream, replica: str, member: Member) -> bool:
        try:
            return self._channels.has_still(_of_replica(stream.request, member, replica), stream.marks[replica])
        except (CecError, OSError):  # the next look finds out, and another replica may do
            return False

    def warn(self, query: str, message: str) -> None:
        """Warns, once a minute for each message."""
        now = self._clock()
        if now - self._warned.get(message, -math.inf) >= _WARN_S:
            self._warned[message] = now
            _LOG.warning("query %s: %s", query, message)


def has_state(query: str) -> bool:
    """Whether a query has operators with state, as far as its note tells. `query`: a directory in its checkpoint."""
    checkpoint = query.rpartition("/")[0]
    known = QUERY.read_if_sound(cec_directory(checkpoint)) if checkpoint else None
    return known is not None and bool(known.get("operators"))


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


def _check_once(stream: _Stream, request: BucketEndRequest) -> BucketEndRequest:
    """The request, so that the batch before is compared with `seen` once in each run.

    The first call of a run may plan nothing, so the shim cannot say whether that was done.
    """
    return msgspec.structs.replace(request, checked=request.checked and stream.is_checked)


def _of_replica(request: BucketEndRequest, member: Member, replica: str, first: int = 0) -> BucketEndRequest:
    """The request as for the channel of a replica. If it is another one, the stream has looked at no batch of it.

    `first`: the batch from which on it may need rows of that one; 0 if it is unknown.
    """
    path = next((each.path for each in member.copies if each.replica == replica), request.path)
    if replica == request.replica:
        return msgspec.structs.replace(request, path=path)
    return msgspec.structs.replace(request, path=path, replica=replica, batch=-1, first=first, seen=None)


def _answer(stream: _Stream, at: Position, of: str | None, streams: _Streams, now: float) -> BucketEndAnswer:
    request, facts, waits = stream.request, stream.facts, streams.waits if streams.has_planned else {}
    moves = at != position_of(request)
    has_changed = moves and facts is not None and (stream.replica != request.replica or stream.is_elsewhere)
    needless = {replica: advance(each, at.until_ms).first - 1 for replica, each in stream.others.items()}
    return BucketEndAnswer(
        until_ms=at.until_ms, batch=at.batch, first=at.first, of=of, newest=at.batch + streams.leaves_more,
        waits_for=tuple(waits), held_ms=tuple(int((now - since) * 1000) for since in waits.values()),
        back=streams.back, given_up=tuple(sorted(streams.given_up)),
        replica=stream.replica if moves else request.replica,
        since=facts.position.first if has_changed and facts is not None else None, others=needless if moves else {},
        unread=tuple(each.channel for each in streams.unread),
        due_bytes=tuple(each.due_bytes for each in streams.unread),
        waiting_bytes=tuple(each.waiting_bytes for each in streams.unread),
    )  # fmt: skip
