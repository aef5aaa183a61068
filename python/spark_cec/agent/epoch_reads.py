"""The call of streams by buckets that read tentative rows, too: which epoch, and how far (`availability.tentative`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from spark_cec.agent.channel_looks import ChannelLooks
from spark_cec.agent.epochs import EpochCalls
from spark_cec.agent.messages import (
    BucketEndRequest,
    BucketLeaveRequest,
    Done,
    EpochEndAnswer,
    EpochEndRequest,
    EpochReading,
)
from spark_cec.agent.reader import ReaderCalls, identify_batch
from spark_cec.agent.unions import Standing, UnionCalls
from spark_cec.availability.buckets import ChannelFacts, advance, find_stable_end
from spark_cec.availability.epochs import epoch_checkpoint
from spark_cec.availability.tentative import OpenEpoch, Reading, choose_epoch, stays
from spark_cec.availability.union import Copy, Union, parse_union
from spark_cec.errors import CecError


@dataclass(frozen=True, slots=True)
class _Found:
    """An open epoch, the question for its channel, and the facts about it."""

    number: int
    asks: BucketEndRequest
    facts: ChannelFacts
    pause_ms: int


class EpochReadCalls:
    """Answers what a stream reads of an epoch, without replicas or of one of them."""

    def __init__(
        self, readers: ReaderCalls, unions: UnionCalls, channels: ChannelLooks, epochs: EpochCalls
    ) -> None:  # fmt: skip
        self._readers = readers
        self._unions = unions
        self._channels = channels
        self._epochs = epochs
        self._firsts: dict[tuple[str, str], dict[str, int]] = {}

    def end(self, request: EpochEndRequest) -> EpochEndAnswer:
        """Answers the epoch whose rows count in the stream's next batch.

        Stable rows come whatever becomes of an epoch. So an epoch that cannot be read is none.
        """
        union = parse_union(request.union)
        member, bucket_ms, present = union.members[request.own], union.bucket_ms, request.present
        standings = self._unions.find_standings(request.query, request.source, request.until_ms, bucket_ms)
        if not standings:  # a run begins
            self._firsts.pop((request.query, request.source), None)
            return EpochEndAnswer(reading=present)
        has = None if present is None else Reading(present.replica, present.number, present.until_ms)
        kept = EpochEndAnswer(reading=present if has is not None and stays(has, request.until_ms) else None)
        if self._unions.leaves_rows(request.query):  # a fork has the flow's rows, too
            return kept
        found = {
            copy.replica: self._look(request, union, copy, standings.get(copy.replica))
            for copy in member.copies or (Copy("", member.path),)
        }
        known = {replica: each for replica, each in found.items() if each is not None}
        self._forget_others(request, known.values())
        epochs = {
            replica: OpenEpoch(each.number, find_stable_end([each.facts], bucket_ms) or 0, each.pause_ms)
            for replica, each in known.items()
        }
        ends = {replica: each.end_ms for replica, each in standings.items()}
        still = [replica for replica, each in standings.items() if each.still_s * 1000 >= member.wait_ms]
        replica = choose_epoch(has, epochs, ends, request.until_ms, member.wait_ms, bucket_ms, still)
        if replica is not None:
            try:
                return EpochEndAnswer(reading=self._move(request, known[replica], epochs[replica].end_ms))
            except (CecError, OSError) as error:  # it was deleted since
                self._unions.warn(request.query, f"the epoch at {known[replica].asks.path} is not read: {error}")
        return kept

    def leave(self, request: BucketLeaveRequest) -> Done:
        """Forgets a stream whose run has ended."""
        if self._firsts.pop((request.query, request.source), None) is not None:
            self._channels.leave(BucketLeaveRequest(query=request.query, source=_name(request.source)))
        return self._unions.leave(request)

    def _look(self, request: EpochEndRequest, union: Union, copy: Copy, flow: Standing | None) -> _Found | None:
        """The open epoch of the flow in one replica; None if there is none, or if it cannot be read.

        `flow`: how the flow's own channel stands there; None if it cannot be read.
        """
        try:
            epoch = self._epochs.find(copy.path)
            if epoch is None or not epoch.is_open or flow is None:
                return None
            path = epoch_checkpoint(copy.path, epoch.number)
            # Up to the fork its batches are the flow's.
            known = self._firsts.get((request.query, request.source), {}).get(path, 0)
            asks = _ask(request, path, copy.replica, epoch.number, max(known, min(flow.first, epoch.begins_after + 1)))
            member = replace(union.members[request.own], copies=())  # no other replica has the rows of an epoch
            facts = self._channels.look_at(asks, member, union)
            return _Found(epoch.number, asks, facts, epoch.pause_ms)
        except (CecError, OSError) as error:
            self._unions.warn(request.query, f"an epoch at {copy.path} is not read: {error}")
            return None

    def _move(self, request: EpochEndRequest, epoch: _Found, end_ms: int) -> EpochReading:
        """The reading of an epoch up to its stable buckets' end; the present one if the stream has all of them."""
        present, asks, facts = request.present, epoch.asks, epoch.facts
        is_present = present is not None and (present.replica, present.number) == (asks.replica, epoch.number)
        after_ms = max(facts.position.until_ms, request.until_ms)
        if present is not None and is_present and end_ms <= after_ms:
            return present
        moved = advance(facts, end_ms)
        log = self._readers.find_log_or_none(asks)
        return EpochReading(
            replica=asks.replica, number=epoch.number, after_ms=after_ms, since=facts.position.first,
            until_ms=moved.until_ms, batch=moved.batch, first=moved.first,
            of=None if log is None else identify_batch(log, moved.batch),
        )  # fmt: skip

    def _forget_others(self, request: EpochEndRequest, found: Iterable[_Found]) -> None:
        """Forgets the channels of epochs that are over: they come and go.

        Of the epoch that the stream reads it notes no first batch: after a change to another one and back the stream
        needs its rows again, from the end of the stable ones.
        """
        key = request.query, request.source
        firsts = {each.asks.path: 0 if each.asks.batch >= 0 else each.facts.position.first for each in found}
        if self._firsts.get(key, {}).keys() - firsts.keys():
            self._channels.leave(BucketLeaveRequest(query=request.query, source=_name(request.source)))
        self._firsts[key] = firsts


def _name(source: str) -> str:
    """The name under which a stream reads epochs, beside the flow's own channel."""
    return f"{source} epochs"


def _ask(request: EpochEndRequest, path: str, replica: str, number: int, first: int) -> BucketEndRequest:
    """The question for the channel of an epoch. A stream that has read another one has looked at no batch of it.

    `first`: the batch from which on it may need rows, if it has read none.
    """
    present = request.present
    asks = BucketEndRequest(
        path=path, conf=request.conf, may_wait=True, may_lose=False, union=request.union, own=request.own,
        query=request.query, source=_name(request.source), leader="", leads=False, until_ms=request.until_ms, batch=-1,
        first=first, replica=replica,
    )  # fmt: skip
    if present is None or (present.replica, present.number) != (replica, number):
        return asks
    return msgspec.structs.replace(
        asks, until_ms=present.until_ms, batch=present.batch, first=present.first, seen=present.of, checked=True
    )
