"""What a recovery target and autotuning are worth on the purchase queries, under random kills.

`target`: kill the driver at random moments and compare each recovery's time with what was foretold, and with the
target. `utilization`: the work that gets done on a backlog under kills, as a share of what an undisturbed run without
checkpoints does, with autotune and with fixed shares. JSON lines go to standard output, progress to standard error;
`plot` draws them.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from purchases_demo.events import Stream
from purchases_demo.layout import Layout
from purchases_demo.lives import UNDISTURBED, VARIANTS, LifeError, kill_times, measure_target, measure_work
from testbed.processes import exit_on_sigterm

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)

ITEMS, LINES = 20_000, 600

Seed = Annotated[int, typer.Option(help="Seed of events and kills.")]
Output = Annotated[Path, typer.Option(help="Directory for everything this writes; removed when all is well.")]


@app.command()
def target(
    crashes: Annotated[int, typer.Option(min=1, help="How often to kill the driver.")] = 30,
    seconds: Annotated[float, typer.Option(min=0.1, help="The target: spark…cec.recoveryTarget, in seconds.")] = 10.0,
    life: Annotated[float, typer.Option(min=0.0, help="Mean life of a driver after it is back, in seconds.")] = 10.0,
    seed: Seed = 1,
    output: Output = Path("demo-output/target"),
) -> None:
    """Recovery times under a target: foretold against measured."""
    layout = _layout(output, {"experiment": "target", "seed": seed})
    # More files than can be used up: a driver that has run dry could not be killed in the middle of a batch.
    files = int(crashes * (life + 30.0) * 2) + 100
    feed = ("--seed", seed, "--batches", files, "--items", ITEMS, "--lines", LINES, "--interval", 1.0)
    verdict = measure_target(layout, seed, crashes, f"{seconds:g}s", seconds * 1000, life, feed, _say)
    for each in verdict.recoveries:
        _write({"query": each.query, "predicted_ms": each.predicted_ms, "measured_ms": each.measured_ms,
                "replayed_batches": each.replayed_batches})  # fmt: skip
    _write(verdict.to_json())
    shutil.rmtree(layout.root)


@app.command()
def utilization(
    seconds: Annotated[float, typer.Option(min=10.0, help="How long each run takes.")] = 120.0,
    failure_every: Annotated[float, typer.Option(min=1.0, help="Mean time between kills, in seconds.")] = 40.0,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each variant, in turn; each round has other kills.")] = 2,
    seed: Seed = 1,
    output: Output = Path("demo-output/utilization"),
) -> None:
    """Work done under kills, as a share of an undisturbed run: autotune, fixed CP, and T = 30 min."""
    shares: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    for number in range(rounds):
        kills = kill_times(seed + number, seconds, failure_every)
        ideal = 0.0
        for variant in (UNDISTURBED, *VARIANTS):
            layout = _layout(output, {"experiment": variant.name, "seed": seed})
            stream = Stream(seed, ITEMS, LINES)
            for file in range(int(seconds * 5)):
                (layout.events / f"purchases-{file:06d}.json").write_bytes(stream.file(file))
            work = measure_work(layout, variant, seconds, kills if variant is not UNDISTURBED else (), _say)
            if variant is UNDISTURBED:
                ideal = work.rate
            else:
                shares[variant.name].append(work.rate / ideal)
            _write({"round": number + 1, "variant": work.variant, "files": work.files, "seconds": seconds,
                    "kills": work.kills, "share": work.rate / ideal, "replayed_batches": work.replayed})  # fmt: skip
    for name, found in shares.items():
        _write({"variant": name, "utilization": median(found), "lowest": min(found), "highest": max(found)})
    shutil.rmtree(output.absolute())


@app.command()
def plot(
    lines: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What an experiment has printed.")],
    png: Annotated[Path, typer.Option(help="The picture's file.")],
) -> None:
    """Draw an experiment's picture from its JSON lines."""
    from purchases_demo.figures import draw

    try:
        draw([json.loads(line) for line in lines.read_text().splitlines()], png)
    except ValueError as error:
        _say(f"{lines}: {error}")
        raise typer.Exit(2) from None


def _layout(output: Path, facts: dict[str, object]) -> Layout:
    layout = Layout(output.absolute())
    layout.create(facts)
    return layout


def _write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    exit_on_sigterm()
    try:
        app()
    except (LifeError, FileExistsError) as error:
        _say(f"error: {error}")
        sys.exit(1)
