"""A session with other settings than the one that crashed: the replay has those of its batches, then come the new."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_cec
from cec_it import local
from cec_it.references import PROVIDER_KEY, SPARKS_OWN
from cec_it.tables import Rows, run

ZONE = "spark.sql.session.timeZone"
EVENTS = "key LONG, amount LONG, x DOUBLE, at TIMESTAMP, text STRING"


def write(root: Path, number: int) -> None:
    """Times without a zone: the session says which it is. Some texts are no time that every parser takes."""
    root.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "key": key % 3,
            "amount": 1 + number * 7 + key,
            "x": (number * 5 - key) / 8,
            "at": f"2024-03-09T{(17 + key) % 24:02d}:30:00",
            "text": f"2024-03-{9 + key % 2:02d} 2{key % 4}:15:00",
        }
        for key in range(8)
    ]
    hidden = root / f".{number}"
    hidden.write_text("".join(json.dumps(line) + "\n" for line in lines))
    hidden.rename(root / f"{number:05d}.json")


def read_by_the_session(events: DataFrame) -> DataFrame:
    """The source itself reads times as the session has it."""
    return events.groupBy(f.window("at", "1 day", None, "3 hours").start.cast("long").alias("day"), "key").agg(
        f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("x").alias("x")
    )


def in_expressions(events: DataFrame) -> DataFrame:
    """The zone stands in the analysed plan."""
    day = f.to_date(f.expr("CAST(text AS TIMESTAMP) + INTERVAL 3 HOURS"))
    return events.groupBy(day.cast("string").alias("day"), f.hour("at").alias("hour")).agg(
        f.count("*").alias("n"), f.min("x").alias("x")
    )


def in_a_subquery(events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return events.sparkSession.sql(
        "WITH days AS (SELECT date_format(CAST(text AS TIMESTAMP), 'dd HH') AS day, key, amount FROM events) "
        "SELECT day, count(*) AS n, sum(amount) AS total FROM days GROUP BY day"
    )


def in_count_windows(events: DataFrame) -> DataFrame:
    """The zone stands in a function, where no rule of Spark looks."""
    latest = f.max(f.hour("at")).alias("latest")
    return spark_cec.count_window(events, "key", 7, [latest, f.count("*").alias("n")], order_by=["amount", "at"])


def nothing(events: DataFrame) -> DataFrame:
    return events.groupBy("key").agg(f.count("*").alias("n"), f.sum("amount").alias("total"))


CASES: dict[str, tuple[Callable[[DataFrame], DataFrame], list[dict[str, str]]]] = {
    # name: the query, and the settings of each of its lives
    "source": (read_by_the_session, [{ZONE: "UTC"}, {ZONE: "Asia/Tokyo"}, {ZONE: "America/New_York"}]),
    "expressions": (in_expressions, [{ZONE: "Asia/Tokyo"}, {ZONE: "UTC"}, {ZONE: "UTC"}]),
    "subquery": (in_a_subquery, [{ZONE: "UTC"}, {ZONE: "Asia/Kathmandu"}, {ZONE: "UTC"}]),
    "count windows": (in_count_windows, [{ZONE: "Asia/Tokyo"}, {ZONE: "UTC"}, {ZONE: "UTC"}]),
    "set to unset": (read_by_the_session, [{ZONE: "Asia/Tokyo"}, {}, {ZONE: "Asia/Tokyo"}]),
    "without effect": (
        nothing,
        [{}, {"spark.sql.caseSensitive": "true", "spark.sql.execution.arrow.maxRecordsPerBatch": "7"}, {}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_replay_has_the_settings_of_its_batches(name: str, spark: SparkSession, tmp_path: Path) -> None:
    """Each life ends as by a crash. The third replays batches of the second, whose settings were others again."""
    query, lives = CASES[name]
    found: dict[str, Rows] = {"cec": {}, "spark": {}}
    for store, rows in found.items():
        number, events = 0, tmp_path / store / "events"
        events.mkdir(parents=True)
        for settings in lives:
            own = local.session(spark, {**local.OPENINGS_ONLY, "effort": "0"}, **settings)
            if store == "spark":
                own.conf.set(PROVIDER_KEY, SPARKS_OWN)
            stream = own.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(str(events))
            mode = "append" if query is in_count_windows else "update"
            streaming = run(query(stream), mode, tmp_path / store / "checkpoint", rows)
            try:
                for _ in range(3):
                    write(events, number)
                    number += 1
                    streaming.processAllAvailable()
            finally:
                streaming.stop()
    reports = local.reports(tmp_path / "cec" / "checkpoint", 2)
    assert [report["replayed_batches"] != 0 for report in reports] == [True, True], reports
    assert all(report["digest_ok"] for report in reports)
    assert {batch: sorted(map(repr, each)) for batch, each in found["cec"].items()} == {
        batch: sorted(map(repr, each)) for batch, each in found["spark"].items()
    }
