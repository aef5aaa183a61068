"""A JVM that ends closes its stores side by side, within a time that a container has before it is killed."""

from __future__ import annotations

from store_it.jvm import Stores

KUBERNETES_GRACE_MS = 30_000


def test_stores_that_are_busy_hold_up_no_other(jvm: Stores) -> None:
    found = jvm.ask("close_all", blocked=40, quick=60, within_ms=1_500)
    assert (found["left"], found["closed"]) == (40, 60)
    assert found["ms"] < KUBERNETES_GRACE_MS


def test_no_time_is_lost_where_all_are_quick(jvm: Stores) -> None:
    found = jvm.ask("close_all", blocked=0, quick=30, within_ms=60_000)
    assert (found["left"], found["closed"]) == (0, 30)
    assert found["ms"] < 60_000
