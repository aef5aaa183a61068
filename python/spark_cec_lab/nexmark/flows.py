"""CheckMate's four NexMark queries as pipelines: sources, and the query in as many instances as are wanted.

Source: Siachamis et al. (ICDE 2024), section VI. Its windows run: a row is given as soon as it is known, and a window
is only tidied away when it is over. They are of event time here, so that a replay gives the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.runnable import Pipeline
from spark_cec_lab.nexmark.events import Nexmark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELAY = "1 second"
_WINDOW = "10 seconds"


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """`key`: by which column of each stream that it reads instances share it out. `mode`: Spark's output mode."""

    name: str
    key: Mapping[str, str]
    mode: str
    made: Callable[..., DataFrame]


def _euros(bid: DataFrame) -> DataFrame:
    return bid.selectExpr("auction", "bidder", "CAST(price AS DECIMAL(18, 0)) * 0.908 AS euros", "date_time")


def _local_items(auction: DataFrame, person: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    persons = person.where("state IN ('OR', 'ID', 'CA')").alias("p")
    joined = auction.where("category = 10").alias("a").join(persons, f.expr("a.seller = p.id"))
    return joined.selectExpr("p.name", "p.city", "p.state", "a.id")


def _new_sellers(auction: DataFrame, person: DataFrame) -> DataFrame:
    """A row for each auction of a person who is new in the window of both."""
    from pyspark.sql import functions as f

    def in_windows(rows: DataFrame) -> DataFrame:
        return rows.withColumn("w", f.window("date_time", _WINDOW))

    same = f.expr("a.seller = p.id AND a.w = p.w")
    joined = in_windows(auction).alias("a").join(in_windows(person).alias("p"), same)
    return joined.selectExpr("p.id", "p.name", "a.id AS auction", "unix_millis(p.w.end) AS until")


def _bids_of_bidders(bid: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    counted = bid.groupBy("bidder", f.window("date_time", _WINDOW)).agg(f.count("*").alias("bids"))
    return counted.selectExpr("bidder", "bids", "unix_millis(window.end) AS until")


_OF_SELLERS = {"auction": "seller", "person": "id"}

FLOW_QUERIES = {
    query.name: query
    for query in (
        FlowQuery("q1", {"bid": "auction"}, "append", _euros),
        FlowQuery("q3", _OF_SELLERS, "append", _local_items),
        FlowQuery("q8", _OF_SELLERS, "append", _new_sellers),
        FlowQuery("q12", {"bid": "bidder"}, "update", _bids_of_bidders),
    )
}


Numbers = Callable[["SparkSession", str], "DataFrame"]
"""A stream of event numbers, column `n`, for a view, which takes those that are its own."""


def nexmark_pipeline(
    query: FlowQuery, home: str, streams: Nexmark, numbers: Numbers, instances: int = 1, partitions: int = 2, **how: Any
) -> Pipeline:
    """The streams that the query reads, each a flow of the name of its view, and the query, a flow of its own name.

    The channel of the query is kept, and has no sink. `partitions` are those of its state; `how` it is checkpointed.
    """
    made = Pipeline(f"nexmark-{query.name}", home, **how)
    for view in query.key:
        made.flow(name=view)(_source(streams, view, numbers))

    declare = made.flow(
        name=query.name, instances=instances, key=query.key if instances > 1 else None, kept=True,
        output_mode=query.mode, partitions=partitions,
        watermarks=dict.fromkeys(query.key, ("date_time", _DELAY)),
    )  # fmt: skip
    declare(query.made)
    return made


def _source(streams: Nexmark, view: str, numbers: Numbers) -> Callable[[SparkSession], DataFrame]:
    which, columns = streams.columns()[view]

    def of(spark: SparkSession) -> DataFrame:
        rows = numbers(spark, view).where(which)
        return rows.selectExpr(*(f"{sql} AS {column}" for column, sql in columns.items()))

    return of
