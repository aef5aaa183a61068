"""Purchases from Kafka: a broker, a windowed query that is killed again and again, and its output compared row by row.

`python examples/kafka_purchases.py` runs all of it; `make demo-kafka` does the same after the set-up. It needs the
extra `kafka-example` of the package, and fetches the broker and Spark's Kafka connector from Maven Central, once.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kafka_demo.layout import Layout

app = typer.Typer(add_completion=False, help=__doc__)

Output = Annotated[Path, typer.Option(help="Directory for everything the demo writes.")]


@app.command()
def demo(
    seed: Annotated[int | None, typer.Option(help="Seed of purchases and crashes; a new one if not given.")] = None,
    crashes: Annotated[int, typer.Option(min=1, help="How often to kill the job.")] = 3,
    items: Annotated[int, typer.Option(min=1, help="Items on sale.")] = 2_000,
    output: Output = Path("demo-kafka-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the output directory also when all is well.")] = False,
) -> None:
    """Run the demo: broker, purchases, query, kills, comparison."""
    from kafka_demo.supervisor import Settings, Supervisor
    from testbed.processes import exit_on_sigterm

    console = Console(width=None if sys.stdout.isatty() else 120)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    layout = Layout(output.absolute())
    try:
        layout.root.mkdir(parents=True)
    except FileExistsError:
        console.print(f"demo: {layout.root} is there already: remove it, or choose another --output", soft_wrap=True)
        raise typer.Exit(2) from None
    console.print(f"seed {seed}: {crashes} crashes; in {layout.root}", soft_wrap=True)
    exit_on_sigterm()
    right = Supervisor(Settings(seed, crashes, items), layout, console).run()
    if right and not keep:
        shutil.rmtree(layout.root)
    raise typer.Exit(0 if right else 1)


@app.command()
def job(
    output: Output,
    address: Annotated[str, typer.Option(help="The broker, as host:port.")],
    last: Annotated[bool, typer.Option("--last", help="End when everything is read and every window closed.")] = False,
) -> None:
    """The job alone, which is what the demo kills."""
    from kafka_demo.job import run

    run(Layout(output.absolute()), address, last)


def _with_default_command(arguments: list[str]) -> list[str]:
    named = arguments and (not arguments[0].startswith("-") or arguments[0] == "--help")
    return arguments if named else ["demo", *arguments]


if __name__ == "__main__":
    app(_with_default_command(sys.argv[1:]))
