"""docs/tuning.md shows what the commands print, and pictures that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_cec.tuning.command import tune_app
from spark_cec_lab.tuning.command import register

PAGE = Path(__file__).parents[4] / "docs" / "tuning.md"
TEXT = PAGE.read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n\$ cec tune ([^\n]*)\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("arguments", "shown"), CONSOLE)
def test_a_console_block_is_what_the_command_prints(arguments: str, shown: str) -> None:
    app = tune_app()
    register(app)
    result = CliRunner().invoke(app, shlex.split(arguments))
    assert result.exit_code == 0, result.output
    printed = "\n".join(line.rstrip() for line in result.output.splitlines())
    for part in shown.split("...\n"):
        assert part.rstrip("\n") in printed


def test_the_page_has_its_two_examples() -> None:
    assert [arguments.split()[0] for arguments, _ in CONSOLE] == ["--failure-rate", "paper"]


def test_every_figure_is_shown() -> None:
    shown = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", TEXT)
    figures = [picture for picture in shown if picture.startswith("images/tuning-")]
    assert sorted(figures) == [f"images/tuning-fig{number:02d}.png" for number in (4, 5, 10, 11, 12, 13, 14, 15, 16)]
