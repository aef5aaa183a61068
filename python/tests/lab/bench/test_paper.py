"""The paper's experiments: what is run, what follows from it, and what is drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_cec.session import JARS_KEY
from spark_cec_lab.bench import command, paper_run
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Measured, Say, Schedule, at_the_crash, windows_of
from spark_cec_lab.bench.paper import FIGURES, IDS, Kind, derived
from spark_cec_lab.bench.paper_run import spread, summed_up
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.workloads import Shape, Size, Workload, output_mode

REPORT = {
    "replayed_batches": 7,
    "stores": [
        {"extent_records": 30, "replay_inputs": 5, "ec_load_ms": 12.5},
        {"extent_records": 12, "replay_inputs": 6, "ec_load_ms": None},
    ],
}


class Runs:
    """Stands in for the measured runs, and remembers what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[Kind, JobSpec, Schedule]] = []

    def of(self, kind: Kind) -> paper_run.Measure:
        def measure(spec: JobSpec, schedule: Schedule, home: Path, say: Say) -> Measured:
            assert home.is_dir()
            self.told.append((kind, spec, schedule))
            logs = dict(spec.conf).get("spark.sql.streaming.stateStore.cec.log.path")
            assert logs is None or Path(logs).is_dir()
            values = {Kind.STEADY: {"batch_ms": 100.0 * len(self.told), "lifetime_batches": 3.0, "extent": 9.0}}
            return Measured(values.get(kind, {"checked": 4.0, **at_the_crash(REPORT)}), {})

        return measure


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    jar = tmp_path / "spark-cec.jar"
    jar.write_text("jar")
    fake = Runs()
    monkeypatch.setattr(paper_run, "jar_path", lambda: str(jar))
    monkeypatch.setattr(paper_run, "build_hashmap", lambda work: jar)
    monkeypatch.setattr(paper_run, "MEASURES", {kind: fake.of(kind) for kind in Kind})
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return fake


def paper(tmp_path: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    result = CliRunner().invoke(command.app, ["paper", *options, "--output", str(tmp_path / "out")])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def test_each_point_is_run_once_in_a_round_and_stands_beside_the_papers(runs: Runs, tmp_path: Path) -> None:
    code, lines, errors = paper(tmp_path, "--figure", "6", "--rounds", "2", "--png", str(tmp_path / "png"))
    assert code == 0, errors
    assert [line["point"] for line in lines[:-1]] == [f"Q={q}x" for q in (1, 2, 4, 8, 2, 4, 8, 1)]
    panels = lines[-1]["panels"]
    assert panels["extent at the crash, records"]["Q=1x"] == {"ours": [42, 42, 42], "paper": [120_000, 120_000]}
    assert panels["G_check written"]["Q=4x"] == {"ours": [4, 4, 4], "paper": None}
    assert panels["to be replayed, MB"]["Q=1x"]["ours"] == [35, 35, 35]
    confs = [dict(spec.conf) for _, spec, _ in runs.told]
    assert all(conf["spark.sql.streaming.stateStore.cec.effort"] == "0" for conf in confs)
    assert [path.name for path in (tmp_path / "png").iterdir()] == ["paper-fig6.png"]
    assert not list((tmp_path / "out").iterdir())


def test_all_figures_are_drawn(runs: Runs, tmp_path: Path) -> None:
    code, lines, errors = paper(tmp_path, "--rounds", "1", "--updates", "500", "--png", str(tmp_path))
    assert code == 0, errors
    assert [line["figure"] for line in lines if line["kind"] == "figure"] == [5, 6, 7, 8]
    assert {path.name for path in tmp_path.glob("*.png")} == {f"paper-fig{number}.png" for number in (5, 6, 7, 8)}
    assert {spec.workload.updates for _, spec, _ in runs.told} == {500}
    in_memory = [spec for _, spec, _ in runs.told if any("log.path" in key for key, _ in spec.conf)]
    assert len(in_memory) == 2
    assert not any(Path(dict(spec.conf)["spark.sql.streaming.stateStore.cec.log.path"]).exists() for spec in in_memory)
    hashmaps = [dict(spec.conf)[JARS_KEY] for _, spec, _ in runs.told if spec.provider is Provider.HASHMAP]
    assert len(hashmaps) == 3
    assert all("," in jars for jars in hashmaps), "the operator is in our jar, the store in the hash map's"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["paper", "--figure", "4"], "4: there are 5, 6, 7, 8"),
        (["uniform", "--figure", "6"], "for the task"),
        (["uniform", "--png", "x"], "for the task"),
        (["paper", "--provider", "cec"], "paper has providers of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(runs: Runs, options: list[str], words: str) -> None:
    result = CliRunner().invoke(command.app, options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split()).replace("│ ", "")
    assert not runs.told


def test_the_papers_quantities() -> None:
    values = derived({"batch_ms": 200.0, "lifetime_batches": 19.0}, IDS)
    assert (values["tuples_per_s"], values["windows_per_s"], values["response_s"]) == (250_000, 25_000, 4)
    assert derived({"ec_load_ms": 2500.0, "replayed_batches": 4.0}, IDS)["replay_mb"] == 20
    assert "response_s" not in derived({"batch_ms": 1.0}, IDS)


def test_windows_are_those_that_closed() -> None:
    events: list[dict[str, Any]] = [
        {"metrics": {"cecExtent": 7}},
        {"lifetime_batches": 2, "metrics": {"cecExtent": 9}},
        {"lifetime_batches": 4.0, "metrics": {}},
    ]
    assert windows_of(events) == {"lifetime_batches": 3, "extent": 8}
    assert windows_of([{"metrics": {}}]) == {}


def test_what_was_not_measured_is_not_made_up() -> None:
    assert spread([{"a": 1.0}], "b") is None
    figure = FIGURES[1]
    line = summed_up(figure, {"Q=1x": [{"extent": 3.0}]})
    assert line["panels"]["EC load, s"]["Q=1x"] == {"ours": None, "paper": [3.5, 5]}
    assert at_the_crash({}) == {}


def test_the_workload_of_the_paper() -> None:
    assert IDS.fill_batches == 20
    assert output_mode(IDS) == "append"
    assert Size(50, None, 1).of(IDS) == Workload(Shape.COUNT, 50, 50_000, 1, 10)
    points = [point.name for figure in FIGURES for point in figure.points]
    assert len(points) == len(set(points))
    for figure in FIGURES:
        said = {name for panel in figure.panels for name in panel.theirs}
        assert said <= {point.name for point in figure.points}, "what the paper says of no point is not drawn"
