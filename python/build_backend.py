"""PEP 517 backend: hatchling, with the shim's jar built before a wheel is packed.

An editable install leaves the jar to `python -m spark_cec.build`, and so needs no Spark in its build environment.
"""

from __future__ import annotations

from hatchling import build as hatch
from hatchling.build import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)

from spark_cec.build import build

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

SPARK = "pyspark>=4.3,<4.4"
"""What brings the Scala compiler and the classes that the shim is compiled against."""


def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """hatchling's requirements and Spark."""
    return [*hatch.get_requires_for_build_wheel(config_settings), SPARK]


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the jar, then the wheel that carries it; returns the wheel's file name."""
    build()
    name: str = hatch.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name
