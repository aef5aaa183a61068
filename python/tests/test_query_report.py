"""The report for notebooks: numbers as `cec inspect` has them, names that look like HTML, and a plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spark_cec
from spark_cec.errors import LogLocationError
from spark_cec.query_report import report
from tests.cli.support import STORES, Checkpoint, answer, make_checkpoint, query_json, run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Four versions, all of them committed by Spark."""
    return make_checkpoint(tmp_path / "checkpoint")


def test_the_newest_batch_has_the_numbers_of_inspect(checkpoint: Checkpoint) -> None:
    found = spark_cec.report(str(checkpoint.path))
    last, totals = found.batches[-1], answer(run("inspect", str(checkpoint.path), "--json"))["totals"]
    assert [each.batch for each in found.batches] == [0, 1, 2, 3]
    assert (last.open_windows, last.dirty_windows) == (totals["open_windows"], totals["dirty_windows"])
    assert (last.extent, last.replay) == (totals["extent_records"], totals["replay_inputs"])
    assert sum(each.stored_bytes for each in found.batches) == totals["commit_bytes"]
    assert last.replay_bound == 25 * len(STORES) == 25 * last.stores
    json.dumps(found.to_dict())


def test_bounds_that_follow_from_a_target_are_unknown(checkpoint: Checkpoint) -> None:
    conf = {"spark.sql.streaming.stateStore.cec.recoveryTarget": "10s"}
    (checkpoint.path / "cec" / "query.json").write_text(query_json("cec/log", settings_conf=conf))
    found = report(str(checkpoint.path))
    assert (found.batches[-1].extent_bound, found.batches[-1].replay_bound) == (None, None)
    assert "of the bound" not in str(found)


def test_a_notebook_shows_tables_and_a_plot_and_no_name_is_html(checkpoint: Checkpoint) -> None:
    name = "<script>alert('x')</script> & \"quoted\" ünïcode"
    (checkpoint.path / "cec" / "query.json").write_text(query_json("cec/log", reason=name))
    recoveries = checkpoint.path / "cec" / "recoveries"
    recoveries.mkdir(exist_ok=True)
    fields = {"duration_ms": 1_500, "predicted_ms": None, "replayed_batches": 2, "digest_ok": False}
    for started in (900, 20_000):  # the numbers decide, not the letters
        (recoveries / f"{started}.json").write_text(json.dumps({"started_unix_ms": started, **fields}))
    found = report(str(checkpoint.path))
    assert [each.started_ms for each in found.recoveries] == [900, 20_000]
    shown = found._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "ünïcode" in shown
    assert "data:image/png;base64," in shown
    assert "<td>NO</td>" in shown
    assert "proved right: NO" in str(found)


def test_damage_is_in_it(checkpoint: Checkpoint) -> None:
    checkpoint.commit(4)
    assert any(each.startswith("lost: store") for each in report(str(checkpoint.path)).damages)


def test_a_query_without_state_and_a_place_without_a_log(tmp_path: Path) -> None:
    empty = make_checkpoint(tmp_path / "empty", versions=0)
    found = report(str(empty.home))
    assert found.batches == ()
    assert "no store has committed yet" in found._repr_html_()
    with pytest.raises(LogLocationError, match="there is no log here"):
        report(str(tmp_path))
