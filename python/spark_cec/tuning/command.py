"""`cec tune`: the best checkpoint interval for a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from spark_cec.errors import CecError
from spark_cec.tuning.advice import System, advise
from spark_cec.tuning.estimate import FailureRate, commit_figures, failure_rate, mean_seconds
from spark_cec.tuning.inputs import ModelInputError
from spark_cec.tuning.plots import save_png, terminal_plot
from spark_cec.tuning.quantities import format_duration, parse_duration, parse_rate
from spark_cec.tuning.recoveries import CommitReader, Evidence, gather
from spark_cec.tuning.report import advice_json, advice_table, inputs_table, rate_line

_OPTIONS = {
    "failures_per_s": "--failure-rate",
    "checkpoint_s": "--checkpoint-cost",
    "restart_s": "--restart",
    "operators": "--operators",
    "delay_s": "--delay",
    "interval_s": "--interval",
    "observed_s": "--observed",
}


_DEFERRED = (
    "this query defers: a commit writes only some of the windows that changed, so c is too low; give --checkpoint-cost "
    "as the time to write all of them, or set cec.autotune=on, which measures it"
)

_HELP = """Print the best checkpoint interval T*, what it yields, and what the present interval loses.

\b
Examples:
  cec tune --failure-rate 0.5/day --checkpoint-cost 800ms --restart 30s
  cec tune --failure-rate 0.5/day --checkpoint-cost 800ms --restart 30s --operators 3 --delay 20ms --interval 10s
  cec tune --from /data/checkpoints/totals --png tune.png
  cec tune --from /data/checkpoints/totals --json

\b
Exit codes:
  0  advice was given
  2  wrong usage, or nothing to be read
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Inputs read from a checkpoint: values and their origins by the fields of `System`, λ's interval, T, remarks."""

    values: dict[str, float]
    origins: dict[str, str]
    rate: FailureRate | None = None
    interval_s: float | None = None
    remarks: tuple[str, ...] = ()


def tune_app(read_commits: CommitReader | None = None) -> typer.Typer:
    """The command as a typer application, to be mounted as `tune`.

    `read_commits` reads the commits of the log under a checkpoint, for c, n, δ and the present interval. Without it
    `--from` still yields λ and R, and c has to be given.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None, help="How often to checkpoint.")

    @app.callback(invoke_without_command=True, help=_HELP)
    def tune(
        context: typer.Context,
        failure_rate: Annotated[str | None, typer.Option(help="λ, such as 0.5/day.")] = None,
        checkpoint_cost: Annotated[str | None, typer.Option(help="c, such as 800ms.")] = None,
        restart: Annotated[str | None, typer.Option(help="R, detection and restart, such as 30s.")] = None,
        operators: Annotated[int | None, typer.Option(help="n, stateful operators one after another.")] = None,
        delay: Annotated[str | None, typer.Option(help="δ between two of them, such as 20ms.")] = None,
        interval: Annotated[str | None, typer.Option(help="The present interval, such as 10s.")] = None,
        checkpoint: Annotated[Path | None, typer.Option("--from", help="A checkpoint to read them from.")] = None,
        observed: Annotated[str | None, typer.Option(help="With --from: how long the query was watched.")] = None,
        png: Annotated[Path | None, typer.Option(help="Also write the plot to this file.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables and plot.")] = False,
    ) -> None:
        if context.invoked_subcommand is not None:
            return
        with tune_explained():
            given = {
                "failures_per_s": None if failure_rate is None else parse_rate(failure_rate),
                "checkpoint_s": _seconds(checkpoint_cost),
                "restart_s": _seconds(restart),
                "operators": operators,
                "delay_s": _seconds(delay),
            }
            measured = Measured({}, {})
            if checkpoint is not None:
                measured = _measure(gather(checkpoint, read_commits), _seconds(observed))
            _show(given, measured, _seconds(interval), png, as_json)

    return app


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text)


def _measure(evidence: Evidence, observed_s: float | None) -> Measured:
    """The inputs that the evidence of one checkpoint supports."""
    rate = failure_rate(len(evidence.recoveries), evidence.observed_s if observed_s is None else observed_s)
    values: dict[str, float] = {"failures_per_s": rate.per_s}
    origins = {"failures_per_s": f"{rate.failures} restarts in {format_duration(rate.observed_s)}"}
    if evidence.recoveries:
        values["restart_s"] = mean_seconds("recoveries", (r.duration_ms / 1000.0 for r in evidence.recoveries))
        origins["restart_s"] = f"mean of {len(evidence.recoveries)} recoveries"
    present = None
    if evidence.commits:
        figures = commit_figures(evidence.commits)
        present = figures.interval_s
        values |= {"checkpoint_s": figures.checkpoint_s, "operators": figures.operators, "delay_s": figures.delay_s}
        source = f"{len(evidence.commits)} commits of the log"
        origins |= dict.fromkeys(("checkpoint_s", "operators", "delay_s"), source)
    remarks = tuple(f"left out, not a readable recovery record: {name}" for name in evidence.unreadable)
    if any(not commit.whole for commit in evidence.commits):
        remarks = (_DEFERRED, *remarks)
    return Measured(values, origins, rate, present, remarks)


def _show(
    given: dict[str, float | None], measured: Measured, interval_s: float | None, png: Path | None, as_json: bool
) -> None:
    stated = {field: value for field, value in given.items() if value is not None}
    values: dict[str, float] = {"restart_s": 0.0, "operators": 1, "delay_s": 0.0} | measured.values | stated
    origins = dict.fromkeys(given, "default") | measured.origins | {field: _OPTIONS[field] for field in stated}
    for field in ("failures_per_s", "checkpoint_s"):
        if field not in values:
            raise ModelInputError(field, "is missing", "give it, or a checkpoint whose log tells it with --from")
    whole = int(values.pop("operators"))
    system = System(**values, operators=whole)
    advice = advise(system, measured.interval_s if interval_s is None else interval_s)
    rate = None if "failures_per_s" in stated else measured.rate
    remarks = [each for each in measured.remarks if each != _DEFERRED or "checkpoint_s" not in stated]
    if as_json:
        typer.echo(json.dumps(advice_json(advice, origins, rate, remarks)))
    else:
        console = Console(soft_wrap=True)
        console.print(inputs_table(advice, origins), "")
        console.print(advice_table(advice), *([rate_line(system, rate)] if rate else []), "")
        console.print(Text(terminal_plot(advice)))
        for remark in remarks:
            console.print(Text(remark))
    if png is not None:
        save_png(advice, png)
        typer.echo(f"wrote {png}", err=as_json)


@contextmanager
def tune_explained() -> Iterator[None]:
    """One line on standard error and exit code 2 for what can be mended; the model's arguments are called by option."""
    try:
        yield
    except CecError as error:
        line = str(error)
        if isinstance(error, ModelInputError) and error.name in _OPTIONS:
            line = f"{_OPTIONS[error.name]} {error.value}: {error.mend}"
        typer.echo(f"cec tune: {line}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        typer.echo(f"cec tune: {error.filename}: {error.strerror}; give a place that can be read and written", err=True)
        raise typer.Exit(2) from error


app = tune_app()
