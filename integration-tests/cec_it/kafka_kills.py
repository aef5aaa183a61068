"""A job on Kafka, killed at seeded moments, changed between its lives, and compared row by row with pandas."""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cec_it import results
from cec_it.crashes import Driver, Life, environment, follow, log_bytes
from cec_it.driver import CEC_SINK, FOREACH
from cec_it.kafka_driver import KAFKA, KafkaJob, KafkaQuery
from cec_it.kafka_feed import MOST_AHEAD, Purchases, as_table
from cec_it.kafka_plans import PLANS, Row
from testbed.broker import Broker
from testbed.spark_logs import committed_batch, newest
from testbed.topics import Topics

SINKS = (FOREACH, KAFKA, CEC_SINK)
PHASES = ("starting", "planned", "appending", "committed")
CHANGES = ("nothing", "partitions", "limit", "broker")
IMPATIENT = {
    "kafka.default.api.timeout.ms": "3000",
    "kafka.request.timeout.ms": "2000",
    "kafkaConsumer.pollTimeoutMs": "3000",
    "fetchOffset.numRetries": "1",
}
LEAST_BATCHES = 3
"""What every query commits in a life, unless that is killed in its `starting`: then the next one has to replay."""
_MOST_PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill when `query` is `batches` batches further than at the life's start, and there in `phase`.

    `starting`: its log has grown in this life, whatever the batch. `planned`: the batch's offsets are there.
    `appending`: then its log has grown. `committed`: Spark has committed the batch. Afterwards comes `change`.
    """

    query: KafkaQuery
    batches: int
    phase: str
    change: str = "nothing"


@dataclass(frozen=True, slots=True)
class Compared:
    """One query's rows against pandas. `repeated`: rows that are there again as they were, which Spark's Kafka sink may
    write; they are no fault there, and counted as `duplicate` in any other sink."""

    query: str
    rows: int
    lost: int
    duplicate: int
    wrong: int
    repeated: int = 0

    @property
    def exact(self) -> bool:
        return not (self.lost or self.duplicate or self.wrong) and self.rows > 0


@dataclass(slots=True)
class KafkaHistory:
    """All lives of one job."""

    seed: int
    kills: list[Kill]
    lives: list[Life] = field(default_factory=list)
    recoveries: list[dict[str, object]] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)
    read: int = 0
    refused: int = 0

    @property
    def exact(self) -> bool:
        return bool(self.compared) and all(each.exact for each in self.compared)

    @property
    def failed(self) -> list[str]:
        """What queries failed with in lives that should have gone well."""
        return [f"{query}: {error}" for life in self.lives for query, error in life.failed.items()]

    def replayed(self) -> list[int]:
        return [int(str(report["replayed_batches"])) for report in self.recoveries]


def draw(seed: int, kills: int, changes: tuple[str, ...] = CHANGES) -> tuple[tuple[KafkaQuery, ...], list[Kill]]:
    """The queries of a run, each plan with a sink, and its kills."""
    dice = random.Random(f"kills of {seed}")
    sinks = dice.sample(SINKS, len(SINKS))
    queries = tuple(KafkaQuery(plan, sink) for plan, sink in zip(PLANS, sinks, strict=True))
    # The first life is long enough for something to be replayed after it.
    phases = [PHASES[1:] if life == 0 else PHASES for life in range(kills)]
    return queries, [
        Kill(dice.choice(queries), dice.randint(2, 5), dice.choice(each), dice.choice(changes)) for each in phases
    ]


class Supervisor:
    """Runs one history."""

    def __init__(self, broker: Broker, root: Path, seed: int, rows: int, conf: dict[str, str]) -> None:
        self._broker = broker
        self._topics = Topics(broker.address)
        self._purchases = Purchases(seed, rows)
        self._dice = random.Random(f"changes of {seed}")
        self._partitions = 2
        self._seed = seed
        self._rows = rows
        name = f"purchases-{seed}-{time.monotonic_ns()}"
        self._job = KafkaJob(str(root), broker.address, name, (), {"maxOffsetsPerTrigger": str(rows // 2)}, conf)

    def run(self, queries: tuple[KafkaQuery, ...], kills: list[Kill]) -> KafkaHistory:
        """The lives that end with a kill, then one that ends with the input; then the comparison."""
        history = KafkaHistory(self._seed, kills)
        self._job = replace(self._job, queries=queries)
        self._topics.create(self._job.topic, self._partitions)
        for query in queries:
            if query.sink == KAFKA:
                self._topics.create(self._job.out_topic(query), 2)
        for kill in kills:
            with self._life(history, False) as (child, life):
                follow(child, life, self._due(kill), f"{history.seed}: {kill}")
            self._change(history, kill.change)
        with self._life(history, True) as (child, life):
            follow(child, life, None, f"{history.seed}: the last life")
        self._compare(history)
        return history

    @contextmanager
    def _life(self, history: KafkaHistory, drain: bool) -> Iterator[tuple[Driver, Life]]:
        """A driver for the next life, killed at its end whatever happens; then its recoveries are known."""
        job = replace(self._job, life=len(history.lives), drain=drain)
        life = Life({query.name: committed_batch(job.checkpoint(query)) for query in job.queries})
        history.lives.append(life)
        before = self._reports()
        root = Path(job.root)
        (root / "scratch").mkdir(parents=True, exist_ok=True)
        file = root / f"job-{job.life}.json"
        file.write_text(job.to_json())
        command = [sys.executable, "-m", "cec_it.kafka_driver", str(file)]
        child = Driver(command, root / f"driver-{job.life}.log", environment(root / "scratch"))
        try:
            yield child, life
        finally:
            child.kill()
        history.recoveries += [json.loads(path.read_text()) for path in self._reports() if path not in before]

    def _reports(self) -> list[Path]:
        return sorted(
            p for q in self._job.queries for p in (self._job.checkpoint(q) / "cec" / "recoveries").glob("*.json")
        )

    def _due(self, kill: Kill) -> Callable[[], bool]:
        """Whether to kill now; feeds the topic while it is asked."""
        checkpoint = self._job.checkpoint(kill.query)
        began = log_bytes(checkpoint)
        batch = committed_batch(checkpoint) + kill.batches
        least = {q: committed_batch(self._job.checkpoint(q)) + LEAST_BATCHES for q in self._job.queries}
        planned: list[int] = []

        def due() -> bool:
            self._keep_fed()
            if kill.phase == "starting":
                return log_bytes(checkpoint) > began
            if any(committed_batch(self._job.checkpoint(query)) < wanted for query, wanted in least.items()):
                return False
            if kill.phase == "committed":
                return newest(checkpoint / "commits") >= batch
            if newest(checkpoint / "offsets") < batch:
                return False
            planned.append(log_bytes(checkpoint))
            return kill.phase == "planned" or planned[-1] > planned[0]

        return due

    def _keep_fed(self) -> None:
        """Produce a step if no query is further behind than the watermarks allow for."""
        if self._purchases.steps * self._rows - min(map(self._consumed, self._job.queries)) <= self._rows * (
            MOST_AHEAD - 1
        ):
            self._topics.produce(self._job.topic, self._purchases.step(self._partitions))

    def _consumed(self, query: KafkaQuery) -> int:
        """How many records a query has read in batches that are committed."""
        offsets = self._job.checkpoint(query) / "offsets"
        try:
            last = (offsets / str(newest(self._job.checkpoint(query) / "commits"))).read_text().splitlines()[-1]
        except FileNotFoundError:
            return 0
        return sum(json.loads(last)[self._job.topic].values())

    def _change(self, history: KafkaHistory, change: str) -> None:
        """What an administrator does between two lives."""
        if change == "partitions" and self._partitions < _MOST_PARTITIONS:
            self._partitions += 1
            self._topics.grow(self._job.topic, self._partitions)
        elif change == "limit":
            limit = str(self._dice.randint(self._rows // 4, self._rows))
            self._job = replace(self._job, options={"maxOffsetsPerTrigger": limit})
        elif change == "broker":
            self._refused_without_broker(history)

    def _refused_without_broker(self, history: KafkaHistory) -> None:
        """A life without a broker must end by itself, with every query failed."""
        patient = self._job
        self._job = replace(patient, options={**patient.options, **IMPATIENT})
        self._broker.stop()
        try:
            with self._life(history, False) as (child, life):
                follow(child, life, None, f"{history.seed}: without a broker")
        finally:
            self._broker.start()
            self._job = patient
        missing = {query.name for query in patient.queries} - set(life.failed)
        assert not missing, f"{missing} did not fail without a broker"
        history.refused += len(life.failed)
        life.failed.clear()

    def _compare(self, history: KafkaHistory) -> None:
        table = as_table(self._topics.read(self._job.topic))
        history.read = len(table)
        history.compared = [
            compare(query, PLANS[query.plan].rows(table), self._found(query)) for query in self._job.queries
        ]

    def _found(self, query: KafkaQuery) -> list[Row]:
        """Every row that a query's sink holds."""
        if query.sink == FOREACH:
            batches = results.recorded(self._job.out(query))
            for batch, lives in batches.items():
                assert len({tuple(rows) for rows in lives.values()}) == 1, f"batch {batch} came twice, with other rows"
            lines = [line for lives in batches.values() for line in lives[max(lives)]]
        elif query.sink == KAFKA:
            lines = [(record.value or b"").decode() for record in self._topics.read(self._job.out_topic(query))]
        else:
            lines = results.left_rows(self._job.out(query))
        return [tuple(json.loads(line)[name] for name in PLANS[query.plan].columns) for line in lines]


def compare(query: KafkaQuery, wanted: list[Row], found: list[Row]) -> Compared:
    """What a sink holds against what pandas says.

    Spark's Kafka sink is at least once: there whole rows may be repeated, and what counts are distinct rows.
    """
    identity = PLANS[query.plan].identity
    repeated = 0
    if query.sink == KAFKA:
        repeated = len(found) - len(set(found))
        found = list(set(found))
    right, times = {row[:identity]: row for row in wanted}, Counter(row[:identity] for row in found)
    assert len(right) == len(wanted), f"{query.name}: the identity of a row is not unique in pandas"
    return Compared(
        query.name,
        rows=len(wanted),
        lost=sum(key not in times for key in right),
        duplicate=sum(count - 1 for key, count in times.items() if key in right),
        wrong=sum(right.get(row[:identity]) != row for row in set(found)),
        repeated=repeated,
    )
