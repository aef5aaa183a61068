"""What a simulated run costs, and what is done and befalls it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Of a batch, a message, a checkpoint and a restart. `_us` of bytes are microseconds for one; `_s` are seconds.

    A process begins a batch every `trigger_s` at most, and a source that is behind reads `catch_up_s` of its input.
    `log_us` is processor time that a byte of a message takes which is made durable, `commit_us` what a record takes
    that is made durable in the state with each batch. A checkpoint takes `checkpoint_s`, and for a byte of what has
    changed since the last one `snapshot_us` of the processor, and `write_us` beside it.
    """

    trigger_s: float = 0.5
    catch_up_s: float = 5.0
    batch_s: float = 0.002
    network_s: float = 0.0005
    record_bytes: float = 100.0
    byte_us: float = 0.002
    log_us: float = 0.002
    commit_us: float = 0.2
    checkpoint_s: float = 0.001
    snapshot_us: float = 0.0005
    write_us: float = 0.01
    detect_s: float = 0.5
    restart_s: float = 0.2
    load_us: float = 0.01
    fetch_us: float = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """`rate` in records a second, of all sources together; `skew`: the share of keyed records that one worker gets.

    Checkpoints every `interval_s`; the worker `failed` is lost at `fails_s`, and sources end at `ends_s`.
    """

    workers: int
    rate: float
    seconds: float = 60.0
    interval_s: float = 5.0
    skew: float = 0.0
    fails_s: float | None = None
    failed: int = 0
    ends_s: float = float("inf")
    seed: int = 0
