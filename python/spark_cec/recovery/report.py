"""The report of each recovery, for users: `<checkpoint>/cec/recoveries/<unix-ms>.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_cec.checkpoint.recovery_target import PRIOR_LOAD_US_PER_RECORD
from spark_cec.ids import StoreId
from spark_cec.log.storage import Storage
from spark_cec.recovery.decide import RecoveryPlan
from spark_cec.recovery.query_files import REPLAYING, ReplayProgress


@dataclass(frozen=True, slots=True)
class LoadedStore:
    """The recovery of one store: EC load time in ms, digest verdict (None: not checked), number of held mutations.

    `unsure`: windows that may differ from the committed state, if the user accepts a diverging replay.
    """

    store: StoreId
    version: int
    ec_load_ms: float
    digest_ok: bool | None
    held: int
    wall_ms: int
    unsure: tuple[str, ...] = ()


def loaded_payload(loaded: LoadedStore) -> bytes:
    """The payload of a LOADED frame."""
    fields = {"ec_load_ms": loaded.ec_load_ms, "digest_ok": loaded.digest_ok, "held": loaded.held}
    return json.dumps({**fields, "unsure": list(loaded.unsure)} if loaded.unsure else fields).encode()


def compose_report(plan: RecoveryPlan, loaded: Iterable[LoadedStore], started_ms: int) -> dict[str, Any]:
    """The report as a JSON object; `started_ms` is the wall clock of the call of `start()`."""
    by_store: Mapping[StoreId, LoadedStore] = {each.store: each for each in loaded}
    verdicts = [each.digest_ok for each in by_store.values()]
    digest_ok = False if False in verdicts else (True if verdicts and None not in verdicts else None)
    ended_ms = max((each.wall_ms for each in by_store.values()), default=started_ms)
    stores = []
    for meta in plan.heads:
        back = by_store.get(meta.store)
        stores.append(
            {
                "operator": meta.store.operator,
                "partition": meta.store.partition,
                "store": meta.store.name,
                "version": meta.version,
                "open_windows": meta.open_windows,
                "dirty_windows": meta.dirty_windows,
                "extent_records": meta.extent,
                "replay_inputs": meta.replay,
                "ec_load_ms": back.ec_load_ms if back else None,
                "digest_ok": back.digest_ok if back else None,
                "held": back.held if back else None,
                **({"accepted_windows": list(back.unsure)} if back and back.unsure else {}),
            }
        )
    return {
        "committed_batch": plan.committed_batch,
        "rewound_to": plan.rewound_to,
        **({"fell_back_to_version": plan.base} if plan.base <= plan.committed_batch else {}),
        "replayed_batches": plan.replayed_batches,
        "started_unix_ms": started_ms,
        "duration_ms": ended_ms - started_ms,
        "predicted_ms": _predict_ms(plan),
        "predicted_work_ms": _predict_work_ms(plan),
        "digest_ok": digest_ok,
        "stores": stores,
    }


def _predict_ms(plan: RecoveryPlan) -> float | None:
    """The slowest store's estimate in the footers at the crash, in ms; None if a footer has no estimate."""
    estimates = [head.recovery_estimate_ms for head in plan.heads]
    return max(estimates) if estimates and all(estimates) else None


def _predict_work_ms(plan: RecoveryPlan) -> float | None:
    """Load and replay in ms, each by its slowest store, at the pace in the footers; None if a pace is unknown."""
    heads = plan.heads
    if not heads or any(head.replay and not head.replay_us_per_tuple for head in heads):
        return None
    load_us = max((head.load_us_per_record or PRIOR_LOAD_US_PER_RECORD) * head.extent for head in heads)
    return (load_us + max(head.replay_us_per_tuple * head.replay for head in heads)) / 1000


def note_progress(own: Storage, progress: ReplayProgress) -> None:
    """Records the progress of a replay, for `cec inspect`; `own` is rooted at the checkpoint's `cec` directory."""
    if progress.over:
        REPLAYING.delete(own)
    else:
        REPLAYING.write(own, asdict(progress))


def read_progress(own: Storage, generation: int) -> ReplayProgress | None:
    """The progress of that run's replay; None if the file is missing, unreadable, or of another run."""
    progress = REPLAYING.read_if_sound(own)
    return progress if progress is not None and progress.generation == generation else None


def write_report(storage: Storage, report: Mapping[str, Any]) -> str:
    """Writes the report under the checkpoint's `cec` directory, and returns its path there."""
    path = f"recoveries/{report['started_unix_ms']}.json"
    storage.replace(path, json.dumps(report, indent=1).encode())
    return path
