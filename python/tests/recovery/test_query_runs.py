"""What a run writes when it takes a query up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import Fenced, UnsuitableCheckpoint
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery import query_runs
from spark_cec.recovery.attempts import CommittedAttempts
from spark_cec.recovery.generations import has_committed, next_generation, read_start, read_state
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.query_runs import Run, begin_run, hold_run
from spark_cec.settings import PREFIX

DECISION = {"mode": "eager", "reason": "because"}


def _begin(checkpoint: Storage, log: Storage, **conf: str) -> Run:
    own = open_storage(f"{checkpoint.url}/cec")
    return begin_run(checkpoint, own, log, "cec/log", conf, DECISION, "1.2.3", read_log_id(log))


def test_a_log_that_another_query_has_begun_since_is_not_taken(tmp_path: Path) -> None:
    """Both found none there; and nothing is left that would refuse the second one for good."""
    first, second, log = (open_storage(str(tmp_path / name)) for name in ("first", "second", "log"))
    begin_run(first, open_storage(str(tmp_path / "first/cec")), log, "../log", {}, DECISION, "1", None)
    with pytest.raises(UnsuitableCheckpoint, match="taken by another query at this moment"):
        begin_run(second, open_storage(str(tmp_path / "second/cec")), log, "../log", {}, DECISION, "1", None)
    assert QUERY.read(open_storage(str(tmp_path / "second/cec"))) is None


def test_a_query_has_committed_once_a_run_of_ours_has(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    own = open_storage(str(tmp_path / "cec"))
    for batch in (0, 1):  # by another sink, before
        checkpoint.create(f"offsets/{batch}", b"v1")
        checkpoint.create(f"commits/{batch}", b"v1")
    assert not has_committed(own, 1)
    _begin(checkpoint, log)
    assert [has_committed(own, batch) for batch in (1, 2)] == [False, True]


def test_runs_are_numbered_and_share_one_log(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    first, second = _begin(checkpoint, log), _begin(checkpoint, log)
    assert (first.generation, second.generation) == (1, 2)
    assert first.log_id == second.log_id == read_log_id(log)


def test_the_number_comes_with_what_spark_had_committed(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    own = open_storage(str(tmp_path / "cec"))
    assert began_after(own, _begin(checkpoint, log)) == -1
    for batch in (0, 1):
        checkpoint.create(f"offsets/{batch}", b"v1")
        checkpoint.create(f"commits/{batch}", b"v1")
    assert began_after(own, _begin(checkpoint, log)) == 1


def began_after(own: Storage, run: Run) -> int | None:
    state = read_state(own, run.generation)
    assert state is not None and not state.is_held
    assert read_start(own, run.generation) is None, "it has written nothing yet"
    return state.began_after


@pytest.mark.parametrize("has_lease", [True, False])
def test_a_run_counts_once_it_has_begun_in_its_own_thread(tmp_path: Path, has_lease: bool) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    own = open_storage(str(tmp_path / "cec"))
    first = _begin(checkpoint, log).generation
    assert hold_run(checkpoint, own, first, has_lease=has_lease) == first
    assert read_start(own, first) == -1
    later = _begin(checkpoint, log)
    if has_lease:  # a start that Spark may refuse yet
        assert hold_run(checkpoint, own, first, has_lease=True) == first
    else:
        with pytest.raises(Fenced, match=f"run {later.generation} of the query"):
            hold_run(checkpoint, own, first, has_lease=False)


def test_a_start_that_spark_refuses_takes_no_batch_from_the_run_that_committed_it(tmp_path: Path) -> None:
    """The run lost its agent, and so its lease, before its last commit; the start took the lease, and was refused."""
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    own = open_storage(str(tmp_path / "cec"))
    holder = hold_run(checkpoint, own, _begin(checkpoint, log).generation, has_lease=True)
    _begin(checkpoint, log)
    for directory in ("offsets", "commits"):
        checkpoint.create(f"{directory}/0", b"v1")
    assert CommittedAttempts(checkpoint, own, (), 0).least_generation(1) == holder


def test_of_two_first_starts_without_a_lease_neither_blocks_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each found no log and no `query.json`: they share the log of the first to write it."""
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "out"))
    own = open_storage(str(tmp_path / "cec"))
    together = threading.Barrier(4)

    def read_late(log: Storage) -> str | None:
        found = read_log_id(log)
        together.wait(30)
        return found

    with monkeypatch.context() as racing, ThreadPoolExecutor(4) as pool:
        racing.setattr(query_runs, "read_log_id", read_late)
        begun = list(pool.map(lambda _: begin_run(checkpoint, own, log, "../out", {}, DECISION, "1", None), range(4)))
    assert {each.log_id for each in begun} == {read_log_id(log)}
    assert len({each.generation for each in begun}) == 4
    query = QUERY.read(own)
    assert query is not None and query["log_id"] == read_log_id(log)


def test_of_two_first_starts_at_two_places_each_has_a_log_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, own = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec"))
    together = threading.Barrier(2)

    def read_late(log: Storage) -> str | None:
        found = read_log_id(log)
        together.wait(30)
        return found

    def begin(name: str) -> str:
        log = open_storage(str(tmp_path / name))
        return begin_run(checkpoint, own, log, f"/{name}", {}, DECISION, "1", None).log_id

    with monkeypatch.context() as racing, ThreadPoolExecutor(2) as pool:
        racing.setattr(query_runs, "read_log_id", read_late)
        assert len({*pool.map(begin, ("a", "b"))}) == 2


def test_a_start_at_a_place_that_another_start_takes_at_this_moment_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else `query.json` would have an id that no log has, and every later start would be refused."""
    checkpoint, own = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec"))
    old, new = (open_storage(str(tmp_path / name)) for name in ("old", "new"))
    begin_run(checkpoint, own, old, "/old", {}, DECISION, "1", None)
    before = QUERY.read(own)
    with monkeypatch.context() as racing:
        racing.setattr(query_runs, "join_log", lambda log, log_id: join_log(log))
        with pytest.raises(UnsuitableCheckpoint, match="at this moment"):
            begin_run(checkpoint, own, new, "/new", {}, DECISION, "1", None)
    assert QUERY.read(own) == before


def test_a_start_that_dies_before_its_number_has_a_batch_fences_nobody(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    own = open_storage(str(tmp_path / "cec"))
    holder = hold_run(checkpoint, own, _begin(checkpoint, log).generation, has_lease=True)
    next_generation(own, held=False)  # and no more
    assert hold_run(checkpoint, own, holder, has_lease=True) == holder


def test_the_conf_of_ours_and_the_decision_are_written(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    begun = _begin(checkpoint, log, **{PREFIX + "Q": "7", "spark.app.name": "not ours"})
    query = QUERY.read(open_storage(str(tmp_path / "cec")))
    assert query is not None
    assert (query["generation"], query["log_id"], query["log_home"]) == (begun.generation, begun.log_id, "cec/log")
    assert query["settings_conf"] == {PREFIX + "Q": "7"}
    assert (query["mode"], query["reason"], query["release"]) == ("eager", "because", "1.2.3")


def test_a_log_that_another_query_takes_meanwhile_is_refused(tmp_path: Path) -> None:
    log = open_storage(str(tmp_path / "log"))
    mine, other = open_storage(str(tmp_path / "mine")), open_storage(str(tmp_path / "other"))
    _begin(mine, log)
    (tmp_path / "log" / "log.json").unlink()
    join_log(log)
    with pytest.raises(UnsuitableCheckpoint, match="taken by another query at this moment"):
        _begin(mine, log)
    assert _begin(other, log).log_id == read_log_id(log)
