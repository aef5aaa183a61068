"""What a query wrote, as JSON rows, and how two results are compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from cec_it.plans import Plan

Batches = dict[int, list[str]]
"""Batch id to its rows as JSON, sorted; batches without rows are left out."""


def json_rows(frame: DataFrame) -> list[str]:
    """The rows of a batch DataFrame as JSON, sorted."""
    return sorted(row[0] for row in frame.select(f.to_json(f.struct("*"))).collect())


def recorder(out: Path, life: int, *, looks_again: bool = False) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that records its call, then writes `<batch>.<life>.json`, whole or not at all.

    `looks_again`: it asks for some of the rows then, and at every third batch for all of them.
    """
    out.mkdir(parents=True, exist_ok=True)

    def record(frame: DataFrame, batch: int) -> None:
        with (out / f"calls.{life}").open("a") as calls:
            calls.write(f"{batch}\n")
        target = out / f"{batch}.{life}.json"
        hidden = target.with_suffix(".tmp")
        hidden.write_text(json.dumps(json_rows(frame)))
        hidden.replace(target)
        if looks_again:
            frame.head(1)
            if batch % 3 == 0:
                frame.count()
                frame.isEmpty()

    return record


def leave_rows(spark: SparkSession, location: str, out: Path) -> None:
    """Write what the `cec` sink of the query with this checkpoint holds to `rows.json`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.json").write_text(json.dumps(json_rows(spark.read.format("cec").load(location))))


def left_rows(out: Path) -> list[str]:
    """The rows that `leave_rows` wrote, sorted."""
    rows: list[str] = json.loads((out / "rows.json").read_text())
    return rows


def calls_of(out: Path, life: int) -> list[int]:
    """The batches for which the recorder was called in one life of the driver, in order."""
    path = out / f"calls.{life}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def recorded(out: Path) -> dict[int, dict[int, list[str]]]:
    """Batch id to what each life of the driver wrote for it."""
    found: dict[int, dict[int, list[str]]] = {}
    for path in out.glob("[0-9]*.json"):
        batch, life = path.name.split(".")[:2]
        found.setdefault(int(batch), {})[int(life)] = json.loads(path.read_text())
    return found


def recorded_batches(out: Path) -> set[int]:
    """The batches that some life of the driver wrote."""
    return {int(path.name.split(".")[0]) for path in out.glob("[0-9]*.json")}


def last_recorded(out: Path) -> Batches:
    """Each batch as its last call left it."""
    lives = recorded(out)
    return {batch: rows[max(rows)] for batch, rows in sorted(lives.items()) if rows[max(rows)]}


def file_sink_batches(out: Path) -> Batches:
    """What Spark's JSON file sink wrote, batch by batch, from its own log."""
    found: Batches = {}
    for entry in sorted((out / "_spark_metadata").iterdir()):
        if entry.name.isdigit():
            files = [json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]]
            rows = sorted(
                line for file in files for line in Path(unquote(urlparse(file).path)).read_text().splitlines()
            )
            if rows:
                found[int(entry.name)] = rows
    return found


def union(batches: Mapping[int, list[str]]) -> Counter[str]:
    """All rows of all batches."""
    return Counter(row for rows in batches.values() for row in rows)


def newest_per_key(batches: Mapping[int, list[str]], key: Iterable[str]) -> dict[tuple[object, ...], str]:
    """An update-mode result: the last row of each key."""
    columns = tuple(key)
    newest: dict[tuple[object, ...], str] = {}
    for _, rows in sorted(batches.items()):
        for row in rows:
            values = json.loads(row)
            newest[tuple(values[column] for column in columns)] = row
    return newest


def final(plan: Plan, batches: Mapping[int, list[str]]) -> object:
    """What does not depend on how the input was cut into batches."""
    if plan.mode == "update":
        return newest_per_key(batches, plan.key)
    if plan.mode == "complete":
        return batches[max(batches)] if batches else []
    return union(batches)


def difference(found: Counter[str], wanted: Counter[str]) -> str:
    """Empty if equal, else what is missing and what is too much."""
    missing, extra = wanted - found, found - wanted
    if not missing and not extra:
        return ""
    return f"{missing.total()} rows missing: {list(missing)[:5]}; {extra.total()} rows too many: {list(extra)[:5]}"
