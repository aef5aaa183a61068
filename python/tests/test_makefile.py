"""`make` on a machine that lacks something: one line that says what, before anything is installed."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD_JAVA = "echo 'openjdk version \"17.0.15\"' >&2"

OLD_PYTHON = f"exec {sys.executable} -c 'import sys; sys.version_info = (3, 10, 13); exec(sys.argv[1])' \"$2\""


class Machine:
    """A fresh checkout, and a search path of its own with a shell, make, and what a test adds."""

    def __init__(self, root: Path) -> None:
        self.checkout, self.bin = root / "checkout", root / "bin"
        self.checkout.mkdir()
        self.bin.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.checkout)
        (self.checkout / "python").symlink_to(ROOT / "python")
        for name in ("sh", "make", "sed"):
            (self.bin / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))

    def command(self, name: str, script: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "make"), "-C", str(self.checkout), "--no-print-directory", *arguments],
            env={"PATH": str(self.bin)}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def complaint(self, *arguments: str) -> str:
        """The one line that make prints before it gives up, having made nothing."""
        done = self.make(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        said, gave_up = done.stderr.splitlines()
        assert gave_up.startswith("make: ***")
        assert not (self.checkout / ".venv").exists()
        return said


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_help_is_the_default_and_needs_nothing(machine: Machine) -> None:
    done = machine.make()
    assert done.stdout == machine.make("help").stdout
    named = [line.split()[1] for line in done.stdout.splitlines()]
    assert {"help", "demo", "test", "lint", "bench", "jar", "clean"} <= set(named)


@pytest.mark.parametrize("target", ["demo", "test", "bench"])
def test_no_python(machine: Machine, target: str) -> None:
    assert machine.complaint(target).startswith("no Python 3.11 or newer (pyspark 4.3 needs that): install it")


def test_an_old_python_is_no_python(machine: Machine) -> None:
    machine.command("python3", OLD_PYTHON)
    machine.command("python3.10", f'exec {sys.executable} "$@"')
    assert "no Python 3.11 or newer" in machine.complaint("test")
    assert "no Python 3.11 or newer" in machine.complaint("test", "PYTHON=python3")


def test_the_newest_python_is_found_beside_an_old_one(machine: Machine) -> None:
    machine.command("python3", OLD_PYTHON)
    machine.command("python3.12", f'exec {sys.executable} "$@"')
    assert machine.complaint("test").startswith("no `java`")


def test_a_python_without_venv(machine: Machine) -> None:
    machine.command("python3", f'case "$2" in *venv*) exit 1;; esac; exec {sys.executable} "$@"')
    assert machine.complaint("test").startswith("python3 cannot make virtual environments: install its venv module")


def test_no_java(machine: Machine) -> None:
    machine.command("python3", f'exec {sys.executable} "$@"')
    assert machine.complaint("demo").startswith("no `java` on the search path: install a JDK 17 or newer")


def test_an_old_java(machine: Machine) -> None:
    machine.command("python3", f'exec {sys.executable} "$@"')
    machine.command("java", "echo 'java version \"1.8.0_392\"' >&2")
    assert "is Java 8: " in machine.complaint("demo")


def test_a_complete_machine_goes_on_to_the_set_up(machine: Machine) -> None:
    machine.command("python3", f'test "$2" = venv && exit 7; exec {sys.executable} "$@"')
    machine.command("java", GOOD_JAVA)
    done = machine.make("test")
    assert done.stdout.startswith("setting up .venv")
    assert "Error 7" in done.stderr


PARTS = tuple(range(1, 7))


def test_continuous_integration_runs_make_test_and_one_part_of_the_rest(tmp_path: Path) -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    copy = tmp_path / ".ci" / "run"
    copy.parent.mkdir()
    shutil.copy(script, copy)
    (tmp_path / "bin").mkdir()
    seen = set[str]()
    for commit in (*(f"000000{number}" for number in range(6)), "fffffff"):
        for name, says in (("make", 'echo "make $*"'), ("git", f"echo {commit}")):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{says}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run([copy], env={"PATH": path}, capture_output=True, text=True, check=True)
        first, second = done.stdout.splitlines()
        assert first == "make test"
        seen.add(second)
    assert seen == {f"make test-more PART={part}" for part in PARTS}


def test_each_file_of_the_parts_is_there_and_in_one_part() -> None:
    parts = runpy.run_path(str(ROOT / "integration-tests" / "cec_it" / "long_tests.py"))["_PARTS"]
    assert len(parts) == len(PARTS)
    entries = [entry for part in parts for entry in part]
    assert len(entries) == len(set(entries))
    for entry in entries:
        assert (ROOT / "integration-tests" / entry.split(" ")[0]).is_file(), entry
