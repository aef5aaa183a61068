"""A pipeline over purchases: an executor and then the driver are killed, and every row is compared.

`python examples/pipeline_purchases.py` runs all of it; `make demo-pipeline` does the same after the set-up. The other
command is the driver that it kills.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from purchases_demo.layout import Layout

app = typer.Typer(add_completion=False, help=__doc__)

Output = Annotated[Path, typer.Option(help="Directory for everything the demo writes.")]


@app.command()
def demo(
    seed: Annotated[int | None, typer.Option(help="Seed of the purchases; a new one if not given.")] = None,
    files: Annotated[int, typer.Option(min=12, help="Files of purchases: a batch each.")] = 48,
    output: Output = Path("demo-pipeline-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the output directory also when all is well.")] = False,
) -> None:
    """Run the demo: feed, kill an executor, kill the driver, start again, compare."""
    from pipeline_demo.supervisor import Settings, Supervisor
    from testbed.processes import exit_on_sigterm

    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    layout = Layout(output.absolute())
    try:
        layout.create({"seed": seed, "files": files})
    except FileExistsError as error:
        console.print(f"demo: {error}", soft_wrap=True)
        raise typer.Exit(2) from None
    console.print(f"seed {seed}: {files} files of purchases through seven flows; in {layout.root}", soft_wrap=True)
    exit_on_sigterm()
    right = Supervisor(Settings(seed, files), layout, console).run()
    if right and not keep:
        shutil.rmtree(layout.root)
    raise typer.Exit(0 if right else 1)


@app.command()
def drive(output: Output) -> None:
    """The driver alone, which is what the demo kills."""
    from pipeline_demo.driver import drive as run

    raise typer.Exit(run(Layout(output)))


if __name__ == "__main__":
    named = len(sys.argv) > 1 and (not sys.argv[1].startswith("-") or sys.argv[1] == "--help")
    app(sys.argv[1:] if named else ["demo", *sys.argv[1:]])
