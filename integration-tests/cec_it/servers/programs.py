"""Programs of servers that no package of Python brings: built or fetched once, in a version that is pinned.

They are kept below `$SPARK_CEC_CACHE`, beside the jars of `cec_it.maven`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cec_it.maven import cache_directory

_TIMEOUT_S = 1200


class Unavailable(Exception):
    """A server cannot be had on this machine: the message says why."""


def go_program(module: str, version: str) -> Path:
    """The program of a Go module, built by `go install`. `module` may name a package below the module."""
    name = module.rpartition("/")[2]
    place = _directory(name, version) / name
    if not place.is_file():
        with _scratch() as scratch:
            _run("go", ["install", f"{module}@{version}"], {"GOBIN": scratch})
            _keep(Path(scratch), place.parent)
    return place


def npm_script(package: str, version: str, script: str) -> Path:
    """A script of a package of npm; `script` is its path within the package."""
    root = _directory(package, version)
    place = root / "node_modules" / package / script
    if not place.is_file():
        with _scratch() as scratch:
            _run("npm", ["install", "--no-audit", "--no-fund", "--prefix", scratch, f"{package}@{version}"], {})
            _keep(Path(scratch), root)
    return place


def find_command(name: str) -> str:
    """The path of a command. Raises `Unavailable` if this machine does not have it."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"no `{name}` on the search path")
    return found


def _directory(name: str, version: str) -> Path:
    return cache_directory().parent / "servers" / f"{name}-{version}"


def _scratch() -> tempfile.TemporaryDirectory[str]:
    parent = cache_directory().parent / "servers"
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix=".build-", dir=parent, ignore_cleanup_errors=True)


def _keep(built: Path, place: Path) -> None:
    """Moves the built server to its place in one step. Another process may have been faster."""
    if not place.exists():
        built.rename(place)


def _run(command: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    program = find_command(command)
    try:
        done = subprocess.run(
            [program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S,
            env={**os.environ, **environment}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{command}` was not done after {_TIMEOUT_S} s") from None
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
        raise Unavailable(f"`{command} {' '.join(arguments)}` failed: {last[:300]}")
