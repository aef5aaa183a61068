"""Adds the commands of other packages to `cec`, by entry points of the group `spark_cec.commands`.

An entry point's name is the command's: `pipeline` is `cec pipeline`, `tune.paper` is `cec tune paper`. Its object is a
function that takes the application and adds the command.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, NoReturn

import typer

from spark_cec.cli.failures import ExitCode

GROUP = "spark_cec.commands"
HELP_OPTIONS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
HANDED_OVER: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
}
"""Options of a command that hands all its arguments to another application, whose libraries load slowly."""


def add_commands(app: typer.Typer, parent: str = "") -> None:
    """Adds the commands below `parent` to `app`: the commands of `cec` itself, or of its command `parent`.

    If an entry point's package is not installed, its command is hidden, and names the package to install.
    """
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        above, _, name = point.name.rpartition(".")
        if above != parent:
            continue
        if find_spec(_find_package(point)) is None:
            app.command(name, hidden=True, **HANDED_OVER)(_make_refuser(point))
        else:
            point.load()(app)


def hand_over(to: typer.Typer, context: typer.Context) -> NoReturn:
    """Runs another application with the arguments of `context`, and exits with its code."""
    command = typer.main.get_command(to)
    code = command.main(args=context.args, prog_name=f"cec {context.info_name}", standalone_mode=False, **HELP_OPTIONS)
    raise typer.Exit(code if isinstance(code, int) else ExitCode.OK)


def _find_package(point: EntryPoint) -> str:
    return point.module.partition(".")[0]


def _make_refuser(point: EntryPoint) -> Callable[[], None]:
    command = f"cec {point.name.replace('.', ' ')}"
    mend = f"run it in a checkout of Spark CEC, where `make jar` installs {_find_package(point)}"

    def refuse() -> None:
        """Name the package that has the command."""
        print(f"{command}: only a checkout has this command: {mend}", file=sys.stderr)
        raise typer.Exit(ExitCode.UNREADABLE)

    return refuse
