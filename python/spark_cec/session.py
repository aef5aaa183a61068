"""How a Spark session comes to use CEC: `spark_cec.configure(SparkSession.builder).getOrCreate()`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from spark_cec.build import build
from spark_cec.settings import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
PROVIDER = "org.apache.spark.sql.cec.CecStateStoreProvider"
PYTHON_KEY = PREFIX + "python"
JARS_KEY = "spark.jars"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the jar, the state store provider and the agent's Python to `builder`; returns the same builder.

    Call it before the first session of the process: a JVM that runs already takes no more jars on its class path. Under
    `spark-submit` it does run already, so give the jar there (`--jars`, see `jar_path`). Jars that the
    builder names stay; `spark.jars` of a `spark-defaults.conf` is not seen here and must be repeated in the builder.

    Raises `BuildError` if there is no jar and none can be built.
    """
    jars = [jar.strip() for jar in str(_option(builder, JARS_KEY) or "").split(",") if jar.strip()]
    ours = jar_path()
    if ours not in jars:
        jars.append(ours)
    return (
        builder.config(JARS_KEY, ",".join(jars))
        .config(PROVIDER_KEY, PROVIDER)
        .config(PYTHON_KEY, sys.executable)
    )  # fmt: skip


def _option(builder: SparkSession.Builder, key: str) -> object:
    """What `builder` was given for `key`: its options have no public reader."""
    return builder._options.get(key)


def jar_path() -> str:
    """Absolute path of the shim's jar; in a source checkout it is built first if it is missing or stale.

    Raises `BuildError` if there is no jar and none can be built.
    """
    return str(build(quiet=True))
