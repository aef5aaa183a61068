"""The workloads of docs/benchmarks.md: what they feed, and how many batches they need to be in their steady state.

The source is Spark's `rate-micro-batch`: batch b has the values b·updates up to (b+1)·updates and the event time of b
seconds, on every run and after every restart. All that looks random is a hash of the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from spark_cec.operators import count_window
from spark_cec_lab.nexmark.events import Nexmark
from spark_cec_lab.nexmark.queries import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SEED = 20110627
NEXMARK_FILL = 4
"""Batches until windows of NexMark close as others open: each batch has twenty seconds of events, and most windows ten.
"""

OPENINGS_PER_THOUSAND = 1
"""Slow windows: updates in a thousand that open a window."""


class Shape(str, Enum):
    """`uniform`: updates spread evenly over all windows. `slow`: few openings, many updates. `fast`: each tuple
    opens a window, and one closes for it. `count`: windows of so many tuples for each key, as in the paper. `nexmark`:
    a query of that benchmark.
    """

    UNIFORM = "uniform"
    SLOW = "slow"
    FAST = "fast"
    COUNT = "count"
    NEXMARK = "nexmark"


@dataclass(frozen=True, slots=True)
class Size:
    """Another size than a workload has; None: the workload's."""

    keys: int | None = None
    updates: int | None = None
    partitions: int | None = None

    def of(self, workload: Workload) -> Workload:
        """The workload in this size; windows of tuples stay as long as they are."""
        return replace(
            workload,
            keys=self.keys or workload.keys,
            updates=self.updates or workload.updates,
            partitions=self.partitions or workload.partitions,
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """`keys` open windows, `updates` input tuples a batch, `partitions` of the state.

    `window`: tuples in a window, where that is what closes it. `seed` of all that looks random. `value_bytes`: of text
    in each value, besides its count and sum. `nexmark`: the name of a query, whose input is `updates` events a batch,
    and which opens as many windows as it does (`keys` is 0).
    """

    shape: Shape
    keys: int
    updates: int
    partitions: int = 2
    window: int = 0
    seed: int = SEED
    value_bytes: int = 0
    nexmark: str = ""

    @property
    def delay_s(self) -> int:
        """Fast windows: the watermark's delay that keeps about `keys` windows open, in seconds, one per batch.

        A window of batch b expires at b + delay, and batch n has the watermark n - 1 - delay: 2 * delay + 1 batches are
        open.
        """
        return max(1, round((self.keys / self.updates - 1) / 2))

    @property
    def fill_batches(self) -> int:
        """Batches until all windows are open (fast windows: until as many close as open)."""
        if self.shape is Shape.NEXMARK:
            return NEXMARK_FILL
        if self.shape is Shape.FAST:
            return 2 * self.delay_s + 2
        if self.shape is Shape.COUNT:
            return math.ceil(self.keys * self.window / self.updates)
        return math.ceil(self.keys / self.updates)

    def expected_rows(self) -> int | None:
        """State rows after the fill; None where openings go on."""
        return self.keys if self.shape is Shape.UNIFORM else None


DEFAULTS = {
    Shape.UNIFORM: Workload(Shape.UNIFORM, keys=2_000_000, updates=300_000),
    Shape.SLOW: Workload(Shape.SLOW, keys=200_000, updates=300_000),
    Shape.FAST: Workload(Shape.FAST, keys=900_000, updates=300_000),
    Shape.NEXMARK: Workload(Shape.NEXMARK, keys=0, updates=200_000),
}
"""The sizes that docs/benchmarks.md shows."""

MANY_STORES = Workload(Shape.UNIFORM, keys=200_000, updates=20_000, partitions=200)
"""Two hundred stores of a thousand windows, a hundred updates each."""


def output_mode(workload: Workload) -> str:
    """The output mode that the query is written for."""
    if workload.shape is Shape.NEXMARK:
        return QUERIES[workload.nexmark].mode
    return "append" if workload.shape in (Shape.FAST, Shape.COUNT) else "update"


def query(spark: SparkSession, workload: Workload, *, stateless: bool = False) -> DataFrame:
    """The streaming query: count and sum per key; deduplication within the watermark for fast windows; the average of
    a count window, and, observed as `windows`, over how many batches the windows that close have been open.

    `stateless`: instead of count and sum, the rows themselves, shuffled by key.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if workload.shape is Shape.NEXMARK:
        streams = Nexmark(seed=workload.seed)
        views = streams.views(streams.stream(spark, workload.updates))
        return QUERIES[workload.nexmark].over(spark, views, streams.longest_auction_ms)
    source = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", workload.updates)
        .option("numPartitions", 2)
        .option("startTimestamp", 0)
        .load()
    )
    if workload.shape is Shape.FAST:
        return source.withWatermark("timestamp", f"{workload.delay_s} seconds").dropDuplicatesWithinWatermark(["value"])
    if workload.shape is Shape.COUNT:
        batch = F.floor(F.col("value") / workload.updates).alias("batch")
        item = F.pmod(F.xxhash64("value", F.lit(workload.seed)), F.lit(workload.keys)).alias("item")
        tuples = source.select(item, (F.col("value") % 1000).alias("price"), batch)
        columns = [F.avg("price").alias("mean"), (F.max("batch") - F.min("batch")).alias("batches")]
        closed = count_window(tuples, "item", workload.window, columns)
        return closed.observe("windows", F.avg("batches").alias("lifetime"))
    rows = source.select(_key(workload).alias("key"), (F.col("value") % 1000).alias("amount"))
    if stateless:
        return rows.repartition(workload.partitions, "key")
    results = [F.count("*").alias("n"), F.sum("amount").alias("total")]
    if workload.value_bytes:
        # Of the amount, so that it changes now and then, as text that is kept does.
        text = F.rpad(F.xxhash64("amount", "key").cast("string"), workload.value_bytes, "spark cec ")
        results.append(F.max(text).alias("text"))
    return rows.groupBy("key").agg(*results)


def _key(workload: Workload) -> Column:
    """The first `keys` values open a window each; later ones hit the open windows evenly."""
    from pyspark.sql import functions as F  # noqa: N812

    value = F.col("value")
    key = F.when(value < workload.keys, value)
    if workload.shape is Shape.SLOW:
        opens = F.pmod(F.xxhash64(value, F.lit(workload.seed + 1)), F.lit(1000)) < OPENINGS_PER_THOUSAND
        key = key.when(opens, value)
    return key.otherwise(F.pmod(F.xxhash64(value, F.lit(workload.seed)), F.lit(workload.keys)))
