"""The report for notebooks: numbers as `cec inspect` has them, names that look like HTML, and a plot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import spark_cec
from spark_cec.errors import LogLocationError
from spark_cec.log.catalog import Catalog
from spark_cec.log.index import MemoryIndex
from spark_cec.log.meta import CommitFlags, CommitMeta
from spark_cec.log.segment import SegmentName
from spark_cec.query_report import Report, report
from tests.cli.support import STORES, Checkpoint, answer, make_checkpoint, query_json, run
from tests.log.support import LOG_ID, commit_meta, frame_bytes, payload_of, put_segment, segment_bytes


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Four versions, all of them committed by Spark."""
    return make_checkpoint(tmp_path / "checkpoint")


def test_the_newest_batch_has_the_numbers_of_inspect(checkpoint: Checkpoint) -> None:
    found = spark_cec.report(str(checkpoint.path))
    assert_as_inspect(checkpoint, found)
    last = found.batches[-1]
    assert last.replay_bound == 25 * len(STORES) == 25 * last.stores
    json.dumps(found.to_dict())


def test_a_flush_of_each_store_counts_as_inspect_counts_it(checkpoint: Checkpoint) -> None:
    """As after `cec flush` or a clean stop. A flush has no input, and leaves nothing to replay."""
    before = report(str(checkpoint.path)).batches
    commits = committed_metas(checkpoint)
    flushes = [
        replace(
            each, flags=each.flags | CommitFlags.FLUSH, replay=0, dirty_windows=0, dirty_from=4, extent=6, inputs=0,
            wall_ms=each.wall_ms + 1, recovery_estimate_ms=7.0,
        )
        for each in commits
    ]  # fmt: skip
    add_segment(checkpoint, flushes)
    found = report(str(checkpoint.path))
    assert_as_inspect(checkpoint, found)
    assert found.batches[:-1] == before[:-1]
    last = found.batches[-1]
    assert (last.dirty_windows, last.replay, last.extent, last.recovery_ms) == (0, 0, 6 * len(STORES), 7.0)
    assert (last.inputs, last.task_ms) == (before[-1].inputs, before[-1].task_ms)
    assert last.stored_bytes > before[-1].stored_bytes and last.wall_ms == before[-1].wall_ms + 1


def test_a_version_that_only_some_stores_have_written_does_not_count(checkpoint: Checkpoint) -> None:
    """As in the middle of a batch, with the checkpoint, and for a log of which nothing else is there."""
    before = report(str(checkpoint.path))
    add_segment(checkpoint, [commit_meta(5, store=STORES[0], extent=5, replay=50, dirty_from=1, dirty_windows=2)])
    (checkpoint.path / "offsets" / "4").write_text("v1\n{}")
    found = report(str(checkpoint.path))
    assert found == before
    alone = shutil.copytree(checkpoint.home, checkpoint.path.with_name("log"))
    unbounded = tuple(replace(each, extent_bound=None, replay_bound=None) for each in before.batches)
    assert report(str(alone)).batches == unbounded


def assert_as_inspect(checkpoint: Checkpoint, found: Report) -> None:
    last, totals = found.batches[-1], answer(run("inspect", str(checkpoint.path), "--json"))["totals"]
    assert [each.batch for each in found.batches] == [0, 1, 2, 3]
    assert last.stores == totals["stores"]
    assert (last.open_windows, last.dirty_windows) == (totals["open_windows"], totals["dirty_windows"])
    assert (last.extent, last.replay) == (totals["extent_records"], totals["replay_inputs"])
    assert sum(each.stored_bytes for each in found.batches) == totals["commit_bytes"]


def committed_metas(checkpoint: Checkpoint, version: int = 4) -> list[CommitMeta]:
    catalog = Catalog(checkpoint.storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    return [entry.meta for store in STORES for entry in catalog.index.commits(store, version, version)]


def add_segment(checkpoint: Checkpoint, metas: Sequence[CommitMeta]) -> None:
    name = SegmentName("0198c0ffee01-00112233445566ff", 0)
    frames = [frame_bytes(each, payload_of(each.version)) for each in metas]
    put_segment(checkpoint.storage, segment_bytes(frames, name), str(name))


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
