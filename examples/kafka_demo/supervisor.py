"""Runs the example: the broker, the purchases, the job and its kills, and the comparison."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kafka_demo.layout import LINES, PARTITIONS, STEPS_AHEAD, TOPIC, Layout
from kafka_demo.purchases import COLUMNS, compare, expected, records
from purchases_demo.events import Stream
from purchases_demo.reference import Comparison
from purchases_demo.report import last_line
from testbed.broker import Broker
from testbed.processes import Child
from testbed.spark_logs import committed_batch, newest
from testbed.topics import Topics

_LOOK_EVERY_S = 0.01
_LIFE_TIMEOUT_S = 900.0
"""A machine with other work needs minutes for a start."""
_BATCHES_IN_A_LIFE = (4, 7)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made of."""

    seed: int
    crashes: int
    items: int


class Supervisor:
    """One run of the example."""

    def __init__(self, settings: Settings, layout: Layout, console: Console) -> None:
        self._settings = settings
        self._layout = layout
        self._console = console
        self._stream = Stream(settings.seed, settings.items, LINES)
        self._dice = random.Random(f"kills of {settings.seed}")
        self._steps = 0
        self._life = 0

    def run(self) -> bool:
        """Run everything and print the verdict; whether it was right."""
        try:
            return self._run_all()
        except (RuntimeError, OSError) as error:  # a part that says nothing for long is a TimeoutError, an OSError
            self._console.print(last_line(self._settings.crashes, None, [str(error)]), soft_wrap=True)
            return False

    def _run_all(self) -> bool:
        self._console.print("starting a Kafka broker (the first time its jars are fetched)")
        with Broker(self._layout.broker) as broker:
            topics = Topics(broker.address)
            topics.create(TOPIC, PARTITIONS)
            for crash in range(self._settings.crashes):
                self._run_and_kill(broker, topics, crash + 1)
            with self._driver(broker, "--last") as last:
                code = last.exit_code(_LIFE_TIMEOUT_S)
            wanted = expected(topics.read(TOPIC))
        reasons = [f"the job's last run ended with exit code {code}; see {last.log}"] if code else []
        comparison = compare(wanted, self._found()) if not code else None
        return self._judge(comparison, reasons)

    def _run_and_kill(self, broker: Broker, topics: Topics, crash: int) -> None:
        checkpoint = self._layout.checkpoint
        batch = max(committed_batch(checkpoint), 0) + self._dice.randint(*_BATCHES_IN_A_LIFE)
        phase = self._dice.choice(("offsets", "commits"))
        deadline = time.monotonic() + _LIFE_TIMEOUT_S
        with self._driver(broker) as driver:
            while newest(checkpoint / phase) < batch:
                self._keep_fed(topics)
                if driver.ends_within(_LOOK_EVERY_S) or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the job has ended, or has not come to batch {batch} within {_LIFE_TIMEOUT_S:.0f} s: is the "
                        f"machine very busy? See {driver.log}"
                    )
            killed = driver.kill()
        self._console.print(f"crash {crash}: {killed} processes killed at batch {batch}")

    @contextmanager
    def _driver(self, broker: Broker, *more: str) -> Iterator[Child]:
        """The job as a process, killed with all its descendants at the end whatever happens."""
        script = Path(__file__).resolve().parents[1] / "kafka_purchases.py"
        root, scratch = self._layout.root, self._layout.scratch
        scratch.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(script), "job", "--output", str(root), "--address", broker.address, *more]
        self._life += 1
        child = Child(command, self._layout.driver_log(self._life), {"TMPDIR": str(scratch)})
        try:
            yield child
        finally:
            child.kill()

    def _keep_fed(self, topics: Topics) -> None:
        """Produce the next step unless the query is `STEPS_AHEAD` behind."""
        if self._steps * LINES - self._consumed() <= (STEPS_AHEAD - 1) * LINES:
            topics.produce(TOPIC, records(self._stream, self._steps))
            self._steps += 1

    def _consumed(self) -> int:
        """Purchases in committed batches, from Spark's own logs."""
        batch = newest(self._layout.checkpoint / "commits")
        try:
            lines = (self._layout.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum(json.loads(lines[-1])[TOPIC].values())

    def _found(self) -> list[tuple[int, ...]]:
        rows = (json.loads(line) for line in self._layout.rows.read_text().splitlines())
        return [tuple(row[name] for name in COLUMNS) for row in rows]

    def _judge(self, comparison: Comparison | None, reasons: list[str]) -> bool:
        files = sorted((self._layout.checkpoint / "cec" / "recoveries").glob("*.json"))
        recoveries = [json.loads(path.read_text()) for path in files]
        self._console.print(_recoveries_table(recoveries))
        reasons = list(reasons)
        if comparison is not None and not (comparison.exact and comparison.rows):
            reasons.append("the output is not that of an undisturbed run")
        if not any(each["replayed_batches"] > 1 for each in recoveries):
            reasons.append("no crash replayed more than one batch, so it proves nothing")
        reasons += [
            "a recovery came back with another state digest" for each in recoveries if each["digest_ok"] is False
        ]
        self._console.print(last_line(self._settings.crashes, comparison, reasons), soft_wrap=True)
        return not reasons


def _recoveries_table(recoveries: list[dict[str, object]]) -> Table:
    table = Table(title="Recoveries", caption="V: last committed batch. The replay begins after T.")
    for heading in ("recovery", "V", "T", "replayed batches", "s"):
        table.add_column(heading, justify="right")
    for number, each in enumerate(recoveries, 1):
        cells = (each["committed_batch"], each["rewound_to"], each["replayed_batches"])
        table.add_row(str(number), *map(str, cells), f"{float(str(each['duration_ms'])) / 1000:.1f}")
    return table
