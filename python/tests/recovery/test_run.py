"""What a run writes when it takes a query up."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.home import join_log, read_log_id
from spark_cec.log.storage import Storage
from spark_cec.recovery.generations import has_committed, read_start
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.run import Run, begin_run
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
    assert read_start(own, _begin(checkpoint, log).generation) == -1
    for batch in (0, 1):
        checkpoint.create(f"offsets/{batch}", b"v1")
        checkpoint.create(f"commits/{batch}", b"v1")
    assert read_start(own, _begin(checkpoint, log).generation) == 1


def test_the_conf_of_ours_and_the_decision_are_written(tmp_path: Path) -> None:
    checkpoint, log = open_storage(str(tmp_path)), open_storage(str(tmp_path / "cec" / "log"))
    run = _begin(checkpoint, log, **{PREFIX + "Q": "7", "spark.app.name": "not ours"})
    query = QUERY.read(open_storage(str(tmp_path / "cec")))
    assert query is not None
    assert (query["generation"], query["log_id"], query["log_home"]) == (run.generation, run.log_id, "cec/log")
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
