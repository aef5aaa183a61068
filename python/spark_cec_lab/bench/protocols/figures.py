"""What a run says in the paper's quantities (CheckMate, section V)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from spark_cec_lab.bench.protocols.spec import Outcome
from spark_cec_lab.simulation.protocols.outcome import mean_time_s, quantile

BACK_WITHIN = 1.2
BACK_FOR_S = 5
"""A run is back to normal when its median latency stays below so many times what it was before, for so many seconds."""


def latency_s(outcome: Outcome, share: float, begin_s: float, end_s: float) -> float | None:
    """The latency that `share` of the events do not exceed that came out in that time; None if none did."""
    came = (each for each in outcome.done if begin_s <= each.done_s < end_s)
    return quantile(((each.done_s - each.given_s, each.events) for each in came), share)


def before_failure(outcome: Outcome) -> tuple[float, float]:
    """What is looked at, up to the failure if there is one."""
    return outcome.began_s, outcome.failed_at_s if outcome.failed_at_s is not None else outcome.ended_s


def checkpoint_s(outcome: Outcome) -> float | None:
    """The mean time that a checkpoint takes, of those that are looked at: see `mean_time_s`."""
    return mean_time_s([each for each in outcome.taken if each.begun_s >= outcome.began_s])


def over_none(full: Sequence[Outcome]) -> dict[tuple[str, int, str], list[float]]:
    """Throughput over that without checkpoints in the same round, by query, instances and protocol: a value a round."""
    found: dict[tuple[str, int, str], list[float]] = {}
    for each in full:
        found.setdefault((each.spec.query, each.spec.instances, each.spec.protocol), []).append(each.events_s)
    return {
        (query, instances, protocol): [a / b for a, b in zip(ours, none, strict=False) if b]
        for (query, instances, protocol), ours in found.items()
        if (none := found.get((query, instances, "none")))
    }


def overhead(outcome: Outcome) -> float:
    """Bytes of messages, over those without the protocol's."""
    return 1 + outcome.protocol_bytes / outcome.payload_bytes if outcome.payload_bytes else 1.0


def invalid(outcome: Outcome) -> float | None:
    """Of all checkpoints, the share that the failure made useless; None without any."""
    if not outcome.checkpoints or outcome.recovery is None:
        return None
    return outcome.recovery.invalid / outcome.checkpoints


def recovery_s(outcome: Outcome) -> float | None:
    """From the failure until the median latency stays near what it was before for a while; None: not within the run."""
    if outcome.failed_at_s is None:
        return None
    before = latency_s(outcome, 0.5, *before_failure(outcome))
    if before is None:
        return None
    well = 0
    for second in range(1, math.ceil(outcome.ended_s - outcome.failed_at_s)):
        well = 0 if _is_late(outcome, outcome.failed_at_s + second, BACK_WITHIN * before) else well + 1
        if well == BACK_FOR_S:
            return float(second - well)
    return None


def _is_late(outcome: Outcome, end: float, most_s: float) -> bool:
    now = latency_s(outcome, 0.5, end - 1, end)
    return now is None or now > most_s


def worst_s(outcome: Outcome, share: float = 0.99) -> float | None:
    """The latency of `share` of what came out from the failure on."""
    if outcome.failed_at_s is None:
        return None
    return latency_s(outcome, share, outcome.failed_at_s, outcome.ended_s)


def restart_s(outcome: Outcome) -> float | None:
    """From the failure until all that had to go back run again."""
    return None if outcome.recovery is None else outcome.recovery.restart_s
