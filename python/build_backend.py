"""PEP 517 backend: hatchling, with the shim's jar built before a wheel is packed.

An editable install leaves the jar to `python -m spark_cec.build`, and so needs no Spark in its build environment.
`--config-settings spark=4.2` builds the jar for another minor release of Spark than the newest one that is supported.
Jars of the same sources that are there already, for other releases, go along.
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
from spark_cec.toolchain import SPARKS

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """hatchling's requirements, and Spark: it brings the Scala compiler, and the classes to compile against."""
    wanted = (config_settings or {}).get("spark", SPARKS[-1])
    if wanted not in SPARKS:
        raise SystemExit(f"--config-settings spark={wanted}: give one of {', '.join(SPARKS)}")
    return [*hatch.get_requires_for_build_wheel(config_settings), f"pyspark=={wanted}.*"]


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, object] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the jar, then the wheel that carries it; returns the wheel's file name."""
    build()
    name: str = hatch.build_wheel(wheel_directory, config_settings, metadata_directory)
    return name
