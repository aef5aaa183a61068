"""The topology of Su and Zhou's experiment (their Fig. 4): one source, one parser, four windows, fifteen sinks.

A number of tweets comes every second, each with two tags; a window counts tags; a sink reads the windows that it
subscribes to. What their operators do with a processor, ours do by waiting (`Work`): a machine with fewer cores than
the cluster has workers could not do it otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.runnable import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WORK = "work"
WORK_CLASS = "org.apache.spark.sql.cec.bench.Work"
TAGS = 40
WINDOWS: Mapping[str, tuple[int, int]] = {"o1": (20, 10), "o2": (40, 20), "o3": (60, 30), "o4": (80, 40)}
"""Length and slide of each window, in seconds."""

SUBSCRIBED: tuple[tuple[str, ...], ...] = (
    *(("o1",), ("o2",), ("o3",), ("o4",)),
    *(("o1", "o2"), ("o1", "o3"), ("o2", "o3"), ("o2", "o4"), ("o3", "o4"), ("o1", "o4")),
    *(("o1", "o2", "o3"), ("o2", "o3", "o4"), ("o1", "o3", "o4"), ("o1", "o2", "o4")),
    ("o1", "o2", "o3", "o4"),
)
"""The windows behind each of the fifteen queries."""


@dataclass(frozen=True, slots=True)
class Load:
    """Tweets a second, seconds between batches, and microseconds of work for a row, by kind of flow."""

    tweets: int = 50
    trigger_s: float = 10.0
    parser_us: int = 3_000
    window_us: int = 4_500
    sink_us: int = 11_000


def topology(home: str, load: Load) -> Pipeline:
    """The pipeline. Sinks observe `latency`: the mean of when their rows came into being, in ms, and how many."""
    from pyspark.sql import functions as F  # noqa: N812

    made = Pipeline("tags", home)
    trigger = {"processingTime": f"{load.trigger_s} seconds"}
    reads = {"maxBatchesPerTrigger": "8"}  # a row is a millisecond's work here

    @made.flow(trigger=trigger)
    def source(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.format("rate").option("rowsPerSecond", str(load.tweets)).option("numPartitions", "1")
        return stream.load().select("value", F.col("timestamp").alias("created"))

    @made.flow(trigger=trigger, reads=reads)
    def parser(source: DataFrame) -> DataFrame:
        parsed = source.withColumn("value", F.call_udf(WORK, "value", F.lit(load.parser_us)))
        tags = F.array(*[F.pmod(F.xxhash64("value", F.lit(n)), F.lit(TAGS)) for n in (1, 2)])
        return parsed.select(F.explode(tags).alias("tag"), "created")

    for name, (length, slide) in WINDOWS.items():
        flow = made.flow(name=name, trigger=trigger, output_mode="update", partitions=2, reads=reads)
        flow(_window(length, slide, load))
    for number, windows in enumerate(SUBSCRIBED):
        priority = float(1 + number % 3)
        made.sink(name=f"q{number + 1}", priority=priority, trigger=trigger, reads=reads)(_reader(windows, load))
    return made


def _window(length: int, slide: int, load: Load) -> Callable[..., DataFrame]:
    def counts(parser: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        late = parser.withColumn("tag", F.call_udf(WORK, "tag", F.lit(load.window_us)))
        window = F.window("created", f"{length} seconds", f"{slide} seconds").alias("window")
        grouped = late.withWatermark("created", "10 seconds").groupBy(window, "tag")
        counted = grouped.agg(F.count("*").alias("n"), F.max("created").alias("created"))
        return counted.select("tag", "n", "created")

    return counts


def name_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, with parameters of these names: a pipeline learns from them which flows it reads."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return function


def _reader(windows: tuple[str, ...], load: Load) -> Callable[..., DataStreamWriter]:
    def read(*frames: DataFrame) -> DataStreamWriter:
        from pyspark.sql import functions as F  # noqa: N812

        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.unionByName(frame)
        worked = rows.withColumn("n", F.call_udf(WORK, "n", F.lit(load.sink_us)))
        created = F.avg(F.unix_millis("created")).alias("created")
        return worked.observe("latency", created, F.count("*").alias("rows")).writeStream.format("noop")

    return name_parameters(read, windows)
