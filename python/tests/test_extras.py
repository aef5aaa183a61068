"""An agent runs on the core alone; what needs more says which extra brings it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from spark_cec.extras import EXTRAS, ExtraMissing, need, needed_by

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = [package for packages in EXTRAS.values() for package in packages]


def without(code: str, *missing: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python in which some packages are not installed."""
    hide = f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    command = [sys.executable, "-c", hide + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_an_agent_needs_the_core_alone() -> None:
    ran = without("import spark_cec, spark_cec.agent.__main__, spark_cec.agent.calls, spark_cec.session", *OPTIONAL)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("code", "missing", "extra"),
    [
        ("from spark_cec.cli import main; main()", "typer", "cli"),
        ("sys.argv = ['cec', 'tune', 'paper']\nfrom spark_cec.cli import main; main()", "scipy", "tune"),
        ("sys.argv = ['cec', 'pipeline', 'run']\nfrom spark_cec.cli import main; main()", "networkx", "pipeline"),
        ("sys.argv = ['cec', 'bench']\nfrom spark_cec.cli import main; main()", "pyspark", "spark"),
    ],
)
def test_what_needs_more_says_which_extra(code: str, missing: str, extra: str) -> None:
    ran = without(code, missing)
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert f"needs {missing}, which is not installed here: pip install 'spark-cec[{extra}]'" in line


@pytest.mark.parametrize("command", [("bench",), ("bench", "slow"), ("tune", "paper"), ("pipeline", "simulate")])
def test_a_wheel_says_that_the_lab_is_in_a_checkout(command: tuple[str, ...]) -> None:
    ran = without(f"sys.argv = ['cec', *{command!r}]\nfrom spark_cec.cli import main; main()", "spark_cec_lab")
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("cec ") and "run it in a checkout of Spark CEC" in line


def test_help_without_the_lab_lists_the_product_alone() -> None:
    ran = without("sys.argv = ['cec', '--help']\nfrom spark_cec.cli import main; main()", "spark_cec_lab")
    assert ran.returncode == 0, ran.stderr
    assert "\n  pipeline " in ran.stdout and "\n  bench " not in ran.stdout


def test_autotune_says_which_extra() -> None:
    ran = without("from spark_cec.checkpoint.recovery_target import load_tuning; load_tuning()", "scipy")
    assert "cec.autotune=on needs scipy" in ran.stderr.splitlines()[-1]


def test_a_module_of_our_own_that_is_missing_is_no_extra() -> None:
    with pytest.raises(ModuleNotFoundError), needed_by("this"):
        raise ModuleNotFoundError("No module named 'spark_cec.nonsense'", name="spark_cec.nonsense")
    with pytest.raises(ExtraMissing, match=r"this needs scipy.*\[tune\]"), needed_by("this"):
        raise ModuleNotFoundError("No module named 'scipy.special'", name="scipy.special")
    need("this", "cli")


def test_the_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        names = {re.split(r"[\[>=<]", requirement)[0].replace("-", "_") for requirement in extras[extra]}
        assert set(packages) == names - {"spark_cec"}
