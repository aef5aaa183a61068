"""Spark's Kafka connector in a session: a JVM takes its jars at its start only."""

from __future__ import annotations

from pyspark.sql import SparkSession

import spark_cec
from testbed.jars import CONNECTOR, jars


def with_connector(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add the connector's jars to a builder, beside the shim's; returns the same builder."""
    return spark_cec.configure(builder.config("spark.jars", ",".join(map(str, jars(CONNECTOR)))))
