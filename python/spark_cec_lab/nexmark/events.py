"""Persons, auctions and bids as columns of an event number.

All that looks random is a hash of the number, in whole numbers only: a replay gives the same rows, on any machine.
Nothing is kept from one event to the next, so that Spark makes them where it wants, and as many at once as it wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PERSONS, AUCTIONS, BIDS = 1, 3, 46
"""Of so many events in a row."""

PER_ROUND = PERSONS + AUCTIONS + BIDS

FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1000, 1000, 10
CATEGORIES = 5
ACTIVE_PERSONS, AUCTIONS_IN_FLIGHT = 1000, 100
"""From how many of the newest persons and auctions those are drawn that are not hot."""

LEAD = 10
"""How many that are not there yet are drawn too."""

HOT_EVERY = 100
"""Of so many persons or auctions in a row one is hot."""

_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Cheyenne")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")


@dataclass(frozen=True, slots=True)
class Nexmark:
    """The streams.

    `rate`: events per second of event time. `base_ms`: the time of event 0. `hot_auctions`, `hot_bidders` and
    `hot_sellers`: of so many bids or auctions all but one go to a hot one. `hot_percent`: instead of these three, of a
    hundred so many do. `seed` of all that looks random.
    """

    rate: int = 10_000
    base_ms: int = 1_700_000_000_000
    hot_auctions: int = 2
    hot_bidders: int = 4
    hot_sellers: int = 4
    hot_percent: int | None = None
    seed: int = 20110627

    def stream(self, spark: SparkSession, events_per_batch: int, partitions: int = 2) -> DataFrame:
        """Event numbers from 0 on, so many a batch, the same ones in the same batch whenever it runs: column `n`."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", events_per_batch)
        return source.option("numPartitions", partitions).option("startTimestamp", 0).load().selectExpr("value AS n")

    def views(self, events: DataFrame, delay: str | None = "1 second") -> dict[str, DataFrame]:
        """`person`, `auction` and `bid`, with a watermark on their `date_time` if there is a `delay`."""
        found = {}
        for name, (which, columns) in self.columns().items():
            rows = events.where(which).selectExpr(*(f"{sql} AS {column}" for column, sql in columns.items()))
            found[name] = rows if delay is None else rows.withWatermark("date_time", delay)
        return found

    def columns(self) -> Mapping[str, tuple[str, Mapping[str, str]]]:
        """For each kind of event which numbers it has, and its columns, as SQL over the event number `n`."""
        at = f"timestamp_millis({self.base_ms} + n * 1000 div {self.rate})"
        kind = f"n % {PER_ROUND}"
        length = self._below(self.longest_auction_ms, 16)
        other_channel = f"concat('channel-', {self._below(10_000, 31)})"
        folder = f"lower(hex({self._below(1 << 20, 32)}))"
        return {
            "person": (f"{kind} < {PERSONS}", {
                "id": f"{FIRST_PERSON} + {_last_person()}",
                "name": f"concat({self._one_of(_FIRST, 1)}, ' ', {self._one_of(_LAST, 2)})",
                "email": f"concat(lower(hex({self._any(3)})), '@', lower(hex({self._below(1 << 20, 4)})), '.com')",
                "credit_card": f"lpad(cast({self._below(10**16, 5)} AS STRING), 16, '0')",
                "city": self._one_of(_CITIES, 6),
                "state": self._one_of(_STATES, 7),
                "date_time": at,
            }),
            "auction": (f"{kind} >= {PERSONS} AND {kind} < {PERSONS + AUCTIONS}", {
                "id": f"{FIRST_AUCTION} + {_last_auction()}",
                "item_name": f"concat('item ', lower(hex({self._below(1 << 32, 11)})))",
                "initial_bid": self._price(12),
                "reserve": f"{self._price(12)} + {self._price(14)}",
                "date_time": at,
                "expires": f"timestamp_millis({self.base_ms} + n * 1000 div {self.rate} + 1 + {length})",
                "seller": f"{FIRST_PERSON} + {self._person(self.hot_sellers, 0, 17)}",
                "category": f"{FIRST_CATEGORY} + {self._below(CATEGORIES, 20)}",
            }),
            "bid": (f"{kind} >= {PERSONS + AUCTIONS}", {
                "auction": f"{FIRST_AUCTION} + {self._auction(21)}",
                "bidder": f"{FIRST_PERSON} + {self._person(self.hot_bidders, 1, 24)}",
                "price": self._price(27),
                "channel": f"if({self._below(2, 29)} = 0, {self._one_of(_CHANNELS, 30)}, {other_channel})",
                "url": f"concat('https://www.nexmark.com/', {folder}, '/item.htm?query=', {self._below(100, 33)})",
                "date_time": at,
                "extra": f"lower(concat(hex({self._any(34)}), hex({self._any(35)})))",
            }),
        }  # fmt: skip

    @property
    def longest_auction_ms(self) -> int:
        """Twice as long as it takes for so many others to begin as are in flight."""
        return max(2 * (AUCTIONS_IN_FLIGHT * PER_ROUND // AUCTIONS) * 1000 // self.rate, 1)

    def _any(self, salt: int) -> str:
        return f"xxhash64(n, {self.seed + salt}L)"

    def _below(self, count: int | str, salt: int) -> str:
        return f"pmod({self._any(salt)}, cast({count} AS BIGINT))"

    def _one_of(self, texts: tuple[str, ...], salt: int) -> str:
        listed = ", ".join(f"'{text}'" for text in texts)
        return f"element_at(array({listed}), cast({self._below(len(texts), salt)} AS INT) + 1)"

    def _price(self, salt: int) -> str:
        """In cents, from 100 to a hundred million: as many of each order of magnitude."""
        orders = ", ".join(f"{10**order}L" for order in range(2, 8))
        order = f"element_at(array({orders}), cast({self._below(6, salt)} AS INT) + 1)"
        return f"({order} + pmod({self._any(salt + 1)}, 9 * {order}))"


    def _person(self, hot: int, which: int, salt: int) -> str:
        """One of the newest persons, mostly a hot one: `which` of them, so that hot sellers are no hot bidders."""
        last, active = _last_person(), f"least({_last_person()} + 1, {ACTIVE_PERSONS})"
        cold = f"{last} + 1 - {active} + {self._below(f'{active} + {LEAD}', salt)}"
        return f"if({self._is_hot(hot, salt + 1)}, {last} div {HOT_EVERY} * {HOT_EVERY} + {which}, {cold})"

    def _auction(self, salt: int) -> str:
        last, first = _last_auction(), f"greatest({_last_auction()} - {AUCTIONS_IN_FLIGHT}, 0)"
        cold = f"{first} + {self._below(f'{last} - {first} + 1 + {LEAD}', salt)}"
        return f"if({self._is_hot(self.hot_auctions, salt + 1)}, {last} div {HOT_EVERY} * {HOT_EVERY}, {cold})"

    def _is_hot(self, hot: int, salt: int) -> str:
        if self.hot_percent is not None:
            return f"{self._below(100, salt)} < {self.hot_percent}"
        return f"{self._below(hot, salt)} > 0"


def _last_person() -> str:
    """The number of the newest person there is at event `n`: each round begins with one."""
    return f"(n div {PER_ROUND})"


def _last_auction() -> str:
    """The number of the newest auction there is at event `n`."""
    place = f"(n % {PER_ROUND})"
    newest = f"least({place} - {PERSONS}, {AUCTIONS - 1})"
    return f"(n div {PER_ROUND} * {AUCTIONS} + {newest})"
