"""The experiments of the paper's section IV, on Spark: what is varied, what is measured, and what the paper says of it.

Source: Sebepou and Magoutis, DSN 2011. Its numbers are those that its text gives; its figures have more, which are not
at hand as numbers. A window is one of so many tuples (`count_window`), as there: 100 bytes a tuple, an average by item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from spark_cec.settings import PREFIX
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.workloads import Shape, Workload

TUPLE_BYTES = 100
"""What a tuple has on the wire, in the paper."""

UNBOUNDED = "1000000000"
"""A bound that is never met, where another one is looked at."""

IDS = Workload(Shape.COUNT, keys=100_000, updates=50_000, partitions=2, window=10)
"""Figures 6 to 9: about 90,000 windows are open; each gets a tuple every other batch."""


class Kind(Enum):
    """How a point is measured: in a steady run, or by a crash in the middle of one."""

    STEADY = "steady"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a figure. `x` on its axis, or None where there are only names; `in_memory`: the log is on no disk."""

    name: str
    x: float | None
    workload: Workload
    provider: Provider = Provider.CEC
    conf: tuple[tuple[str, str], ...] = ()
    in_memory: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity of a figure: `measure` is a field of a run; `theirs` what the paper's text says, by point."""

    measure: str
    label: str
    theirs: Mapping[str, tuple[float, float]]
    """Lowest and highest, in the unit of the label."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Figures that come from the same runs."""

    number: int
    title: str
    axis: str
    kind: Kind
    points: tuple[Point, ...]
    panels: tuple[Panel, ...]


def _ours(**settings: str) -> tuple[tuple[str, str], ...]:
    """Our settings. The paper has no `effort`: only Q and U ask for checks."""
    return tuple((PREFIX + name, value) for name, value in {"effort": "0", **settings}.items())


def _baseline(name: str, window: int) -> tuple[Point, ...]:
    workload = Workload(Shape.COUNT, keys=2, updates=300_000, partitions=1, window=window)
    openings = _ours(CI="0ms")
    return (
        Point(f"{name}, native", None, workload, Provider.HASHMAP),
        Point(f"{name}, G_open in memory", None, workload, conf=openings, in_memory=True),
        Point(f"{name}, G_open on disk", None, workload, conf=openings),
        Point(f"{name}, RocksDB", None, workload, Provider.ROCKSDB),
        Point(f"{name}, HDFS-backed", None, workload, Provider.HDFS),
    )


_RECOVERY = (
    ("checked", "G_check written"),
    ("extent", "extent at the crash, records"),
    ("ec_load_s", "EC load, s"),
    ("replay_mb", "to be replayed, MB"),
)


def _panels(theirs: Mapping[str, Mapping[str, tuple[float, float]]]) -> tuple[Panel, ...]:
    return tuple(Panel(measure, label, theirs.get(measure, {})) for measure, label in _RECOVERY)


def _periods() -> tuple[Point, ...]:
    points = [
        Point(f"CP={ms}ms", ms, IDS, conf=_ours(Q="1x", U=UNBOUNDED, CI="10ms", CP=f"{ms}ms"))
        for ms in (25, 50, 100, 250)
    ]
    return (Point("no checkpoints", None, IDS, Provider.HASHMAP), *points)


FIGURES = (
    Figure(
        5, "CEC baseline impact (G_open alone)", "", Kind.STEADY,
        _baseline("fast windows", 1) + _baseline("slow windows", 1000),
        (Panel("tuples_per_s", "tuples a second", {}), Panel("windows_per_s", "windows closed a second", {})),
    ),
    Figure(
        6, "Effect of Q", "Q / open windows", Kind.CRASH,
        tuple(Point(f"Q={q}x", q, IDS, conf=_ours(Q=f"{q}x", U=UNBOUNDED, CI="5ms", CP="100ms")) for q in (1, 2, 4, 8)),
        _panels({
            "extent": {"Q=1x": (120e3, 120e3), "Q=2x": (180e3, 180e3), "Q=8x": (500e3, 500e3)},
            "ec_load_s": {"Q=1x": (3.5, 5), "Q=2x": (3.5, 5), "Q=4x": (14, 27), "Q=8x": (14, 27)},
            "replay_mb": {"Q=1x": (25, 50), "Q=2x": (25, 50), "Q=8x": (200, 200)},
        }),
    ),
    Figure(
        7, "Effect of U", "U / 1000 tuples", Kind.CRASH,
        tuple(
            Point(f"U={u}", u / 1000, IDS, conf=_ours(Q="8x", U=str(u // IDS.partitions), CI="5ms", CP="100ms"))
            for u in (125_000, 250_000, 500_000, 1_000_000)
        ),
        _panels({
            "extent": {"U=125000": (120e3, 120e3), "U=1000000": (230e3, 230e3)},
            "ec_load_s": {"U=125000": (2.5, 2.5), "U=1000000": (6.7, 6.7)},
            "replay_mb": {"U=125000": (20, 20), "U=1000000": (90, 90)},
        }),
    ),
    Figure(
        8, "Response time and extent by CP (figures 8 and 9)", "CP, ms", Kind.STEADY, _periods(),
        (
            Panel("response_s", "response time of a window, s", {
                "no checkpoints": (16.5, 16.5), "CP=100ms": (18.5, 18.5), "CP=50ms": (21.5, 21.5),
                "CP=25ms": (32.5, 32.5),
            }),
            Panel("extent", "extent, records", {}),
        ),
    ),
)  # fmt: skip
"""U is each store's here, as everywhere in Spark CEC: the paper's, over as many partitions."""


def derived(values: Mapping[str, float], workload: Workload) -> dict[str, float]:
    """The paper's quantities from what a run measured; those that it has measured."""
    found = dict(values)
    if "batch_ms" in values:
        found["tuples_per_s"] = 1000.0 * workload.updates / values["batch_ms"]
        found["windows_per_s"] = found["tuples_per_s"] / workload.window
        if "lifetime_batches" in values:
            found["response_s"] = (values["lifetime_batches"] + 1.0) * values["batch_ms"] / 1000.0
    if "ec_load_ms" in values:
        found["ec_load_s"] = values["ec_load_ms"] / 1000.0
    if "replayed_batches" in values:
        found["replay_mb"] = values["replayed_batches"] * workload.updates * TUPLE_BYTES / 1e6
    return found
