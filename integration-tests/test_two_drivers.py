"""Two living drivers of one query, of which one is stopped for a while and continued: no row is lost or different."""

from __future__ import annotations

import os
import random
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cec_it import feeds, results
from cec_it.crashes import LIFE_TIMEOUT_S, Driver, driver
from cec_it.driver import CEC, FOREACH, Job, Query, last_batch
from cec_it.local import eventually
from cec_it.references import References
from testbed.spark_logs import committed_batch

SEED = int(os.environ.get("SEED", "20261127"))
QUERIES = (Query("long-window-updates", feeds.RATE, FOREACH), Query("totals", feeds.RATE, FOREACH))


def has_committed(checkpoint: Path, batch: int) -> bool | None:
    return True if committed_batch(checkpoint) >= batch else None


def has_failed(paused: Driver) -> str | None:
    """The error of a driver's query; None so far."""
    try:
        heard = paused.next_event(0.2)
    except TimeoutError:
        return None
    assert heard is not None, "the driver has ended without a failed query"
    return str(heard[1]["error"]) if heard[1]["event"] == "failed" else None


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.plan)
@pytest.mark.parametrize("other_dies", [True, False])
def test_a_driver_that_was_paused_cannot_go_on(
    query: Query, other_dies: bool, references: References, tmp_path: Path
) -> None:
    """It is stopped at a random moment, and its agent dies, which gives the lease back. Another driver takes its place.

    The other driver may be dead when the first one continues.
    """
    dice = random.Random(f"{SEED} {query.plan} {other_dies}")
    conf = {CEC + "CI": "0ms", CEC + "effort": "0", CEC + "agent.timeout": "20s"}
    job = Job(str(tmp_path), (query,), 20, 120, conf=conf)
    checkpoint = job.checkpoint(query)
    with driver(job) as paused:
        eventually(partial(has_committed, checkpoint, dice.randint(1, 4)), "batches", LIFE_TIMEOUT_S)
        os.killpg(paused.pid, signal.SIGSTOP)
        os.kill(int((checkpoint / "cec" / "lock").read_text()), signal.SIGKILL)
        with driver(replace(job, life=1)) as other:
            at = committed_batch(checkpoint)
            eventually(partial(has_committed, checkpoint, at + 3), "the other driver goes on", LIFE_TIMEOUT_S)
            if other_dies:
                other.kill()
                at = committed_batch(checkpoint)
            os.killpg(paused.pid, signal.SIGCONT)
            error = eventually(partial(has_failed, paused), "the paused driver fails", LIFE_TIMEOUT_S)
            assert "began while run 1 had no lease" in error, error
            if other_dies:
                assert committed_batch(checkpoint) == at, "only a run that has the lease commits"
            else:
                end = last_batch(job)
                eventually(partial(has_committed, checkpoint, end), "the other driver ends", LIFE_TIMEOUT_S)
    if other_dies:
        with driver(replace(job, life=2)) as last:
            last.exit_code(LIFE_TIMEOUT_S)
    assert results.last_recorded(job.out(query)) == references.get(query, job), f"seed {SEED}; logs in {tmp_path}"
