"""`cec tune` as a user meets it: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import json
from math import exp, expm1
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from spark_cec.settings import PREFIX, parse_settings
from spark_cec.tuning import Commit, System, advise
from spark_cec.tuning.command import app, tune_app
from spark_cec.tuning.plots import save_png, terminal_plot
from spark_cec.tuning.quantities import parse_rate

PNG = b"\x89PNG\r\n\x1a\n"
START_S = 1_700_000_000


def run(*arguments: str, on: Typer = app) -> Result:
    return CliRunner().invoke(on, list(arguments))


def value(result: Result, label: str) -> str:
    """What stands to the right of a label, in single spaces."""
    (line,) = [line for line in result.output.splitlines() if line.startswith(label)]
    return " ".join(line.removeprefix(label).split())


def test_advice_for_given_numbers() -> None:
    system = ("--failure-rate", "0.005/min", "--checkpoint-cost", "5min", "--restart", "10min")
    result = run(*system, "--interval", "30min")
    assert result.exit_code == 0, result.output
    assert value(result, "best interval T*") == "46.45min"
    assert value(result, "utilization at T*") == "0.7541"
    present = 0.005 * 25 / expm1(0.15) * exp(-0.05)
    assert value(result, "utilization at present") == f"{present:.4f} T = 30min"
    lost = 0.7540775 - present
    assert value(result, "lost against T*") == f"{lost:.4f} {lost * 1440:.4g}min of work a day"
    share = f"{500 / 46.452:.4g} % with CI=20ms: CP={464.52 / 5 * 2:.0f}ms"
    assert value(result, "share of time for checkpoints c/T*") == share
    assert value(result, "failure rate λ") == "7.2/day --failure-rate"
    assert value(result, "operators n") == "1 default"
    assert terminal_plot(advise(System(0.005 / 60, 300.0, 600.0), 1800.0)) in result.output


def test_depth_lowers_utilization_and_leaves_the_interval() -> None:
    system = ("--failure-rate", "0.005/min", "--checkpoint-cost", "5min", "--restart", "10min")
    result = run(*system, "--operators", "50", "--delay", "30s")
    assert value(result, "best interval T*") == "46.45min"
    assert value(result, "utilization at T*") == "0.6671"
    assert "present " not in result.output.partition("utilization against")[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--failure-rate is missing: give it"),
        (["--failure-rate", "1/day"], "--checkpoint-cost is missing: give it"),
        (["--failure-rate", "often", "--checkpoint-cost", "1s"], "'often': give a count per time"),
        (["--failure-rate", "1/day", "--checkpoint-cost", "1"], "'1': give a duration with a unit"),
        (["--failure-rate", "0/day", "--checkpoint-cost", "1s"], "--failure-rate 0: must be greater than 0"),
        (["--failure-rate", "1/day", "--checkpoint-cost", "0s"], "--checkpoint-cost 0: must be greater than 0"),
        (["--failure-rate", "1/day", "--checkpoint-cost", "1s", "--operators", "0"], "--operators 0: must be a whole"),
        (["--failure-rate", "1/day", "--checkpoint-cost", "1s", "--interval", "1s"], "--interval 1: must be longer"),
        (["--from", "/nowhere/at/all"], "/nowhere/at/all: no query's checkpoint here"),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_option(arguments: list[str], complaint: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cec tune: {complaint}")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("rate", ["20/h", "1/day", "1/100years"])
def test_the_period_can_be_set_as_it_is_shown(rate: str) -> None:
    hint = value(run("--failure-rate", rate, "--checkpoint-cost", "2s"), "share of time for checkpoints c/T*")
    period = hint.partition("CP=")[2]
    best = advise(System(parse_rate(rate), 2.0)).best_interval_s
    settings = parse_settings({PREFIX + "CP": period})
    assert settings.checkpoint_share == pytest.approx(2.0 / best, rel=0.05)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two recoveries of 2 s and 4 s, a damaged record, and 20 days between the first commit and the last."""
    directory = tmp_path / "checkpoint" / "cec" / "recoveries"
    directory.mkdir(parents=True)
    for day, duration in ((3, 2000), (9, 4000)):
        record = {"committed_batch": 5, "rewound_to": 3, "replayed_batches": 2, "duration_ms": duration}
        (directory / f"{(START_S + day * 86400) * 1000}.json").write_text(json.dumps(record))
    (directory / "1700000000001.json").write_text('{"committed')
    return tmp_path / "checkpoint"


def commits(_: Path) -> list[Commit]:
    """Three batches ten seconds apart and one after 20 days, by two operators 50 ms apart."""
    walls = {1: 0.0, 2: 10.0, 3: 20.0, 900: 20 * 86400.0}
    return [
        Commit(version, operator, 0, START_S + wall + 0.05 * operator, 0.4)
        for version, wall in walls.items()
        for operator in (0, 1)
    ]


def test_advice_from_a_checkpoint(checkpoint: Path) -> None:
    result = run("--from", str(checkpoint), on=tune_app(commits))
    assert result.exit_code == 0, result.output
    assert value(result, "checkpoint cost c") == "400ms 8 commits of the log"
    assert value(result, "restart R") == "3s mean of 2 recoveries"
    assert value(result, "operators n") == "2 8 commits of the log"
    assert value(result, "delay δ") == "50ms 8 commits of the log"
    assert value(result, "failure rate λ").endswith("2 restarts in 20d")
    assert "few failures: with a prior of 1.602/month" in value(result, "95 % interval of λ:")
    assert value(result, "utilization at present").endswith("T = 10s")
    assert "left out, not a readable recovery record: 1700000000001.json" in result.output


def test_what_is_given_outranks_what_is_read(checkpoint: Path) -> None:
    given = ("--restart", "7s", "--failure-rate", "1/day", "--interval", "20s")
    result = run("--from", str(checkpoint), *given, on=tune_app(commits))
    assert value(result, "restart R") == "7s --restart"
    assert value(result, "failure rate λ") == "1/day --failure-rate"
    assert "95 %" not in result.output
    assert value(result, "utilization at present").endswith("T = 20s")


def test_without_the_log_the_cost_must_be_given_and_the_time_may_be(checkpoint: Path) -> None:
    assert "--checkpoint-cost is missing" in run("--from", str(checkpoint)).stderr
    result = run("--from", str(checkpoint), "--checkpoint-cost", "1s", "--observed", "40d")
    assert result.exit_code == 0, result.output
    assert "2 restarts in 40d" in value(result, "failure rate λ")


def test_the_plot_is_plain_text_and_marks_both_intervals() -> None:
    plot = terminal_plot(advise(System(1e-5, 1.0, 30.0), 5.0), width=60, height=12)
    lines = plot.rstrip("\n").splitlines()
    assert "\x1b" not in plot
    assert len(lines) == 12
    assert max(len(line) for line in lines) <= 60
    body = "\n".join(lines[1:])
    assert body.count("*") == 1
    assert body.count("o") == 1


def test_the_png_is_one_and_repeats(tmp_path: Path) -> None:
    target = tmp_path / "plot.png"
    result = run("--failure-rate", "1/day", "--checkpoint-cost", "1s", "--interval", "10s", "--png", str(target))
    assert result.exit_code == 0, result.output
    assert target.read_bytes().startswith(PNG)
    save_png(advise(System(1 / 86400, 1.0), 10.0), tmp_path / "again.png")
    assert target.read_bytes() == (tmp_path / "again.png").read_bytes()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "plot.png"
    result = run("--failure-rate", "1/day", "--checkpoint-cost", "1s", "--png", str(target))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cec tune: {target}: ")
    assert result.stderr.count("\n") == 1


def test_the_same_numbers_for_a_program() -> None:
    result = run("--failure-rate", "0.005/min", "--checkpoint-cost", "5min", "--restart", "10min", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["best_interval_s"] == pytest.approx(46.452 * 60, abs=0.03)
    assert found["best_utilization"] == pytest.approx(0.7541, abs=5e-5)
    assert (found["checkpoint_s"], found["from"]["checkpoint_s"]) == (300.0, "--checkpoint-cost")
    assert (found["present_utilization"], found["failure_rate_interval_per_s"], found["remarks"]) == (None, None, [])


def test_the_cost_of_a_query_that_defers_is_not_passed_off_as_a_checkpoints(tmp_path: Path) -> None:
    commits = [Commit(version, 0, 0, START_S + version, 0.01, whole=False) for version in range(1, 9)]
    (tmp_path / "metadata").write_text("{}")
    deferring = tune_app(lambda _: commits)
    assert "so c is too low" in run("--from", str(tmp_path), on=deferring).output
    assert "so c is too low" not in run("--from", str(tmp_path), "--checkpoint-cost", "1s", on=deferring).output


def test_help_has_examples_and_exit_codes() -> None:
    shown = run("--help").output
    assert "cec tune --from" in shown
    assert "Exit codes:" in shown
