"""The streams of one query that read their channels by common buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Copy:
    """The channel of a flow in one replica of the pipeline."""

    replica: str
    path: str


@dataclass(frozen=True, slots=True)
class Member:
    """A channel that the query reads. `time`: the TIMESTAMP column. `delay_ms`: how far a row may be behind.

    `is_source`: the flow that writes it reads a source, and no channel. `copies`: the channel in each replica, if the
    stream may read any of them. `wait_ms`: how far the flow that writes it may be behind before its tentative rows
    count; 0 if it gives out none. `begins_after`: the channel is that of an epoch, and has the flow's batches up to
    this one, then its own; None for the flow's channel. `is_kept`: the channel keeps what its settings say, whatever
    its readers note.
    """

    name: str
    path: str
    time: str
    delay_ms: int
    is_source: bool = False
    copies: tuple[Copy, ...] = ()
    wait_ms: int = 0
    begins_after: int | None = None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Union:
    """All channels that share the buckets, and the length of a bucket.

    `absent`: the channels for which nobody waits. Their rows count if they come in time. `most_wait_ms`: how long rows
    wait for a channel before it counts as absent until it is back; None: as long as it takes. `pause_ms`: how long each
    row waits after it came. `replicated`: another replica must find the same rows in each bucket
    (`availability.replicas`). `keep_bytes`: how many stored bytes may wait for the query; None without a bound.
    `goes_on`: whether a channel for which more wait counts as absent until it is back. `notes`: the streams note how
    far they are, so the channels keep what they need. `most_lag_ms`: a channel of `absent` is back if it has gone on,
    and is less than that behind the others. `silence_ms`: a channel that stands still for so long holds back what the
    query has in its state; None if nobody asks. `pause_of_empty_ms`: so long after a batch comes one without rows, if
    only time has passed; None for the usual time. `yields_ms`: when all channels of `absent` are back, no batch
    is planned for so long: the flow needs the processors to catch up.
    """

    bucket_ms: int
    members: tuple[Member, ...]
    absent: tuple[str, ...] = ()
    most_wait_ms: int | None = None
    pause_ms: int = 0
    replicated: bool = False
    keep_bytes: int | None = None
    goes_on: bool = False
    notes: bool = True
    most_lag_ms: int = 0
    silence_ms: int | None = None
    pause_of_empty_ms: int | None = None
    yields_ms: int = 0


@dataclass(frozen=True, slots=True)
class EpochReads:
    """What an epoch reads: it does not wait for the channels `absent`, and reads epochs of flows instead of flows.

    `epochs`: by flow, the number of the epoch; `begins`: the flow's last batch in its past. `pause_ms`: as of `Union`.
    """

    absent: frozenset[str]
    epochs: Mapping[str, int] = field(default_factory=dict)
    pause_ms: int = 0
    begins: Mapping[str, int] = field(default_factory=dict)


def parse_union(fields: Mapping[str, Any]) -> Union:
    """The union of a stream's option. Raises `ValueError` for another form."""
    try:
        return msgspec.convert(fields, Union)
    except msgspec.ValidationError as error:
        raise ValueError(f"the option union has another form: {error}") from error
