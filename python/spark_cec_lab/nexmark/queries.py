"""The NexMark queries that Spark can express as one streaming query each; their texts are in `sql/`.

Not here are Q6 and Q19, which rank rows outside windows, Q10, which is about a sink, Q13, which joins a table that
stays as it is, and Q16, which counts distinct values. Q4, Q5 and Q9 give what they give as windows close, since several
stateful operators in one query want Spark's append mode; Q11 has shorter sessions, so that some end; Q12 has windows of
event time, which come again in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Gives(str, Enum):
    """When a query gives its rows: each `at_once` for rows it is made of, as a window of time `closes`, or `anew` at
    each batch that changes it.
    """

    AT_ONCE = "at once"
    CLOSED = "closed"
    ANEW = "anew"


@dataclass(frozen=True, slots=True)
class Query:
    """`keys`: the columns of which the newest row counts, where rows are given anew.

    Rows of windows have a column `until`, the window's end, ms since the epoch. `is_stateful`: whether a store keeps
    anything.
    """

    name: str
    title: str
    gives: Gives = Gives.AT_ONCE
    keys: tuple[str, ...] = ()
    is_stateful: bool = True

    @property
    def mode(self) -> str:
        """Spark's output mode."""
        return "update" if self.gives is Gives.ANEW else "append"

    @property
    def text(self) -> str:
        """Its SQL, over {person}, {auction} and {bid}."""
        return files(__package__).joinpath("sql", f"{self.name}.sql").read_text()

    def over(self, spark: SparkSession, views: dict[str, DataFrame], longest_auction_ms: int) -> DataFrame:
        """The query over these three views, whose auctions last no longer than that."""
        given: dict[str, Any] = {**views, "longest_ms": longest_auction_ms}
        return spark.sql(self.text, **{name: what for name, what in given.items() if f"{{{name}}}" in self.text})


QUERIES = {
    query.name: query
    for query in (
        Query("q0", "bids as they come", is_stateful=False),
        Query("q1", "dollars to euros", is_stateful=False),
        Query("q2", "bids on some auctions", is_stateful=False),
        Query("q3", "who sells in three states"),
        Query("q4", "mean final price of each category", Gives.CLOSED),
        Query("q5", "the hottest auction", Gives.CLOSED),
        Query("q7", "the highest bid", Gives.CLOSED),
        Query("q8", "new persons who sell", Gives.CLOSED),
        Query("q9", "the winning bid of each auction", Gives.CLOSED),
        Query("q11", "bids of a session", Gives.CLOSED),
        Query("q12", "bids of a bidder", Gives.CLOSED),
        Query("q14", "bids of a price, by the time of day", is_stateful=False),
        Query("q15", "bids of a day", Gives.ANEW, ("day",)),
        Query("q17", "an auction's day", Gives.ANEW, ("auction", "day")),
        Query("q18", "the last bid on an auction of each bidder", Gives.ANEW, ("bidder", "auction")),
        Query("q20", "bids with their auctions of one category"),
        Query("q21", "channels by number", is_stateful=False),
        Query("q22", "parts of a URL", is_stateful=False),
    )
}
