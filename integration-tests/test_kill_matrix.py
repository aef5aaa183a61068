"""Queries killed with SIGKILL at seeded moments: their results equal those of undisturbed runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from cec_it import feeds, results
from cec_it.crashes import History, KillPoint, run_with_kills, spread
from cec_it.driver import CEC, FOREACH, Job, Query
from cec_it.plans import PLANS
from cec_it.references import References

BATCHES, ROWS = 10, 200

OPENINGS_ONLY = {CEC + "CI": "0ms", CEC + "U": "1000000", CEC + "functions.orderFree": "on"}
TIGHT = {
    CEC + "CI": "5ms", CEC + "CP": "20ms", CEC + "U": "900", CEC + "Q": "1.5x", CEC + "effort": "0",
    CEC + "log.segmentBytes": "64KiB",
}  # fmt: skip

GROUPS = {
    "rate": (
        (
            Query("totals", feeds.RATE, FOREACH),
            Query("window-update", feeds.RATE, "cec"),
            Query("window-append", feeds.RATE, FOREACH),
            Query("native-count-windows", feeds.RATE, "json"),
            Query("sessions", feeds.RATE, "cec"),
        ),
        OPENINGS_ONLY,
        49,
    ),
    "files": (
        (
            Query("grand-total", feeds.FILES, "cec"),
            Query("count-windows", feeds.FILES, FOREACH),
            Query("distinct", feeds.FILES, "cec"),
            Query("window-append", feeds.FILES, "json"),
        ),
        OPENINGS_ONLY,
        66,
    ),
    "tight": (
        (
            Query("distinct-within", feeds.RATE, FOREACH),
            Query("join", feeds.RATE, "cec"),
            Query("chain", feeds.RATE, "json"),
            Query("window-update", feeds.FILES, FOREACH),
            Query("sessions", feeds.FILES, "json"),
        ),
        TIGHT,
        43,
    ),
    # What is cheap is written: a crash finds stores that are clean, or nearly so.
    "default": (
        (
            Query("window-append", feeds.RATE, "cec"),
            Query("native-count-windows", feeds.RATE, FOREACH),
            Query("totals", feeds.FILES, FOREACH),
        ),
        {},
        44,
    ),
}
IN_A_REPLAY = {"rate": 2, "files": 1, "tight": 0, "default": 0}
"""How many of the kills fall into the replay after the first one, one after the other."""
CASES = [(group, query) for group, (queries, _, _) in GROUPS.items() for query in queries]
WITH_CALLS = [(group, query) for group, query in CASES if query.sink == FOREACH]
NEVER_DIRTY = {"distinct", "distinct-within", "join"}
"""Plans that never replay: no window changes after its opening, or all are written at every commit."""
NEVER_CLOSED = {"totals", "grand-total"}
"""Plans whose windows stay open, so that a first recovery from openings alone replays all batches but the first."""


def _name(value: str | Query) -> str:
    return value if isinstance(value, str) else value.name


Histories = Callable[[str], History]


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Each group's queries run in one driver, which is killed several times, also in the middle of replays."""
    known: dict[str, History] = {}

    def of(group: str) -> History:
        if group not in known:
            queries, conf, seed = GROUPS[group]
            job = Job(str(tmp_path_factory.mktemp(group)), queries, BATCHES, ROWS, conf=conf)
            # After a restart Spark runs no batch for the watermark's sake alone: the last life has data of its own.
            feeds.write_files(job.events, BATCHES - 1, ROWS)
            points = spread(seed, job, 2)
            points[1:1] = [KillPoint(queries[0], -1, "replaying")] * IN_A_REPLAY[group]
            known[group] = run_with_kills(
                job, points, seed, before_last=lambda: feeds.write_files(job.events, BATCHES, ROWS)
            )
        return known[group]

    return of


@pytest.mark.parametrize(("group", "query"), CASES, ids=_name)
def test_a_killed_run_equals_an_undisturbed_one(
    group: str, query: Query, histories: Histories, references: References, spark: SparkSession
) -> None:
    history = histories(group)
    assert history.crashes == 2 + IN_A_REPLAY[group], str(history)
    errors = [life.failed[query.name] for life in history.lives if query.name in life.failed]
    assert not errors, f"{history}: {errors}"
    references.prepare(history.job)
    wanted = references.get(query, history.job)
    assert wanted, "a reference without rows proves nothing"
    plan = PLANS[query.plan]
    if query.sink == "cec":
        rows = results.json_rows(spark.read.format("cec").load(str(history.job.checkpoint(query))))
        if plan.mode == "complete":
            assert rows == wanted[max(wanted)], str(history)
        elif query.source == feeds.RATE:
            found = results.union({0: rows})
            assert not results.difference(found, results.union(wanted)), str(history)
        else:
            assert results.union({0: rows}) == results.final(plan, wanted), str(history)
        return
    found_batches = (results.last_recorded if query.sink == FOREACH else results.file_sink_batches)(
        history.job.out(query)
    )
    if query.source == feeds.RATE:
        cut = {batch: rows for batch, rows in found_batches.items() if batch <= max(wanted)}
        assert sorted(cut) == sorted(wanted), str(history)
        for batch, rows in wanted.items():
            assert cut[batch] == rows, f"batch {batch}: {history}"
    else:
        assert results.final(plan, found_batches) == results.final(plan, wanted), str(history)


@pytest.mark.parametrize(("group", "query"), WITH_CALLS, ids=_name)
def test_the_sink_is_not_called_for_replayed_batches(group: str, query: Query, histories: Histories) -> None:
    history = histories(group)
    out = history.job.out(query)
    called_after_a_crash = 0
    for number, life in enumerate(history.lives):
        calls = results.calls_of(out, number)
        first = life.committed[query.name] + 1
        assert calls == list(range(first, first + len(calls))), f"life {number} of {query.name}: {history}"
        called_after_a_crash += len(calls) if number else 0
    # Not asked of the last life alone: a query may have been through before the last crash of another.
    assert called_after_a_crash, f"no life of {query.name} has called the sink after a crash: {history}"


@pytest.mark.parametrize("group", GROUPS)
def test_recoveries_replay_and_come_out_with_the_right_digest(group: str, histories: Histories) -> None:
    history = histories(group)
    if GROUPS[group][1] is OPENINGS_ONLY:
        # How far the others had come at the first kill is up to the machine; how far the one that it waited for is not.
        first = history.lives[0].killed_at
        assert first and first.query.plan in NEVER_CLOSED, f"a seed whose first kill proves little: {history}"
        assert max(history.announced(first.query)) >= first.batch - 1, str(history)
    for query in GROUPS[group][0]:
        reports = history.reports(query)
        assert reports, f"{query.name}: {history}"
        assert {report["digest_ok"] for report in reports} == {True}, f"{query.name}: {history}: {reports}"
        for life in history.lives:
            for report in life.recoveries[query.name]:
                assert report["committed_batch"] == life.committed[query.name], f"{query.name}: {history}"
        if query.plan in NEVER_DIRTY:
            assert history.replayed(query) == [0] * len(reports), f"{query.name}: {history}"
