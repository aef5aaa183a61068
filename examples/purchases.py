"""The demo: two streaming queries over purchases, killed again and again, and their output compared row by row.

`python examples/purchases.py` runs all of it; `make demo` does the same after the set-up. The other commands are
the processes that it starts.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from purchases_demo.layout import QUERIES, Layout

app = typer.Typer(add_completion=False, help=__doc__)

Output = Annotated[Path, typer.Option(help="Directory for everything the demo writes.")]
Batches = Annotated[int, typer.Option(min=1, help="Files of events: a micro-batch each.")]
Items = Annotated[int, typer.Option(min=1, help="Items on sale.")]
Lines = Annotated[int, typer.Option(min=1, help="Events in a file.")]
Interval = Annotated[float, typer.Option(min=0.0, help="Seconds from one file to the next.")]


@app.command()
def demo(
    seed: Annotated[int | None, typer.Option(help="Seed of events and crashes; a new one if not given.")] = None,
    crashes: Annotated[int, typer.Option(min=1, help="How often to kill the driver.")] = 3,
    batches: Batches = 32,
    items: Items = 20_000,
    output: Output = Path("demo-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the output directory also when all is well.")] = False,
    ui: Annotated[
        bool, typer.Option("--ui", help="At the end let the queries go on with Spark's user interface, until Ctrl-C.")
    ] = False,
) -> None:
    """Run the demo: feed, query, kill, restart, compare."""
    raise typer.Exit(_demo(seed, crashes, batches, items, output.absolute(), keep, ui))


@app.command()
def feed(
    seed: Annotated[int, typer.Option(help="Seed of the events.")],
    batches: Batches,
    items: Items,
    lines: Lines,
    interval: Interval,
    output: Output,
) -> None:
    """Publish files of events at a steady pace."""
    from purchases_demo.events import Stream
    from purchases_demo.feeder import feed as feed_files

    feed_files(Layout(output.absolute()), Stream(seed, items, lines), batches, interval)


@app.command()
def query(
    output: Output,
    bound: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A cec.* setting, such as U=800; for both queries.")
    ] = None,
) -> None:
    """Run both queries until everything that was fed is processed."""
    from purchases_demo.queries import run_queries

    pairs = [each.partition("=") for each in bound or ()]
    run_queries(Layout(output.absolute()), {key: value for key, _, value in pairs} if pairs else None)


@app.command()
def stay(
    seed: Annotated[int, typer.Option(help="Seed of the events.")],
    first: Annotated[int, typer.Option(help="The first file to publish.")],
    items: Items,
    lines: Lines,
    interval: Interval,
    output: Output,
) -> None:
    """Run both queries on with Spark's user interface, and publish more files, for ever."""
    from purchases_demo.events import Stream
    from purchases_demo.queries import stay as run_on

    run_on(Layout(output.absolute()), Stream(seed, items, lines), first, interval)


@app.command()
def read(output: Output) -> None:
    """Read the queries' output back with the `cec` reader."""
    from purchases_demo.queries import read_rows

    read_rows(Layout(output.absolute()))


def _demo(seed: int | None, crashes: int, batches: int, items: int, output: Path, keep: bool, ui: bool) -> int:
    from purchases_demo.supervisor import Settings, Supervisor
    from testbed.processes import exit_on_sigterm

    console = Console(width=None if sys.stdout.isatty() else 120)
    if batches < 5 * crashes:
        console.print(f"demo: --batches {batches} is too few for --crashes {crashes}: {5 * crashes} at least")
        return 2
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    settings = Settings(seed, crashes, batches, items, lines=600, interval_s=1.5, silence_s=600)
    layout = Layout(output)
    try:
        layout.create({"seed": seed, "crashes": crashes, "batches": batches, "items": items})
    except FileExistsError as error:
        console.print(f"demo: {error}", soft_wrap=True)
        return 2
    names = " and ".join(spec.name for spec in QUERIES)
    console.print(f"seed {seed}: {batches} files for {names}, {crashes} crashes; in {output}", soft_wrap=True)
    exit_on_sigterm()
    supervisor = Supervisor(settings, layout, console)
    right = supervisor.run()
    if ui:
        supervisor.keep_open()
    if right and not keep:
        shutil.rmtree(output)
    return 0 if right else 1


def _with_default_command(arguments: list[str]) -> list[str]:
    named = arguments and (not arguments[0].startswith("-") or arguments[0] == "--help")
    return arguments if named else ["demo", *arguments]


if __name__ == "__main__":
    app(_with_default_command(sys.argv[1:]))
