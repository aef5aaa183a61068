"""When to kill the driver, and what Spark CEC wrote down about the recovery that followed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from purchases_demo.layout import QUERIES, QuerySpec

_FIRST, _LAST = 0.15, 0.85


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Kill once `query` has consumed `files` files, after `fraction` of the time that its last batch took."""

    query: str
    files: int
    fraction: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery of one query: V, T, and the bounds at the crash, of the store nearest to each bound."""

    query: str
    committed_batch: int
    rewound_to: int
    replayed_batches: int
    digest_ok: bool | None
    extent: int
    extent_bound: int
    replay: int
    replay_bound: int
    ec_load_ms: float


def crash_points(seed: int, crashes: int, files: int) -> list[CrashPoint]:
    """One random point in each of `crashes` equal parts of the run's middle, in order."""
    rng = random.Random(f"crashes of {seed}")
    part = files * (_LAST - _FIRST) / crashes
    return [
        CrashPoint(
            query=rng.choice(QUERIES).name,
            files=max(1, int(files * _FIRST + part * (number + rng.random()))),
            fraction=rng.random(),
        )
        for number in range(crashes)
    ]


def recovery_files(checkpoint: Path) -> set[Path]:
    """The recovery reports below a checkpoint."""
    return set((checkpoint / "cec" / "recoveries").glob("*.json"))


def load_recovery(path: Path, spec: QuerySpec) -> Recovery:
    """Read one recovery report of the query `spec`; the stores' EC loads run side by side, so the longest counts."""
    facts = json.loads(path.read_text())
    stores = facts["stores"]
    extents = [(int(s["extent_records"]), spec.extent_bound(int(s["open_windows"]))) for s in stores]
    extent, extent_bound = max(extents, key=lambda pair: pair[0] / max(pair[1], 1), default=(0, 0))
    return Recovery(
        query=spec.name,
        committed_batch=int(facts["committed_batch"]),
        rewound_to=int(facts["rewound_to"]),
        replayed_batches=int(facts["replayed_batches"]),
        digest_ok=facts["digest_ok"],
        extent=extent,
        extent_bound=extent_bound,
        replay=max((int(s["replay_inputs"]) for s in stores), default=0),
        replay_bound=spec.u,
        ec_load_ms=max((float(s["ec_load_ms"]) for s in stores), default=0.0),
    )
