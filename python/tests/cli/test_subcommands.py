"""Commands that packages add to `cec` by entry points: which there are, where they stand, and one that is not there."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
import tomllib
import typer

from spark_cec.cli import subcommands
from spark_cec.cli.subcommands import GROUP, add_commands
from tests.cli.support import run

ROOT = Path(__file__).resolve().parents[3]
BENCH = EntryPoint("bench", "spark_cec_lab.commands:register_bench", GROUP)
PAPER = EntryPoint("tune.paper", "spark_cec_lab.tuning.command:register", GROUP)


def commands_of(monkeypatch: pytest.MonkeyPatch, parent: str, *points: EntryPoint) -> dict[str, bool]:
    """The names that `add_commands` gives an application, and whether each is hidden."""
    monkeypatch.setattr(subcommands, "entry_points", lambda group: points if group == GROUP else ())
    app = typer.Typer()
    add_commands(app, parent)
    return {str(each.name or getattr(each.callback, "__name__", "")): each.hidden for each in app.registered_commands}


def test_the_installed_entry_points_are_those_of_the_checkout() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    assert installed == project["entry-points"][GROUP], "pyproject.toml has changed since: run `make jar`"


def test_a_command_stands_below_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands_of(monkeypatch, "", BENCH, PAPER) == {"bench": False}
    assert commands_of(monkeypatch, "tune", BENCH, PAPER) == {"paper": False}
    assert commands_of(monkeypatch, "pipeline", BENCH, PAPER) == {}


def test_a_command_whose_package_is_missing_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_cec_lab", None)
    assert commands_of(monkeypatch, "", BENCH, PAPER) == {"bench": True}
    assert commands_of(monkeypatch, "tune", BENCH, PAPER) == {"paper": True}


@pytest.mark.parametrize("arguments", [("tune", "paper", "--figures", "x"), ("pipeline", "simulate", "-h")])
def test_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setitem(sys.modules, "spark_cec_lab", None)
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"cec {' '.join(arguments[:2])}: only a checkout has this command: run it in a checkout of Spark CEC, where "
        f"`make jar` installs spark_cec_lab\n"
    )
