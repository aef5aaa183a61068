"""How a Spark session comes to use CEC: `spark_cec.configure(SparkSession.builder).getOrCreate()`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from spark_cec.build import build
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_KEY = PREFIX + "python"
DRIVER_PYTHON_KEY = PREFIX + "driver.python"
SPARK_PYTHON_KEY = "spark.pyspark.python"
SPARK_PYTHON_VARIABLE = "PYSPARK_PYTHON"
JARS_KEY = "spark.jars"
MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
MANAGER = "org.apache.spark.sql.cec.CecCheckpointFileManager"


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the jar, the state store provider and the agents' Pythons to `builder`; returns the same builder.

    A checkpoint file manager that the builder names stays. Without one, the builder gets ours, which spares requests
    on object stores and processes on local disks. All else it leaves to Spark's.

    The driver's agent runs in this Python. Those of the executors run in the Python that executors were given:
    `cec.python` or `spark.pyspark.python` of the builder, else `PYSPARK_PYTHON`, and only if none of these says
    anything in this one. It may be a path in an archive that executors unpack, such as `./environment/bin/python`.

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
        .config(MANAGER_KEY, str(_option(builder, MANAGER_KEY) or MANAGER))
        .config(PYTHON_KEY, _python_of_executors(builder))
        .config(DRIVER_PYTHON_KEY, str(_option(builder, DRIVER_PYTHON_KEY) or sys.executable))
    )


def _python_of_executors(builder: SparkSession.Builder) -> str:
    """In Spark's order: its conf counts before its environment variable."""
    said = (_option(builder, PYTHON_KEY), _option(builder, SPARK_PYTHON_KEY), os.environ.get(SPARK_PYTHON_VARIABLE))
    return next((str(python) for python in said if python), sys.executable)


def _option(builder: SparkSession.Builder, key: str) -> object:
    """What `builder` was given for `key`: its options have no public reader."""
    return builder._options.get(key)


def jar_path() -> str:
    """Absolute path of the shim's jar; in a source checkout it is built first if it is missing or stale.

    Raises `BuildError` if there is no jar and none can be built.
    """
    return str(build(quiet=True))
