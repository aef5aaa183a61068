"""The parts of `examples/purchases.py` that do not need Spark: events, reference, comparison, kills, report."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import purchases_demo.events
from purchases_demo.count_windows import close_windows
from purchases_demo.crashes import Recovery, crash_points, load_recovery
from purchases_demo.events import Stream
from purchases_demo.feeder import feed
from purchases_demo.figures import draw
from purchases_demo.layout import BY_MINUTE, BY_TEN, WATERMARK_DELAY_MS, WINDOW_MS, Layout, QuerySpec
from purchases_demo.lives import Foretold, Verdict
from purchases_demo.reference import Comparison, compare, load_events, minute_averages, ten_averages
from purchases_demo.report import CrashRow, complaints, last_line
from testbed.processes import Child
from testbed.spark_logs import committed_batch

STREAM = Stream(seed=5, items=300, lines=400)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "out")
    made.create({})
    return made


@pytest.fixture
def events(layout: Layout) -> pd.DataFrame:
    feed(layout, STREAM, files=12, interval_s=0.0)
    return load_events(layout)


def test_every_line_is_100_bytes_of_json_and_seq_has_no_gap() -> None:
    lines = b"".join(STREAM.file(number) for number in range(3)).splitlines(keepends=True)
    assert {len(line) for line in lines} == {100}
    assert [json.loads(line)["seq"] for line in lines] == list(range(1200))


def test_an_event_that_outgrows_its_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purchases_demo.events, "LINE_BYTES", 80)
    with pytest.raises(ValueError, match="fewer --items"):
        STREAM.file(0)


def test_one_event_in_twenty_is_out_of_order_and_none_is_late(events: pd.DataFrame) -> None:
    newest = events["item_time"].cummax()
    behind = (newest - events["item_time"]) > 0
    assert 0.03 < behind.mean() < 0.07
    assert (newest - events["item_time"]).max() < WATERMARK_DELAY_MS


def test_the_same_seed_writes_the_same_files_and_another_does_not() -> None:
    assert Stream(5, 300, 400).file(3) == STREAM.file(3)
    assert Stream(6, 300, 400).file(3) != STREAM.file(3)


def test_files_appear_in_the_order_of_their_modification_times(layout: Layout, events: pd.DataFrame) -> None:
    times = [file.stat().st_mtime for file in sorted(layout.events.iterdir())]
    assert len(times) == 12
    assert times == sorted(set(times))
    assert layout.fed.exists()
    assert not any(layout.staging.iterdir())


def test_minute_averages_equal_a_plain_loop(events: pd.DataFrame) -> None:
    sums: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events.itertuples():
        sums[(event.item_time - event.item_time % WINDOW_MS, event.item_id)].append(event.item_price)
    closed_by = max(events["item_time"]) - WATERMARK_DELAY_MS
    plain = {
        (start, item): (len(prices), sum(prices), sum(prices) / len(prices))
        for (start, item), prices in sums.items()
        if start + WINDOW_MS <= closed_by
    }
    rows = minute_averages(events).itertuples(index=False)
    assert {(r.window_start, r.item_id): (r.purchases, r.sum_cents, r.average_price) for r in rows} == plain
    assert 0 < len(plain) < len(sums)


class DictState:
    """One key's group state."""

    def __init__(self, states: dict[int, tuple[int, ...]], key: int) -> None:
        self._states, self._key = states, key

    @property
    def getOption(self) -> tuple[int, ...] | None:  # noqa: N802
        return self._states.get(self._key)

    def update(self, newValue: tuple[int, ...]) -> None:  # noqa: N803
        self._states[self._key] = newValue

    def remove(self) -> None:
        del self._states[self._key]


@pytest.mark.parametrize("seed", range(5))
def test_count_windows_do_not_depend_on_how_batches_are_cut_or_shuffled(events: pd.DataFrame, seed: int) -> None:
    rng = random.Random(seed)
    states: dict[int, tuple[int, ...]] = {}
    cuts = [0, *sorted(rng.sample(range(1, len(events)), 6)), len(events)]
    closed: list[pd.DataFrame] = []
    for begin, end in itertools.pairwise(cuts):
        shuffled = events.iloc[begin:end].sample(frac=1, random_state=seed)
        for item, rows in shuffled.groupby("item_id"):
            half = len(rows) // 2
            closed += close_windows(int(str(item)), [rows[:half], rows[half:]], DictState(states, int(str(item))), 10)
    wanted = ten_averages(events)
    found = compare(wanted, pd.concat(closed), BY_TEN.key)
    assert found == Comparison(rows=len(wanted)), f"seed {seed}"
    assert len(wanted) > 100
    leftover = events.groupby("item_id").size() % 10
    assert {item: state[0] for item, state in states.items()} == leftover[leftover > 0].to_dict()


def test_the_comparison_counts_each_kind_of_wrong_row(events: pd.DataFrame) -> None:
    wanted = minute_averages(events).reset_index(drop=True)
    actual = wanted.sample(frac=1, random_state=1).reset_index(drop=True)
    assert compare(wanted, actual, BY_MINUTE.key) == Comparison(rows=len(wanted))
    actual.loc[3, "sum_cents"] += 1
    unknown = actual.iloc[[5]].assign(item_id=10**6)
    actual = pd.concat([actual.drop(index=[7, 8]), unknown, actual.iloc[[0, 0, 1]]])
    assert compare(wanted, actual, BY_MINUTE.key) == Comparison(len(wanted) + 2, missing=2, duplicate=3, different=2)
    assert compare(wanted, wanted.head(0), BY_MINUTE.key) == Comparison(rows=0, missing=len(wanted))


FAMILY = """
import json, os, subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
orphan = "import subprocess, sys; print(subprocess.Popen(%r, stdin=-3, stdout=-3, stderr=-3).pid)" % (sleep,)
group = subprocess.Popen(sleep, preexec_fn=lambda: os.setpgid(0, 0)).pid
session = subprocess.Popen(sleep, start_new_session=True).pid
left = int(subprocess.run([sys.executable, "-c", orphan], capture_output=True, text=True, check=True).stdout)
print("not json")
print(json.dumps({"query": "q", "pids": [os.getpid(), group, session, left]}), flush=True)
sleeper = subprocess.run(sleep)
"""


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"


def test_a_kill_takes_new_groups_new_sessions_and_orphans(tmp_path: Path) -> None:
    bystander = Child([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "bystander", {})
    child = Child([sys.executable, "-c", FAMILY], tmp_path / "log", {})
    try:
        heard = child.next_event(60.0)
        assert heard is not None, (tmp_path / "log").read_text()
        pids = heard[1]["pids"]
        assert isinstance(pids, list)
        assert all(alive(pid) for pid in pids)
        assert child.kill() >= len(pids)
        assert not any(alive(pid) for pid in pids)
        assert child.next_event(10.0) is None
        assert not bystander.ends_within(0.0)
    finally:
        child.kill()
        bystander.kill()


def test_crash_points_are_reproducible_in_order_and_leave_room() -> None:
    for crashes in (1, 3, 6):
        points = crash_points(11, crashes, 60)
        assert points == crash_points(11, crashes, 60)
        files = [point.files for point in points]
        assert len(files) == crashes
        assert files == sorted(files)
        assert files[0] >= 9
        assert files[-1] <= 51
    assert crash_points(1, 3, 60) != crash_points(2, 3, 60)


def test_the_last_committed_batch_ignores_side_files(tmp_path: Path) -> None:
    assert committed_batch(tmp_path) == -1
    (tmp_path / "commits").mkdir()
    for name in ("0", "9", "10", ".11.crc", "12.tmp", "metadata"):
        (tmp_path / "commits" / name).touch()
    assert committed_batch(tmp_path) == 10


def recovery_report(path: Path, **changes: object) -> Path:
    stores = [
        {"open_windows": windows, "extent_records": extent, "replay_inputs": replay, "ec_load_ms": load}
        for windows, extent, replay, load in ((100, 150, 7, 2.0), (10, 19, 9, 1.0), (0, 0, 0, 3.5))
    ]
    facts = {"committed_batch": 8, "rewound_to": 5, "replayed_batches": 3, "digest_ok": True, "stores": stores}
    path.write_text(json.dumps(facts | changes))
    return path


def test_a_recovery_shows_the_store_nearest_to_its_bound(tmp_path: Path) -> None:
    recovery = load_recovery(recovery_report(tmp_path / "1.json"), BY_TEN)
    assert recovery == Recovery(BY_TEN.name, 8, 5, 3, True, 19, 20, 9, BY_TEN.u, 3.5)


def test_bounds_are_counts_or_multiples_of_the_open_windows() -> None:
    assert BY_MINUTE.extent_bound(7) == 14
    assert QuerySpec("n", "1.5x", 1, ("k",)).extent_bound(10) == 15
    assert QuerySpec("n", "500", 1, ("k",)).extent_bound(10) == 500


@pytest.mark.parametrize(
    ("changes", "comparison", "reason"),
    [
        ({}, Comparison(10), None),
        ({}, Comparison(10, missing=1), "undisturbed"),
        ({}, Comparison(10, duplicate=1), "undisturbed"),
        ({}, Comparison(10, different=1), "undisturbed"),
        ({}, Comparison(0), "no rows"),
        ({"digest_ok": False}, Comparison(10), "digest"),
        ({"digest_ok": None}, Comparison(10), None),
        ({"replayed_batches": 1}, Comparison(10), "more than one batch"),
    ],
)
def test_the_last_line_says_why(
    tmp_path: Path, changes: dict[str, object], comparison: Comparison, reason: str | None
) -> None:
    rows = [CrashRow(1, load_recovery(recovery_report(tmp_path / "1.json", **changes), BY_TEN), 2.0)]
    line = last_line(3, comparison, complaints(rows, comparison))
    if reason is None:
        assert line == "demo: OK crashes=3 rows=10 missing=0 duplicate=0 different=0"
    else:
        assert line.startswith("demo: FAILED crashes=3 rows=")
        assert reason in line


def test_the_last_line_gives_no_count_where_nothing_was_compared() -> None:
    assert last_line(1, None, ["silence"]) == "demo: FAILED crashes=1, no row was compared: silence"


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.touch()
    with pytest.raises(FileExistsError, match="--output"):
        Layout(tmp_path).create({})
    assert precious.exists()


def test_a_layout_replaces_an_earlier_one_and_keeps_the_newest_of_these(layout: Layout) -> None:
    for run in ("first", "second"):
        (layout.root / run).touch()
        layout.create({})
        assert not (layout.root / run).exists()
        assert (layout.previous / run).exists()


def test_the_verdict_on_a_target_sums_up_each_query() -> None:
    found = [Foretold("by_ten", 10.0, 8.0, 3), Foretold("by_ten", 10.0, 20.0, 5), Foretold("by_minute", 4.0, 5.0, 0)]
    verdict = Verdict(15.0, crashes=2, recoveries=tuple(found), unforetold=1, slow=1).to_json()
    assert (verdict["recoveries"], verdict["foretold"], verdict["share_under_target"]) == (4, 3, 0.75)
    assert verdict["by_query"]["by_ten"] == {
        "foretold": 2, "median_predicted_ms": 10.0, "median_measured_ms": 14.0, "shortest_measured_ms": 8.0,
        "longest_measured_ms": 20.0, "median_error": 0.375, "replayed_batches": [3, 5],
    }  # fmt: skip
    assert verdict["by_query"]["by_minute"]["median_error"] == pytest.approx(0.2)


RECOVERIES = [{"query": "by_ten", "predicted_ms": 9.0, "measured_ms": 8.0, "replayed_batches": 3}, {"target_ms": 15.0}]
SHARES = [{"variant": "autotune", "utilization": 0.6, "lowest": 0.5, "highest": 0.9}]


@pytest.mark.parametrize("lines", [RECOVERIES, SHARES], ids=["target", "utilization"])
def test_each_experiment_has_a_picture(lines: list[dict[str, object]], tmp_path: Path) -> None:
    draw(lines, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_lines_of_no_experiment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a file with what one of them has printed"):
        draw([{"round": 1}], tmp_path / "picture.png")
    assert not (tmp_path / "picture.png").exists()
