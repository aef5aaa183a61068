"""The command: its options, its lines, and what it leaves behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec_lab.bench import command, tasks
from spark_cec_lab.bench import options as bench_options
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule
from spark_cec_lab.bench.processes import BenchError

SPEED_MS = {
    "cec": 100.0, "cec-eager": 110.0, "rocksdb": 400.0, "rocksdb-zstd": 410.0, "rocksdb-tuned": 380.0, "hdfs": 200.0,
    "hdfs-zstd": 210.0, "hashmap": 105.0,
}  # fmt: skip


class Runs:
    """Stands in for the measured runs, and remembers what they were told."""

    def __init__(self) -> None:
        self.specs: list[JobSpec] = []
        self.schedules: list[Schedule] = []
        self.fail_at: int | None = None

    def __call__(self, spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
        assert home.is_dir()
        assert Path(spec.jar).read_text() == "jar"
        assert not Path(spec.checkpoint).exists()
        Path(spec.checkpoint).mkdir()
        self.specs.append(spec)
        self.schedules.append(schedule)
        if len(self.specs) == self.fail_at:
            raise BenchError("the query's process ended with exit code 1")
        say("batch 1/1")
        return Measured({"batch_ms": SPEED_MS[spec.provider.value]}, {})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    jar = tmp_path / "spark-cec.jar"
    jar.write_text("jar")
    fake = Runs()
    monkeypatch.setattr(tasks, "jar_path", lambda: str(jar))
    monkeypatch.setattr(tasks, "build_hashmap", lambda work: jar)
    monkeypatch.setattr(tasks, "steady", fake)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return fake


def _bench(tmp_path: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(command.app, [*options, "--output", str(tmp_path / "out")])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def test_three_alternating_rounds_of_all_providers_by_default(runs: Runs, tmp_path: Path) -> None:
    code, lines, errors = _bench(tmp_path)
    assert code == 0
    assert [line["kind"] for line in lines] == ["run"] * 24 + ["summary", "verdict"]
    order = list(SPEED_MS)
    assert [line["provider"] for line in lines[:16]] == [*order, *order[1:], order[0]]
    assert [line["round"] for line in lines[:24]] == [1] * 8 + [2] * 8 + [3] * 8
    assert (lines[-1]["must"], lines[-1]["sizes_of_the_design"]) == (True, True)
    assert [row["against"] for row in lines[-1]["rows"]] == ["rocksdb-tuned", "hdfs", "hashmap"]
    assert runs.schedules[0] == Schedule(fill=7, warm_up=8, timed=12)
    assert errors.splitlines()[0] == "round 1/3, cec: batch 1/1"


def test_the_hash_map_has_nothing_to_recover(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "recovery", runs)
    _, lines, _ = _bench(tmp_path, "recovery", "--rounds", "1")
    assert [line["provider"] for line in lines if line["kind"] == "run"] == [*SPEED_MS][:-1]
    code, lines, errors = _bench(tmp_path, "recovery", "--provider", "hashmap")
    assert (code, lines) == (2, []) and "--provider hashmap" in errors


@pytest.mark.parametrize(("task", "measure", "partitions"), [("pace", "pace", 2), ("agent", "empty_commits", 2)])
def test_some_tasks_measure_ours_alone(
    task: str, measure: str, partitions: int, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, measure, runs)
    _, lines, _ = _bench(tmp_path, task, "--rounds", "2")
    assert [line["provider"] for line in lines if line["kind"] == "run"] == ["cec", "cec"]
    assert lines[-1]["sizes_of_the_design"] is True
    assert _bench(tmp_path, task, "--provider", "hdfs")[0] == 2


def test_many_stores_are_two_hundred(runs: Runs, tmp_path: Path) -> None:
    _, lines, _ = _bench(tmp_path, "stores", "--rounds", "1", "--provider", "cec")
    assert (runs.specs[0].workload.partitions, lines[-1]["sizes_of_the_design"]) == (200, True)
    _, lines, _ = _bench(tmp_path, "stores", "--rounds", "1", "--provider", "cec", "--partitions", "100")
    assert lines[-1]["sizes_of_the_design"] is False


def test_a_bad_verdict_is_no_failure(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEED_MS, "cec", 1000.0)
    code, lines, _ = _bench(tmp_path, "--rounds", "1")
    assert (code, lines[-1]["must"]) == (0, False)


def test_other_sizes_are_said_not_to_be_the_designs(runs: Runs, tmp_path: Path) -> None:
    _, lines, _ = _bench(tmp_path, "--rounds", "1", "--keys", "100", "--updates", "10", "--provider", "hdfs")
    assert [line["kind"] for line in lines] == ["run", "summary", "verdict"]
    assert (lines[0]["keys"], lines[0]["updates"], lines[-1]["sizes_of_the_design"]) == (100, 10, False)
    assert runs.schedules[0].fill == 10


def test_partitions_do_not_make_another_size(runs: Runs, tmp_path: Path) -> None:
    _, lines, _ = _bench(tmp_path, "slow", "--partitions", "32", "--rounds", "1")
    assert lines[-1]["sizes_of_the_design"] is True
    assert runs.specs[0].workload.partitions == 32


def test_options_reach_every_run(runs: Runs, tmp_path: Path) -> None:
    options = ("--memory", "2g", "--java-options", "-Xint", "--conf", "a.b=c=d", "--warm-up", "3", "--batches", "4")
    _bench(tmp_path, "--rounds", "2", "--provider", "cec", "--provider", "cec", *options)
    assert len(runs.specs) == 2
    assert {(spec.memory, spec.java_options, spec.conf) for spec in runs.specs} == {("2g", "-Xint", (("a.b", "c=d"),))}
    assert (runs.schedules[0].warm_up, runs.schedules[0].timed) == (3, 4)


def test_the_lines_go_to_a_file_too(runs: Runs, tmp_path: Path) -> None:
    _, lines, _ = _bench(tmp_path, "--rounds", "1", "--json-out", str(tmp_path / "lines.jsonl"))
    assert [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()] == lines


def test_nothing_stays_in_the_work_directory(runs: Runs, tmp_path: Path) -> None:
    _bench(tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_run_is_exit_code_1_and_leaves_nothing(runs: Runs, tmp_path: Path) -> None:
    runs.fail_at = 2
    code, lines, errors = _bench(tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert errors.splitlines()[-1] == "error: the query's process ended with exit code 1"
    assert list((tmp_path / "out").iterdir()) == []


def test_all_of_it_at_each_size(runs: Runs, tmp_path: Path) -> None:
    table, pictures = tmp_path / "runs.csv", tmp_path / "pictures"
    options = ("--provider", "cec", "--provider", "hdfs", "--csv", str(table), "--png", str(pictures))
    code, lines, errors = _bench(tmp_path, "--rounds", "2", "--grow", "keys=100,4000", "--updates", "1000", *options)
    assert code == 0
    assert [line["keys"] for line in lines if line["kind"] == "run"] == [100] * 4 + [4000] * 4
    assert [(s.workload.keys, p.fill) for s, p in zip(runs.specs, runs.schedules, strict=True)] == [(100, 1)] * 4 + [
        (4000, 4)
    ] * 4
    assert [line["keys"] for line in lines if line["kind"] == "summary"] == [100, 4000]
    rows = table.read_text().splitlines()
    assert rows[0] == "task,provider,round,keys,updates,partitions,batch_ms"
    assert rows[1:3] == ["uniform,cec,1,100,1000,2,100", "uniform,hdfs,1,100,1000,2,200"]
    assert len(rows) == 9
    assert (pictures / "uniform-by-keys.png").read_bytes()[:4] == b"\x89PNG"
    assert "drawn: " in errors


def test_longer_values(runs: Runs, tmp_path: Path) -> None:
    _, lines, _ = _bench(tmp_path, "--rounds", "1", "--value-bytes", "2000", "--provider", "cec")
    assert (runs.specs[0].workload.value_bytes, lines[0]["value_bytes"]) == (2000, 2000)
    assert lines[-1]["sizes_of_the_design"] is False


def test_flink_has_a_python_of_its_own(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def of_flink(spec: JobSpec, schedule: Schedule, home: Path, say: Say, python: str) -> Measured:
        told.append(python)
        return Measured({"us_per_tuple": 4.0}, {})

    monkeypatch.setattr(tasks, "flink", of_flink)
    monkeypatch.setattr(bench_options, "check_flink", lambda python: "2.3.0")
    monkeypatch.setitem(SPEED_MS, "cec", 1000.0)
    code, lines, errors = _bench(tmp_path, "flink", "--rounds", "1")
    assert (code, lines, told) == (2, [], []) and "--flink-python" in errors
    code, lines, _ = _bench(tmp_path, "flink", "--rounds", "1", "--flink-python", "there/python")
    assert [line["provider"] for line in lines if line["kind"] == "run"] == [
        "cec", "hashmap", "flink-hashmap", "flink-hashmap-mini-batch", "flink-rocksdb", "flink-rocksdb-mini-batch",
    ]  # fmt: skip
    assert told == ["there/python"] * 4
    assert len(lines[-1]["rows"]) == 0  # ours has no time per tuple here


def test_the_queries_of_nexmark(runs: Runs, tmp_path: Path) -> None:
    """By default each that keeps state; any of them by name."""
    few = ("--rounds", "1", "--provider", "cec")
    _, lines, _ = _bench(tmp_path, "nexmark", "--query", "q8", "--query", "q0", *few)
    assert [line["query"] for line in lines if line["kind"] == "run"] == ["q8", "q0"]
    assert lines[-1]["sizes_of_the_design"] is True
    assert "keys" not in lines[0]
    _, lines, _ = _bench(tmp_path, "nexmark", *few)
    assert [line["query"] for line in lines if line["kind"] == "run"] == list(bench_options.STATEFUL)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--grow", "keys"), "--grow"), (("--grow", "salt=1,2"), "--grow"), (("--grow", "keys=2,1"), "--grow"),
        (("--grow", "keys=1,x"), "--grow"), (("--grow", "keys=0,1"), "--grow"),
        (("paper", "--grow", "keys=1"), "--grow"), (("--png", "there"), "--png"),
        (("fast", "--value-bytes", "9"), "--value-bytes"),
        (("fast", "--grow", "value-bytes=9"), "--value-bytes"), (("--flink-python", "python"), "--flink-python"),
        (("flink", "--flink-python", "/nowhere/python"), "No such file"),
        (("flink", "--flink-python", sys.executable), "has no apache-flink"),
        (("--provider", "flink-hashmap"), "--provider flink-hashmap"),
        (("flink", "--provider", "rocksdb"), "--provider rocksdb"),
        (("--query", "q4"), "--query"), (("nexmark", "--query", "q44"), "q44: did you mean q4?"),
        (("nexmark", "--keys", "9"), "--keys"), (("nexmark", "--grow", "keys=9"), "--keys"),
        (("nexmark", "--provider", "hashmap"), "--provider hashmap"),
    ],
)  # fmt: skip
def test_what_a_task_does_not_have(runs: Runs, tmp_path: Path, options: tuple[str, ...], named: str) -> None:
    code, lines, errors = _bench(tmp_path, *options)
    assert (code, lines, runs.specs) == (2, [], [])
    assert named in " ".join(errors.split())


@pytest.mark.parametrize(
    "options",
    [
        ("sideways",), ("--rounds", "0"), ("--provider", "oracle"), ("--provider", "floor"), ("--conf", "novalue"),
        ("--conf", "=x"),
    ],
)  # fmt: skip
def test_wrong_usage(runs: Runs, tmp_path: Path, options: tuple[str, ...]) -> None:
    code, lines, errors = _bench(tmp_path, *options)
    assert (code, lines, runs.specs) == (2, [], [])
    assert options[0] in errors


def test_help_has_examples() -> None:
    result = CliRunner().invoke(command.app, ["--help"])
    assert result.exit_code == 0
    assert "cec bench recovery --rounds 1" in result.stdout
