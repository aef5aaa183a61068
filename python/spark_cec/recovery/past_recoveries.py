"""Reads the reports of a query's recoveries, which `recovery.report` writes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass

from spark_cec.log.storage import Storage


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery: when its start was called, ms since the epoch, and how long it took, in ms.

    `predicted_ms`: the estimate of the commits before it; None if they had none. `digest_ok`: whether the state was
    proved to be right; None if nothing was compared.
    """

    started_ms: int
    duration_ms: int
    predicted_ms: float | None
    replayed_batches: int
    digest_ok: bool | None


def read_recoveries(own: Storage | None, last: int) -> tuple[Recovery, ...]:
    """The newest recoveries that have a report, oldest first; those without a readable one are left out.

    `own` is rooted at the checkpoint's `cec` directory; without one, there are none.
    """
    if own is None:
        return ()
    names = sorted(
        (file.name for file in own.list("recoveries") if file.name.removesuffix(".json").isdigit()),
        key=lambda name: int(name.removesuffix(".json")),
    )
    found = []
    for name in names[-last:]:
        with suppress(OSError, ValueError, KeyError, TypeError):
            fields = json.loads(own.read(f"recoveries/{name}"))
            predicted, proved = fields["predicted_ms"], fields["digest_ok"]
            found.append(
                Recovery(
                    int(fields["started_unix_ms"]),
                    int(fields["duration_ms"]),
                    None if predicted is None else float(predicted),
                    int(fields["replayed_batches"]),
                    None if proved is None else bool(proved),
                )
            )
    return tuple(found)
