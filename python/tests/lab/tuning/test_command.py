"""`cec tune paper`: the table, the figures, and a directory that cannot be made."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from spark_cec.tuning.command import tune_app
from spark_cec_lab.tuning.command import register
from spark_cec_lab.tuning.paper_plots import FIGURES, draw_paper_figures

PNG = b"\x89PNG\r\n\x1a\n"


def paper(*arguments: str) -> Result:
    app = tune_app()
    register(app)
    return CliRunner().invoke(app, ["paper", *arguments])


def test_the_paper_table_shows_what_differs() -> None:
    result = paper()
    assert result.exit_code == 0, result.output
    assert result.output.rstrip().splitlines()[-1] == "DIFFERS: 2  not at hand: 6  same: 7  solved: 17"
    (line,) = [line for line in result.output.splitlines() if line.startswith("λ=0.135/h")]
    assert line.split() == ["λ=0.135/h", "gain", "%,", "30", "min", "1.73", "1.74", "DIFFERS", "6"]
    assert max(len(line) for line in result.output.splitlines() if line.startswith(("Table", "λ", "and"))) <= 80


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = paper("--figures", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"cec tune: {tmp_path / 'file'}: ")
    assert result.stderr.count("\n") == 1


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    written = draw_paper_figures(tmp_path / "figures")
    assert list(FIGURES) == [4, 5, 10, 11, 12, 13, 14, 15, 16]
    assert [path.name for path in written] == [f"tuning-fig{number:02d}.png" for number in FIGURES]
    for path in written:
        data = path.read_bytes()
        assert data.startswith(PNG)
        assert 10_000 < len(data) < 80_000
