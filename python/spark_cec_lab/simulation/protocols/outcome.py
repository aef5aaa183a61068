"""What a simulated run has shown, in the quantities of CheckMate's section V."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_cec.protocols.messages import Process


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch at a sink: when it was done, how many records it had, and their mean age then, both in seconds."""

    at_s: float
    records: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A checkpoint: when it was begun, and when it was durable (infinity: never, its worker was lost before)."""

    process: Process
    number: int
    begun_s: float
    durable_s: float
    forced: bool
    round: int | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """`restart_s`: from the failure until the last process that goes back runs again.

    `back`: how many processes went back, `invalid`: how many durable checkpoints were newer than the line.
    """

    restart_s: float
    back: int
    invalid: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run.

    `state`: of each process, a sum over all that it has processed, by hops; `behind`: records that
    some process has yet to process, each counted where it waits.
    """

    arrived: Sequence[Arrived]
    taken: Sequence[Taken]
    payload_bytes: float
    protocol_bytes: float
    recovery: Recovery | None
    state: Mapping[Process, tuple[int, ...]]
    behind: float

    @property
    def overhead(self) -> float:
        """Bytes of messages, over those without a protocol."""
        return (self.payload_bytes + self.protocol_bytes) / self.payload_bytes if self.payload_bytes else 1.0

    def latency_s(self, share: float, begin_s: float = 0.0, end_s: float = math.inf) -> float | None:
        """The latency that `share` of the records that arrive in this time do not exceed; None if none arrive."""
        return quantile(((a.latency_s, a.records) for a in self.arrived if begin_s <= a.at_s < end_s), share)

    def checkpoint_s(self) -> float | None:
        """The mean time that a checkpoint takes: see `mean_time_s`."""
        return mean_time_s(self.taken)


def quantile(weighted: Iterable[tuple[float, float]], share: float) -> float | None:
    """The value that `share` of (value, weight) do not exceed; None without any."""
    found = sorted(weighted)
    left = share * math.fsum(weight for _, weight in found)
    for value, weight in found:
        left -= weight
        if left <= 1e-9:
            return value
    return None


def mean_time_s(taken: Sequence[Taken]) -> float | None:
    """The mean time that a checkpoint takes: of rounds, from the first begin to the last end; None without any.

    A round counts that all processes have completed. One that was taken back comes again: then the last one counts.
    """
    if any(each.round is not None for each in taken):
        rounds: dict[int, dict[Process, Taken]] = {}
        for each in sorted(taken, key=lambda each: each.begun_s):
            rounds.setdefault(each.round or 0, {})[each.process] = each
        whole = max(map(len, rounds.values()))
        times = [
            max(each.durable_s for each in members.values()) - min(each.begun_s for each in members.values())
            for members in rounds.values()
            if len(members) == whole
        ]
    else:
        times = [each.durable_s - each.begun_s for each in taken]
    known = [each for each in times if math.isfinite(each)]
    return math.fsum(known) / len(known) if known else None
