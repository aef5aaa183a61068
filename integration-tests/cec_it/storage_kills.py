"""Queries on a standalone cluster with their checkpoints on a store, killed at seeded moments.

`python -m cec_it.storage_kills [--store NAME ...] [--query NAME ...] [--seed N] [--runs N] [--quick] ...`

Each run takes one query through three SIGKILLs: of the driver, alone or with its agent; of one executor; of an agent of
an executor; of the driver's agent. They come in the middle of a batch, at its end, at its commit; or the second one
comes while the query recovers from the first, and the third while it recovers from the second. Whoever is gone is
started again, as a supervisor does. At the end every row is compared with those of an undisturbed run with Spark's own
state store on this machine's disk.

Prints a line of JSON for each run, then a table. A run is repeated by its seed, its store, its query and its number.
The exit code is 1 if a row was lost, duplicate or wrong, if a query did not get to its end, or if no run took place.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from cec_it import cluster, faults, feeds, local, scenarios
from cec_it.checkpoints import for_spark, hadoop_of, settings_of
from cec_it.class_archive import share_classes
from cec_it.cluster import Cluster
from cec_it.crashes import environment
from cec_it.driver import CEC, CEC_SINK, FOREACH, Job, Query, session_builder
from cec_it.faults import Course, Fault, Verdict
from cec_it.mini_hdfs import run_hdfs
from cec_it.references import References
from cec_it.results import Batches
from cec_it.s3a import fetch_s3a, run_server
from cec_it.servers.programs import Unavailable
from cec_it.servers.versity import run_versity
from testbed.processes import exit_on_sigterm

BATCHES, ROWS = 12, 120
LONG_BATCHES = 40
"""From so many batches on, a run trims its log and makes bundles, because it has settings for that."""

_OFTEN = {
    "spark.sql.streaming.minBatchesToRetain": "10", f"{CEC}log.bundle": "4", f"{CEC}log.bundleAfter": "1s",
}  # fmt: skip
LIFE_TIMEOUT_S = 300.0
"""How long one life of a driver may take: else its query hangs."""

QUERIES = {
    "windows": Query("window-update", feeds.RATE, FOREACH),
    "windows-cec": Query("window-append", feeds.RATE, CEC_SINK),
    "totals": Query("totals", feeds.RATE, FOREACH),
    "doubles": Query("doubles", feeds.RATE, FOREACH),
    "sessions": Query("sessions", feeds.RATE, FOREACH),
    "sessions-cec": Query("sessions", feeds.RATE, CEC_SINK),
    "distinct": Query("distinct", feeds.RATE, FOREACH),
    "distinct-within": Query("distinct-within", feeds.RATE, CEC_SINK),
    "join": Query("join", feeds.RATE, FOREACH),
    "functions": Query("count-windows", feeds.RATE, FOREACH),
    "functions-update": Query("last-value-sorted", feeds.RATE, FOREACH),
    "count-windows": Query("native-count-windows", feeds.RATE, CEC_SINK),
    "chain": Query("chain", feeds.RATE, FOREACH),
}
"""Aggregations, with whole numbers and doubles, sessions, both deduplications, a join, functions over arbitrary state,
count windows, and two aggregations in one query."""
QUICK = ("windows-cec", "doubles")
ALL_TOGETHER = {"join"}
"""Queries that need not put a row out in the same batch: a restart knows one watermark, and not one for each stream."""

KINDS = (*faults.KILLS_OF_DRIVER, "executor", "agent", "agent-of-driver")
RESTARTING = (*faults.KILLS_OF_DRIVER, "executor")
"""Kinds after which most queries need a restart."""
IN_A_BATCH = {FOREACH: ("planned", "called", "read", "appending", "committed"), CEC_SINK: faults.PHASES}
IN_A_RECOVERY = ("starting", "replaying")
_DELAYS_S = {
    "planned": 0.3, "called": 0.6, "read": 0.1, "appending": 0.05, "committed": 0.3, "starting": 4.0, "replaying": 1.0,
}  # fmt: skip
"""The longest delay after a phase was reached."""


@dataclass(frozen=True, slots=True)
class Store:
    """A store that is up: `home` is the URL below which checkpoints lie, `conf` what Spark is given for it."""

    home: str
    conf: Mapping[str, str]


@contextmanager
def _on_disk() -> Iterator[Store]:
    yield Store("", {})


@contextmanager
def _on_moto() -> Iterator[Store]:
    with run_server() as server:
        server.client().create_bucket(Bucket="kills")
        # Past the proxy, which counts requests, because it takes time.
        own = {**server.conf(), "spark.hadoop.fs.s3a.endpoint": server.endpoint}
        yield Store("s3a://kills", {**own, **_s3a()})


@contextmanager
def _on_versity() -> Iterator[Store]:
    with run_versity() as server:
        yield Store(server.make_bucket(), {**for_spark(server.settings(server.endpoint)), **_s3a()})


@contextmanager
def _on_hdfs() -> Iterator[Store]:
    if find_spec("hdfs_native") is None:
        raise Unavailable("hdfs-native is not installed: pip install 'spark-cec[hdfs]'")
    with run_hdfs() as server:
        yield Store(f"{server.url}/kills", for_spark(server.settings()))


def _s3a() -> dict[str, str]:
    """On the class paths, because Spark would send some forty jars to each executor."""
    jars = fetch_s3a().replace(",", os.pathsep)
    return {f"spark.{side}.extraClassPath": jars for side in ("driver", "executor")}


STORES: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "moto": _on_moto, "hdfs": _on_hdfs, "versitygw": _on_versity, "disk": _on_disk,
}  # fmt: skip
REMOTE = ("moto", "hdfs", "versitygw")


@dataclass(slots=True)
class Row:
    """What the runs of one query on one store came to. `restarts`: lives of the query beyond the first of each run.

    `bundles`: those that the logs have at the end.
    """

    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    lost: int = 0
    duplicate: int = 0
    wrong: int = 0
    called_again: int = 0
    restarts: int = 0
    recoveries: int = 0
    replayed: int = 0
    bad_digests: int = 0
    stuck: int = 0
    bundles: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.duplicate or self.wrong or self.called_again or self.bad_digests or self.stuck)

    def add(self, course: Course, verdict: Verdict) -> None:
        """Takes in one run that got to its end."""
        reports = course.reports()
        self.kills.update(fault.kind for fault in course.faults)
        for name in ("rows", "lost", "duplicate", "wrong", "called_again"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.wrong += not verdict.rows  # a comparison of no rows proves nothing
        self.restarts += len(course.lives) - 1
        self.recoveries += len(reports)
        self.replayed += sum(int(str(report["replayed_batches"])) for report in reports)
        self.bundles += course.checkpoint.bundles()
        self.bad_digests += sum(report["digest_ok"] is False for report in reports)


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its settings and its faults follow from the seed."""

    store: str
    query: str
    number: int
    seed: int
    write_at: str | None
    batches: int

    def plan(self) -> tuple[dict[str, str], list[Fault]]:
        """The query's settings, and its faults."""
        dice = random.Random(f"{self.store} {self.query} {self.number} of {self.seed}")
        own = dict(dice.choice(local.SETTINGS))
        write_at = self.write_at or dice.choice(("", "batch", "async"))
        conf = {CEC + key: value for key, value in {**own, **({"writeAt": write_at} if write_at else {})}.items()}
        conf |= {"spark.sql.streaming.stateStore.checkpointFormatVersion": dice.choice("12")}
        conf |= _OFTEN if self.batches >= LONG_BATCHES else {}
        scale = self.batches / BATCHES
        phases = IN_A_BATCH[QUERIES[self.query].sink]
        if dice.random() < 0.5:
            at = (int(batch * scale) for batch in (2 + dice.randrange(2), 5, 8))
            found = [self._fault(dice, KINDS, phases, batch) for batch in at]
        else:
            found = [self._fault(dice, RESTARTING, phases, int((3 + dice.randrange(4)) * scale))]
            found += [self._fault(dice, kinds, IN_A_RECOVERY, -1) for kinds in (RESTARTING, KINDS)]
        return conf, found

    @staticmethod
    def _fault(dice: random.Random, kinds: Sequence[str], phases: Sequence[str], batch: int) -> Fault:
        phase = dice.choice(phases)
        return Fault(dice.choice(kinds), batch, phase, round(dice.random() * _DELAYS_S[phase], 3))


def run(spark_cluster: Cluster, store: Store, asked: Run, wanted: Batches, root: Path, row: Row) -> None:
    """One run; `row` takes it in."""
    query, (conf, drawn) = QUERIES[asked.query], asked.plan()
    home = store.home and f"{store.home}/{asked.query}-{asked.number}-{asked.seed}"
    settings = {**spark_cluster.conf(), **store.conf, **conf}
    job = Job(str(root), (query,), asked.batches, ROWS, master=spark_cluster.url, conf=settings, home=home)
    told: dict[str, object] = {**asdict(asked), "conf": conf, "faults": [asdict(each) for each in drawn]}
    began = time.monotonic()
    row.runs += 1
    try:
        course = faults.run(spark_cluster, job, drawn, asked.seed, LIFE_TIMEOUT_S)
        verdict = faults.judge(course, wanted, by_batch=asked.query not in ALL_TOGETHER)
        row.add(course, verdict)
        told |= {**asdict(verdict), "lives": len(course.lives), "errors": list(map(scenarios.cause_of, course.errors))}
    except Exception as error:
        row.stuck += 1
        told["stuck"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    took = time.monotonic() - began
    row.seconds += took
    print(json.dumps({**told, "seconds": round(took)}), flush=True)


def run_on(
    name: str, queries: Sequence[str], given: argparse.Namespace, wanted: Mapping[str, Batches], root: Path
) -> dict[str, Row]:
    """All runs on one store, on a cluster of its own; none if the store cannot be had here."""
    rows = {query: Row() for query in queries}
    with ExitStack() as stack:
        try:
            store = stack.enter_context(STORES[name]())
        except (Unavailable, pytest.skip.Exception) as why:
            print(f"{name} is skipped: {why}", flush=True)
            return {}
        stack.enter_context(settings_of(hadoop_of(store.conf)))
        spark_cluster = stack.enter_context(cluster.running(root / "cluster"))
        for number in range(given.runs) if given.run is None else [given.run]:
            for query in queries:
                asked = Run(name, query, number, given.seed, given.write_at, given.batches)
                place = root / f"{query}-{number}"
                run(spark_cluster, store, asked, wanted[query], place, rows[query])
    return {f"{name} {query}": row for query, row in rows.items()}


def table(rows: Mapping[str, Row]) -> str:
    """The rows as a table in Markdown."""
    names = [name for name in asdict(Row()) if name not in ("kills", "seconds")]
    titles = ["store and query", *(name.replace("_", " ") for name in names), "kills", "seconds a run"]
    lines = [titles, ["---"] * len(titles)]
    for name, row in rows.items():
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(row.kills.items()))
        lines.append([name, *(str(getattr(row, each)) for each in names), kills, f"{row.seconds / row.runs:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def undisturbed(queries: Sequence[str], batches: int, root: Path) -> dict[str, Batches]:
    """The rows of each query in an undisturbed run."""
    root.mkdir(parents=True)
    session = session_builder(root / "scratch", "local[2]").getOrCreate()
    try:
        (root / "runs").mkdir()
        references = References(session, root / "runs")
        job = Job(str(root), tuple({QUERIES[query].plan: QUERIES[query] for query in queries}.values()), batches, ROWS)
        references.prepare(job)
        return {query: references.get(QUERIES[query], job) for query in queries}
    finally:
        session.stop()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments; a wrong one ends the process with 2."""
    parser = argparse.ArgumentParser(prog="python -m cec_it.storage_kills", description=__doc__)
    parser.add_argument("--store", action="append", choices=list(STORES), help="all but disk, unless some are named")
    parser.add_argument("--query", action="append", choices=list(QUERIES), help="all, unless some are named")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--runs", type=int, default=1, help="of each query on each store")
    parser.add_argument("--run", type=int, help="repeat the run with this number only")
    quick = f"of the queries only {', '.join(QUICK)}, with {LONG_BATCHES} batches"
    parser.add_argument("--quick", action="store_true", help=quick)
    batches = f"of each query, default {BATCHES}; from {LONG_BATCHES} on its log has bundles"
    parser.add_argument("--batches", type=int, help=batches)
    parser.add_argument("--write-at", help="the setting writeAt of all runs; else each run draws it")
    parser.add_argument("--out", type=Path, help="keep all files there")
    given = parser.parse_args(arguments)
    given.batches = given.batches or (LONG_BATCHES if given.quick else BATCHES)
    return given


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign; the exit code."""
    exit_on_sigterm()
    given = parse(arguments)
    out = given.out or Path(tempfile.mkdtemp(prefix="storage-kills-"))
    share_classes()
    os.environ.update(environment(out))  # executors' agents and workers have what the cluster's daemons have
    queries = given.query or list(QUICK if given.quick else QUERIES)
    print(json.dumps({"seed": given.seed, "logs": str(out)}), flush=True)
    wanted = undisturbed(queries, given.batches, out / "undisturbed")
    rows: dict[str, Row] = {}
    for name in given.store or REMOTE:
        rows |= run_on(name, queries, given, wanted, out / name)
    if not rows:
        print("no run took place: none of the stores can be had here", file=sys.stderr)
        return 1
    print(table(rows))
    good = all(row.is_good for row in rows.values())
    print(f"seed {given.seed}: {'every row is right' if good else f'see {out}'}")
    if good and given.out is None:
        shutil.rmtree(out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
