"""What `cec tune` shows, as rich tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from spark_cec.tuning.advice import Advice, System
from spark_cec.tuning.estimate import PRIOR_MEDIAN_PER_S, FailureRate
from spark_cec.tuning.optimum import optimal_interval
from spark_cec.tuning.quantities import format_duration, format_rate

_DAY_S = 86400.0


def inputs_table(advice: Advice, origins: dict[str, str]) -> Table:
    """The five inputs and where each is from; `origins` is keyed by the fields of `System`."""
    system = advice.system
    rows = (
        ("failure rate λ", format_rate(system.failures_per_s), "failures_per_s"),
        ("checkpoint cost c", format_duration(system.checkpoint_s), "checkpoint_s"),
        ("restart R", format_duration(system.restart_s), "restart_s"),
        ("operators n", str(system.operators), "operators"),
        ("delay δ", format_duration(system.delay_s), "delay_s"),
    )
    table = Table("input", "value", "from", box=None, pad_edge=False)
    for name, value, field in rows:
        table.add_row(name, value, origins[field])
    return table


def advice_json(
    advice: Advice, origins: dict[str, str], rate: FailureRate | None, remarks: Iterable[str]
) -> dict[str, Any]:
    """The same numbers for a program; times in seconds, rates per second, null where not known."""
    return {
        **asdict(advice.system),
        "from": origins,
        "best_interval_s": advice.best_interval_s,
        "best_utilization": advice.best_utilization,
        "checkpoint_share": advice.checkpoint_share,
        "present_interval_s": advice.present_interval_s,
        "present_utilization": advice.present_utilization,
        "lost": advice.lost,
        "failure_rate_interval_per_s": [rate.low_per_s, rate.high_per_s] if rate else None,
        "remarks": list(remarks),
    }


def advice_table(advice: Advice) -> Table:
    """T*, what it yields, and what the present interval loses."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("best interval T*", format_duration(advice.best_interval_s), "")
    table.add_row("utilization at T*", f"{advice.best_utilization:.4f}", "")
    table.add_row(
        "share of time for checkpoints c/T*", f"{100.0 * advice.checkpoint_share:.4g} %", _period_hint(advice)
    )
    if advice.present_interval_s is not None and advice.lost is not None:
        present = f"{advice.present_utilization:.4f}"
        table.add_row("utilization at present", present, f"T = {format_duration(advice.present_interval_s)}")
        table.add_row("lost against T*", f"{advice.lost:.4f}", f"{format_duration(advice.lost * _DAY_S)} of work a day")
    return table


def rate_line(system: System, rate: FailureRate) -> Text:
    """How sure the failure rate is, and T* with it."""
    shortest, longest = (
        float(optimal_interval(checkpoint_s=system.checkpoint_s, failures_per_s=per_s))
        for per_s in (rate.high_per_s, rate.low_per_s)
    )
    basis = f" (few failures: with a prior of {format_rate(PRIOR_MEDIAN_PER_S)})" if rate.prior else ""
    return Text(
        f"95 % interval of λ: {format_rate(rate.low_per_s)} to {format_rate(rate.high_per_s)}{basis}, "
        f"so T* is from {format_duration(shortest)} to {format_duration(longest)}"
    )


_CI_MS = 20.0
"""The default, so that it is enough to set CP."""


def _period_hint(advice: Advice) -> str:
    # In whole milliseconds, which the settings parser takes whatever the size.
    return f"with CI={_CI_MS:g}ms: CP={_CI_MS / advice.checkpoint_share:.0f}ms"
