"""What Spark CEC decides for a query when it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from cec_it import feeds, local

Frame = Callable[[SparkSession, Path], DataFrame]


def events(spark: SparkSession, root: Path) -> DataFrame:
    """The left side of a feed of files that has none."""
    return feeds.read_files(spark, root / "events", "left")


def decide(spark: SparkSession, root: Path, frame: Frame, mode: str, settings: Mapping[str, str]) -> dict[str, object]:
    """Start the query, stop it, and see what was decided."""
    own = local.session(spark, settings)
    for side in feeds.SALTS:
        (root / "events" / side).mkdir(parents=True, exist_ok=True)
    checkpoint = root / "checkpoint"
    writer = frame(own, root).writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).format("noop")
    writer.start().stop()
    return local.query_json(checkpoint)
