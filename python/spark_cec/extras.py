"""The optional parts of the package, and what each brings: an agent runs without any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from spark_cec.errors import CecError

EXTRAS = {
    "cli": ("typer", "rich"),
    "tune": ("scipy", "matplotlib", "plotext"),
    "spark": ("pyspark",),
    "pipeline": ("networkx",),
    "s3": ("s3fs",),
    "gs": ("gcsfs",),
    "azure": ("adlfs",),
    "hdfs": ("hdfs_native",),
}
"""Extra to the packages that it brings, as they are imported."""


class ExtraMissing(CecError):
    """A part that was not installed is needed; the message says which and how to get it."""

    def __init__(self, what: str, package: str) -> None:
        extra = next((name for name, packages in EXTRAS.items() if package in packages), "all")
        super().__init__(f"{what} needs {package}, which is not installed here: pip install 'spark-cec[{extra}]'")


def need(what: str, extra: str) -> None:
    """Raises `ExtraMissing` if a package of `extra`, which `what` needs, is not there; imports none."""
    for package in EXTRAS[extra]:
        if find_spec(package) is None:
            raise ExtraMissing(what, package)


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Turns an import that fails for want of an extra into `ExtraMissing`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not any(package in packages for packages in EXTRAS.values()):
            raise
        raise ExtraMissing(what, package) from error
