"""NexMark's queries once more, in DuckDB, over the same events: what a stream's rows are compared with.

Times are whole milliseconds there, so that nothing hangs on what a database makes of time zones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
from pyspark.sql import Row, SparkSession

from spark_cec_lab.nexmark.events import Nexmark

_OPEN = "FROM auction a JOIN bid b ON a.id = b.auction AND b.ms BETWEEN a.ms AND a.expires_at"

REFERENCES = {
    "q0": "SELECT auction, bidder, price, ms FROM bid",
    "q1": "SELECT auction, bidder, price::DECIMAL(18, 0) * 0.908 AS euros, ms FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a, person p
             WHERE a.seller = p.id AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""WITH final AS (SELECT a.id, a.category, a.ms, max(b.price) AS final {_OPEN} GROUP BY ALL)
              SELECT category, sum(final)::BIGINT, count(*), (ms // 10000 + 1) * 10000 AS until FROM final
              GROUP BY category, until""",
    "q5": """WITH counted AS (SELECT auction, count(*) AS bids, (ms // 2000 + 1 + later) * 2000 AS until
                              FROM bid, range(5) AS r(later) GROUP BY auction, until)
             SELECT until, bids, auction FROM counted
             QUALIFY row_number() OVER (PARTITION BY until ORDER BY bids DESC, auction DESC) = 1""",
    "q7": """SELECT (ms // 10000 + 1) * 10000 AS until, price, bidder, auction FROM bid
             QUALIFY row_number() OVER (PARTITION BY until ORDER BY price DESC, bidder DESC, auction DESC) = 1""",
    "q8": """SELECT DISTINCT p.id, p.name, (p.ms // 10000 + 1) * 10000 AS until
             FROM person p JOIN auction a ON p.id = a.seller AND p.ms // 10000 = a.ms // 10000""",
    "q9": f"""SELECT a.id, a.ms AS until, b.price, -b.ms, b.bidder {_OPEN}
              QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ms, b.bidder DESC) = 1""",
    "q11": """WITH first AS (SELECT bidder, ms, ms > lag(ms) OVER bids + 2000 AS begins FROM bid
                             WINDOW bids AS (PARTITION BY bidder ORDER BY ms)),
                   numbered AS (SELECT bidder, ms, count(*) FILTER (begins) OVER (PARTITION BY bidder ORDER BY ms) AS n
                                FROM first)
              SELECT bidder, count(*), min(ms), max(ms) + 2000 AS until FROM numbered GROUP BY bidder, n""",
    "q12": "SELECT bidder, count(*), (ms // 10000 + 1) * 10000 AS until FROM bid GROUP BY bidder, until",
    "q14": """SELECT auction, bidder, price, length(extra) - length(replace(extra, 'c', '')),
                     CASE WHEN hour BETWEEN 8 AND 18 THEN 'day' WHEN hour BETWEEN 6 AND 20 THEN 'twilight'
                          ELSE 'night' END
              FROM (SELECT *, ms // 3600000 % 24 AS hour FROM bid) WHERE price > 1000000 AND price < 50000000""",
    "q15": """SELECT ms // 86400000 AS day, count(*), count(*) FILTER (price < 10000),
                     count(*) FILTER (price >= 10000 AND price < 1000000), count(*) FILTER (price >= 1000000)
              FROM bid GROUP BY day""",
    "q17": """SELECT auction, ms // 86400000 AS day, count(*), count(*) FILTER (price < 10000),
                     count(*) FILTER (price >= 10000 AND price < 1000000), count(*) FILTER (price >= 1000000),
                     min(price), max(price), sum(price)::BIGINT
              FROM bid GROUP BY auction, day""",
    "q18": """SELECT bidder, auction, ms, price, channel FROM bid
              QUALIFY 1 = row_number()
                     OVER (PARTITION BY bidder, auction ORDER BY ms DESC, price DESC, channel DESC)""",
    "q20": """SELECT b.auction, b.bidder, b.price, a.seller, a.reserve, a.item_name
              FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT auction, bidder, price, channel,
                     CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                          WHEN 'baidu' THEN '3' ELSE regexp_extract(channel, 'channel-([0-9]+)', 1) END
              FROM bid""",
    "q22": "SELECT auction, bidder, price, split_part(url, '/', 4), split_part(url, '/', 5) FROM bid",
}


def tables(spark: SparkSession, streams: Nexmark, events: int) -> duckdb.DuckDBPyConnection:
    """The first `events` events as tables; times in ms since the epoch."""
    views = streams.views(spark.range(events).withColumnRenamed("id", "n"), delay=None)
    database = duckdb.connect()
    for name, rows in views.items():
        columns = ["*", "unix_millis(date_time) AS ms", *(["unix_millis(expires) AS expires_at"] * (name == "auction"))]
        table = rows.selectExpr(*columns).drop("date_time", "expires").toArrow()
        database.register("given", table)
        database.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        database.unregister("given")
    return database


def flat(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Each row as a tuple, its structs taken apart."""
    return [_flat(row) for row in rows]


def _flat(row: Row) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in row:
        found.extend(_flat(value) if isinstance(value, Row) else [value])
    return tuple(found)
