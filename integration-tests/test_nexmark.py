"""NexMark: events that come again, in the proportions of the benchmark, and queries whose rows are DuckDB's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import Row, SparkSession

from cec_it.local import eventually
from cec_it.nexmark import REFERENCES, flat, tables
from spark_cec.settings import PROVIDER, PROVIDER_KEY
from spark_cec_lab.nexmark.events import Nexmark
from spark_cec_lab.nexmark.queries import QUERIES, Gives, Query

STREAMS = Nexmark(rate=1_000)
EVENTS, BATCHES = 5_000, 8
"""Five seconds of events a batch."""


@pytest.fixture(scope="module")
def database(spark: SparkSession) -> Iterator[duckdb.DuckDBPyConnection]:
    """More events than any stream reads here, as tables."""
    made = tables(spark, STREAMS, EVENTS * (BATCHES + 20))
    yield made
    made.close()


def ask(database: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return database.execute(sql).fetchall()


def test_every_query_has_a_reference() -> None:
    assert list(REFERENCES) == list(QUERIES)


def test_proportions_and_hot_ones(database: duckdb.DuckDBPyConnection) -> None:
    persons, auctions, bids = (ask(database, f"SELECT count(*) FROM {t}")[0][0] for t in ("person", "auction", "bid"))
    assert (auctions, bids) == (3 * persons, 46 * persons)
    hot = ask(database, "SELECT count(*) FROM bid WHERE (auction - 1000) % 100 = 0")[0][0] / bids
    assert 0.49 < hot < 0.52, "every other bid goes to a hot auction"
    hot = ask(database, "SELECT count(*) FROM bid WHERE (bidder - 1000) % 100 = 1")[0][0] / bids
    assert 0.74 < hot < 0.77, "three of four bids are of hot bidders"
    hot = ask(database, "SELECT count(*) FROM auction WHERE (seller - 1000) % 100 = 0")[0][0] / auctions
    assert 0.73 < hot < 0.78
    assert ask(database, "SELECT count(DISTINCT id) FROM auction") == [(auctions,)]
    assert ask(database, "SELECT min(id), max(id) FROM person") == [(1000, 999 + persons)]


def test_what_is_referred_to_is_there_or_soon(database: duckdb.DuckDBPyConnection) -> None:
    """A bid may be on an auction of the near future, never on one long gone; auctions last some time."""
    gone = "SELECT count(*) FROM bid b JOIN auction a ON b.auction = a.id WHERE b.ms - a.ms > 10000"
    assert ask(database, gone) == [(0,)]
    early = "SELECT max(a.ms - b.ms) FROM bid b JOIN auction a ON b.auction = a.id"
    assert 0 < ask(database, early)[0][0] < 1_000
    (least, most) = ask(database, "SELECT min(expires_at - ms), max(expires_at - ms) FROM auction")[0]
    assert 1 <= least < 100
    assert STREAMS.longest_auction_ms - 100 < most <= STREAMS.longest_auction_ms
    assert ask(database, "SELECT min(price) >= 100, max(price) < 100000000 FROM bid") == [(True, True)]
    orders = ask(database, "SELECT floor(log10(price)), count(*) FROM bid GROUP BY ALL ORDER BY 1")
    assert [order for order, _ in orders] == [2, 3, 4, 5, 6, 7]
    assert max(count for _, count in orders) < 1.1 * min(count for _, count in orders)


def test_another_seed_gives_other_events(spark: SparkSession) -> None:
    events = spark.range(200).withColumnRenamed("id", "n")
    rows = [streams.views(events, None)["bid"].collect() for streams in (STREAMS, STREAMS, Nexmark(1_000, seed=1))]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if not query.is_stateful])
def test_a_query_without_state(spark: SparkSession, database: duckdb.DuckDBPyConnection, name: str) -> None:
    events = spark.range(EVENTS * (BATCHES + 20)).withColumnRenamed("id", "n")
    rows = QUERIES[name].over(spark, STREAMS.views(events, None), STREAMS.longest_auction_ms).collect()
    assert Counter(flat(rows)) == Counter(ask(database, REFERENCES[name]))
    assert len(rows) > 100


@pytest.mark.parametrize("name", [name for name, query in QUERIES.items() if query.is_stateful])
def test_a_query_with_state(
    spark: SparkSession, database: duckdb.DuckDBPyConnection, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    rows, watermarks = run(spark, query, tmp_path)
    read = EVENTS * len(rows)
    if query.gives is Gives.CLOSED:
        wanted = ask(database, REFERENCES[name])
        # A join's rows may lie as far behind the watermark as an auction lasts; the next operator is a batch behind.
        surely = watermarks[-3] - STREAMS.longest_auction_ms
        columns = [column[0] for column in database.execute(REFERENCES[name]).description or ()]
        place = columns.index("until")
        found = Counter(row for batch in rows for row in flat(batch))
        assert not found - Counter(wanted), "only rows that DuckDB has, each once"
        assert not Counter(row for row in wanted if row[place] <= surely) - found, "and all of them"
        assert sum(row[place] <= surely for row in wanted) > 0
        return
    for table in ("person", "auction", "bid"):
        last = STREAMS.base_ms + read - 1  # an event each millisecond
        database.execute(f"CREATE OR REPLACE TEMP VIEW {table} AS SELECT * FROM memory.main.{table} WHERE ms <= {last}")
    wanted = ask(database, REFERENCES[name])
    for table in ("person", "auction", "bid"):
        database.execute(f"DROP VIEW {table}")
    if query.gives is Gives.ANEW:
        newest = {tuple(row[key] for key in query.keys): row for batch in rows for row in batch}
        assert Counter(flat(newest.values())) == Counter(wanted)
    else:
        assert Counter(row for batch in rows for row in flat(batch)) == Counter(wanted)


def run(spark: SparkSession, query: Query, home: Path) -> tuple[list[list[Row]], list[int]]:
    """The rows and the watermark of each batch, on our stores."""
    session = spark.newSession()
    session.conf.set(PROVIDER_KEY, PROVIDER)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    rows: dict[int, list[Row]] = {}
    views = STREAMS.views(STREAMS.stream(session, EVENTS))
    written = query.over(session, views, STREAMS.longest_auction_ms).writeStream.outputMode(query.mode)
    written = written.foreachBatch(lambda batch, number: rows.update({number: batch.collect()}))
    running = written.option("checkpointLocation", str(home / "checkpoint")).start()
    try:
        eventually(lambda: True if len(rows) >= BATCHES or not running.isActive else None, f"{BATCHES} batches")
    finally:
        running.stop()
    if running.exception() is not None:
        raise running.exception()  # type: ignore[misc]
    marks = [_ms(p["eventTime"].get("watermark")) for p in running.recentProgress if p["batchId"] < len(rows)]
    assert sorted(rows) == list(range(len(rows)))
    return [rows[number] for number in sorted(rows)], marks


def _ms(iso: str | None) -> int:
    return 0 if iso is None else int(datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp() * 1000)
