"""`cec bench storage`: what a checkpoint on an object store costs, ours beside Spark's stores at their best.

The store is an emulated S3 (moto) on loopback, behind a proxy that counts and delays. A run has these phases: its first
batches, batches whose requests are counted, batches whose every request takes `DELAY_S` longer, and a SIGKILL with a
restart under the same delay. Other runs count the requests of a batch in 200 partitions. Long runs in 32 partitions
count the objects that are left after 1,000 batches, and the requests of late batches beside those of early ones.

A peer at its best writes each file with one request, through a manager that was made for this benchmark (`one_write`).
No manager that a user can have makes fewer. Beside it stands `AbortableStreamBasedCheckpointFileManager`, of Spark's
module for clouds: it needs no rename, but looks before it writes. Both have S3A leave out its own checks. Both peers
compress with zstd.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from spark_cec.session import MANAGER, MANAGER_KEY, PYTHON_KEY, jar_path
from spark_cec.settings import PREFIX
from spark_cec.toolchain import spark_jars
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import SILENCE_S, Say, after, started
from spark_cec_lab.bench.one_write import MANAGER as ONE_WRITE
from spark_cec_lab.bench.one_write import build_one_write
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.providers import Provider, in_turn
from spark_cec_lab.bench.ratios import medians
from spark_cec_lab.bench.workloads import Shape, Workload
from spark_cec_lab.storage.emulated_s3 import run_emulated_s3
from spark_cec_lab.storage.proxy import Kind, Order, Seen, StorageProxy

WORKLOAD = Workload(Shape.UNIFORM, keys=20_000, updates=5_000, partitions=8)

DELAY_S = 0.05
RETAINED = 10
"""Batches that Spark keeps: its default of 100 would show no deletion in a short run."""

_BUCKET = "bench"
_SDK = {"3.5.0": ("2.35.4", "1.3.1")}
"""By Hadoop's release: the releases of the AWS SDK and of Amazon's analytics accelerator that its S3A is built with."""

_DOLLARS = {
    Kind.PUT: 5e-6, Kind.COPY: 5e-6, Kind.LIST: 5e-6, Kind.OTHER: 5e-6, Kind.GET: 4e-7, Kind.HEAD: 4e-7,
    Kind.DELETE: 0.0, Kind.BULK_DELETE: 0.0,
}  # fmt: skip
"""The price of a request: Amazon's list price of S3 Standard in us-east-1."""

_BY_THE_CLOCK = ("PUT cec/lease", "LIST cec/lease", "GET cec/flush.json", "LIST cec/log")
"""What our agents ask for in a given time, however many batches there are."""

_MONTH_S = 30 * 24 * 3600

_CLOUD = "org.apache.spark:spark-hadoop-cloud_2.13:4.1.1"
"""Spark's module for clouds, of the newest release that has one there. Its file manager links with later ones."""

_NOT_NEEDED = (
    *(f"org.apache.hadoop:hadoop-{each}" for each in ("client-api", "client-runtime", "azure", "huaweicloud")),
    *("org.apache.hadoop:hadoop-cloud-storage", "org.wildfly.openssl:wildfly-openssl", "joda-time:joda-time"),
    *("com.google.cloud.bigdataoss:gcs-connector", "software.amazon.awssdk:bundle"),
    *("com.fasterxml.jackson.core:jackson-databind", "com.fasterxml.jackson.core:jackson-annotations"),
    *("com.fasterxml.jackson.dataformat:jackson-dataformat-cbor", "org.eclipse.jetty:jetty-util"),
    *("org.eclipse.jetty:jetty-util-ajax", "com.squareup.okhttp3:okhttp", "com.squareup.okio:okio"),
)
"""Packages that these bring, and that this benchmark does not use or Spark has already."""


class Manager(Enum):
    """Who writes the checkpoint's files: ours, for Spark's two logs; one request for each file; Spark's manager without
    renames; Spark's default.
    """

    OURS = MANAGER
    ONE_WRITE = ONE_WRITE
    ABORTABLE = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    DEFAULT = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """A provider with a file manager. `write_at` is our setting of that name; empty: its default."""

    provider: Provider
    manager: Manager
    write_at: str = ""

    @property
    def name(self) -> str:
        """For output."""
        manager = f"{self.provider.value}, file manager {self.manager.name.lower().replace('_', '-')}"
        return f"{manager}, writeAt={self.write_at}" if self.write_at else manager


OURS = Variant(Provider.CEC, Manager.OURS)
ASYNC = Variant(Provider.CEC, Manager.OURS, "async")
BEST = (Variant(Provider.ROCKSDB_TUNED, Manager.ONE_WRITE), Variant(Provider.HDFS_ZSTD, Manager.ONE_WRITE))
VARIANTS = (
    OURS,
    ASYNC,
    *BEST,
    Variant(Provider.ROCKSDB_TUNED, Manager.ABORTABLE),
    Variant(Provider.CEC, Manager.DEFAULT),
    Variant(Provider.ROCKSDB, Manager.DEFAULT),
    Variant(Provider.HDFS, Manager.DEFAULT),
)
PROVIDERS = tuple(dict.fromkeys(each.provider for each in VARIANTS))


@dataclass(frozen=True, slots=True)
class Phases:
    """The batches of a run: the first ones, those that are counted, and those with a delay (0: no delay, no kill)."""

    first: int
    counted: int
    delayed: int = 0

    @property
    def last(self) -> int:
        """The last batch before the restart."""
        return self.first + self.counted + self.delayed - 1


MAIN, WIDE = Phases(30, 40, 10), Phases(5, 10)
AGED_BATCHES = 1000
_EARLY = 100
"""The long run counts the requests of so many batches, after as many batches and at its end."""

WIDE_WORKLOAD = replace(WORKLOAD, partitions=200)
AGED_WORKLOAD = Workload(Shape.UNIFORM, keys=3_200, updates=640, partitions=32)
_AGED_RETAINED = 100


@dataclass(frozen=True, slots=True)
class Must:
    """A row of the table of docs/storage.md: a measure, ours over RocksDB's at its best. `of`: which of ours.

    `alone`: the measure is a ratio itself.
    """

    row: str
    measure: str
    must: float
    aim: float
    of: Variant = OURS
    alone: bool = False


MUSTS = (
    Must("requests of a batch, 8 partitions", "requests_per_batch", 1 / 2, 1 / 5),
    Must("requests of a batch, 200 partitions", "requests_per_batch_200", 1 / 10, 1 / 30),
    Must("time of a batch, 50 ms a request", "batch_ms_delayed", 0.7, 0.4),
    Must("the same with writeAt=async", "batch_ms_delayed", 0.7, 0.3, ASYNC),
    Must("restart after SIGKILL, 50 ms a request", "restart_s_delayed", 0.8, 0.4),
    Must("objects after 1,000 batches, 32 partitions", "objects_aged", 1 / 10, 1 / 30),
    Must("requests of late batches over those of early ones", "late_over_early_aged", 1.05, 1.0, alone=True),
)

_Found = dict[Variant, dict[int, dict[str, float]]]


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of a run: its proxy, and a function that counts its objects."""

    proxy: StorageProxy
    count_objects: Callable[[], int]


_Measure = Callable[[JobSpec, Path, _Server, Say], tuple[dict[str, float], dict[str, Any]]]
"""Runs a query, and answers its numbers and details."""


def storage(
    spec: JobSpec, providers: Sequence[Provider], rounds: int, work: Path, write: Callable[[dict[str, Any]], None],
    say: Say, *, quick: bool = False, long: int | None = None, partitions: int | None = None,
) -> None:  # fmt: skip
    """Runs each variant of the providers once in each round; writes a line for each run, and a summary.

    `quick` leaves out the long runs. `long`: only those, of so many batches. `partitions`: of them, else 32. Raises
    `BenchError`.
    """
    variants = tuple(each for each in VARIANTS if each.provider in providers)
    compared = tuple(each for each in variants if each in (OURS, BEST[0]))
    packages = _find_packages()
    jar, one_write = str(shutil.copy(jar_path(), work)), build_one_write(work)
    found: _Found = {each: {} for each in variants}
    aged = replace(AGED_WORKLOAD, partitions=partitions or AGED_WORKLOAD.partitions)

    def run(variant: Variant, number: int, workload: Workload, suffix: str, retained: int, measure: _Measure) -> None:
        say_of = after(f"round {number + 1}/{rounds}, {variant.name}{suffix}: ", say)
        placed = replace(spec, provider=variant.provider, jar=jar, workload=workload)
        values, details = _run_one(placed, variant, retained, packages, one_write, work / "run", measure, say_of)
        named = {f"{key}{suffix}": value for key, value in values.items()}
        found[variant].setdefault(number, {}).update(named)
        line = {"task": "storage", "provider": variant.provider.value, "manager": variant.manager.name.lower()}
        write({**line, "write_at": variant.write_at or "default", "round": number, **named, **details})

    for number in range(rounds):
        for variant in () if long else in_turn(variants, number):
            run(variant, number, spec.workload, "", RETAINED, partial(_measure, phases=MAIN))
        for variant in in_turn(compared, number):
            if not long:
                run(variant, number, WIDE_WORKLOAD, "_200", RETAINED, partial(_measure, phases=WIDE))
            if not quick:
                last = partial(_measure_long, batches=long or AGED_BATCHES)
                run(variant, number, aged, "_aged", _AGED_RETAINED, last)
    write({"summary": "storage", "medians": _summarize(found), "musts": _judge(found)})


def _summarize(found: _Found) -> dict[str, dict[str, float]]:
    """The medians of each variant over the rounds, by its name."""
    return {variant.name: medians(list(rounds.values())) for variant, rounds in found.items()}


def _judge(found: _Found) -> list[dict[str, Any]]:
    """Each must that was measured: the ratios of ours over RocksDB's, median, lowest and highest.

    Of the managers that RocksDB ran with the best one counts, for each measure by itself.
    """
    peers = [rounds for variant, rounds in found.items() if variant.provider is BEST[0].provider]
    rows: list[dict[str, Any]] = []
    for each in MUSTS:
        ratios = [
            ours[each.measure] / min(theirs)
            for number, ours in found.get(each.of, {}).items()
            if each.measure in ours and (theirs := [1.0] if each.alone else _find(peers, number, each.measure))
        ]
        if ratios:
            median = statistics.median(ratios)
            spread = {"ratio": median, "lowest": min(ratios), "highest": max(ratios)}
            rows.append({"row": each.row, **spread, "must": each.must, "aim": each.aim, "holds": median <= each.must})
    return rows


def _find(peers: Sequence[Mapping[int, Mapping[str, float]]], number: int, measure: str) -> list[float]:
    """What the peers have of a measure in a round."""
    return [rounds[number][measure] for rounds in peers if measure in rounds.get(number, {})]


def _run_one(
    spec: JobSpec, variant: Variant, retained: int, packages: Mapping[str, str], one_write: Path, home: Path,
    measure: _Measure, say: Say,
) -> tuple[dict[str, float], dict[str, Any]]:
    home.mkdir()
    try:
        with _run_server() as server:
            conf = {
                **packages, **_settings_of(server.proxy.url),
                "spark.sql.streaming.minBatchesToRetain": str(retained), PREFIX + "index.path": str(home / "index"),
                **_manager_conf(variant),
                **dict(spec.conf),
            }  # fmt: skip
            if variant.provider.is_ours:
                conf |= {"spark.jars": spec.jar, PYTHON_KEY: sys.executable}
            if variant.write_at:
                conf[PREFIX + "writeAt"] = variant.write_at
            if variant.manager is Manager.ONE_WRITE:
                conf |= {"spark.jars": str(one_write)}
            placed = replace(
                spec, checkpoint=f"s3a://{_BUCKET}/{uuid.uuid4().hex}", scratch=str(home / "scratch"),
                conf=tuple(conf.items()),
            )  # fmt: skip
            return measure(placed, home, server, say)
    finally:
        shutil.rmtree(home)


def _manager_conf(variant: Variant) -> dict[str, str]:
    if variant.manager is Manager.DEFAULT:
        return {}
    fast = {"spark.hadoop.fs.s3a.performance.flags": "create,delete,mkdir"}
    return {MANAGER_KEY: variant.manager.value, **({} if variant.manager is Manager.OURS else fast)}


def _measure(
    spec: JobSpec, home: Path, server: _Server, say: Say, *, phases: Phases
) -> tuple[dict[str, float], dict[str, Any]]:
    proxy, count_objects = server.proxy, server.count_objects
    counted: Sequence[Seen] = ()
    before, objects, began, took_s, quick, slow = 0, 0, 0.0, 0.0, list[float](), list[float]()
    # With a delay the run has no last batch: the kill comes in the middle of one.
    with started(replace(spec, last_batch=None if phases.delayed else phases.last), home) as child:
        for event in child.events(SILENCE_S):
            batch, ms = int(event["batch"]), float(event["batch_ms"])
            say(f"batch {batch}: {ms:.0f} ms")
            if batch == phases.first - 1:
                before, began = len(proxy.seen()), time.monotonic()
            elif phases.first <= batch < phases.first + phases.counted:
                quick.append(ms)
            elif batch > phases.first + phases.counted:  # the one before began without the delay
                slow.append(ms)
            if batch == phases.first + phases.counted - 1:
                counted, took_s = proxy.seen()[before:], time.monotonic() - began
                objects = count_objects()
                proxy.decide = lambda _: Order(delay_s=DELAY_S)
            if batch == phases.last:
                time.sleep(ms / 2000.0)
                break
    values = {
        "requests_per_batch": len(counted) / phases.counted,
        "batch_ms": statistics.median(quick),
        "dollars_per_month": _count_dollars(counted, phases.counted, took_s),
        "objects": float(objects),
    }
    if phases.delayed:
        say("killed; starting again")
        values |= {"batch_ms_delayed": statistics.median(slow), "restart_s_delayed": _restart(spec, phases, home)}
    return values, {"by_kind": _count_kinds(counted, phases.counted)}


def _measure_long(
    spec: JobSpec, home: Path, server: _Server, say: Say, *, batches: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Counts the requests of early and of late batches, the objects that are left, and what a restart elsewhere reads.

    The restart has no index of ours, as on another machine.
    """
    proxy = server.proxy
    marks = dict.fromkeys((_EARLY - 1, 2 * _EARLY - 1, batches - 1 - _EARLY, batches - 1), (0, 0.0))
    with started(replace(spec, last_batch=batches - 1), home) as child:
        for event in child.events(SILENCE_S):
            batch = int(event["batch"])
            if batch % _EARLY == _EARLY - 1:
                say(f"batch {batch}: {float(event['batch_ms']):.0f} ms")
            if batch in marks:
                marks[batch] = len(proxy.seen()), time.monotonic()
            if batch == batches - 1:
                break
    begin, early, late, end = marks.values()
    seen = proxy.seen()
    parts = {"early": _Part(seen, begin, early), "late": _Part(seen, late, end)}
    objects = float(server.count_objects())
    moved = (*spec.conf, (PREFIX + "index.path", str(home / "other-index")))
    with started(replace(spec, last_batch=batches, conf=moved), home) as child:
        list(child.events(SILENCE_S))
    restart = proxy.seen()[len(seen):]
    values = {
        "objects": objects,
        "restart_requests": float(len(restart)),
        **{f"{name}_requests_per_batch": part.by_batch for name, part in parts.items()},
        **{f"{name}_requests_per_s_by_clock": part.by_clock for name, part in parts.items()},
        "late_over_early": parts["late"].by_batch / parts["early"].by_batch,
    }
    return values, {
        "batches": batches,
        **{f"by_kind_{name}": _count_kinds(part.seen, _EARLY) for name, part in parts.items()},
        "by_kind_restart": _count_kinds(restart, 1),
    }


class _Part:
    """`_EARLY` batches of a long run, between two marks: numbers of a request, and times in seconds.

    `by_batch`: requests of a batch. `by_clock`: requests of a second that come however many batches there are.
    """

    def __init__(self, seen: Sequence[Seen], begin: tuple[int, float], end: tuple[int, float]) -> None:
        self.seen = seen[begin[0] : end[0]]
        clocked = sum(map(_is_by_clock, self.seen))
        self.by_batch = (len(self.seen) - clocked) / _EARLY
        self.by_clock = clocked / (end[1] - begin[1])


def _restart(spec: JobSpec, phases: Phases, home: Path) -> float:
    """Seconds from the call of `start()` to the end of the first batch that was not committed before the kill."""
    with started(replace(spec, last_batch=phases.last + 1), home) as child:
        return float(list(child.events(SILENCE_S))[-1]["since_start_s"])


def _count_dollars(seen: Sequence[Seen], batches: int, took_s: float) -> float:
    """The price of the requests of a month with one batch in each second, by those of `batches` in `took_s` seconds."""
    dollars = 0.0
    for each in seen:
        dollars += _DOLLARS[each.request.kind] * _MONTH_S / (took_s if _is_by_clock(each) else batches)
    return dollars


def _is_by_clock(seen: Seen) -> bool:
    return f"{seen.request.kind.value} {_place_of(seen.request.key)}" in _BY_THE_CLOCK


def _count_kinds(seen: Sequence[Seen], batches: int) -> dict[str, float]:
    """Requests of a batch by what they ask for, and of what."""
    kinds = Counter(f"{each.request.kind.value} {_place_of(each.request.key)}" for each in seen)
    return {kind: count / batches for kind, count in sorted(kinds.items())}


def _place_of(key: str) -> str:
    """The part of a checkpoint that a key belongs to: `offsets`, `commits`, `state`, `cec/log`."""
    parts = key.split("/")[1:]
    return "/".join(parts[:2]) if parts[:1] == ["cec"] else "/".join(parts[:1])


def _settings_of(endpoint: str) -> dict[str, str]:
    settings = {
        "endpoint": endpoint, "access.key": "bench", "secret.key": "bench", "endpoint.region": "us-east-1",
        "path.style.access": "true",
    }  # fmt: skip
    return {f"spark.hadoop.fs.s3a.{key}": value for key, value in settings.items()}


@contextmanager
def _run_server() -> Iterator[_Server]:
    """An S3 server with a bucket behind a proxy."""
    with ExitStack() as stack:
        try:
            import boto3

            place = stack.enter_context(run_emulated_s3())
        except ImportError as error:
            raise BenchError(f"{error}: pip install 'moto[server]'") from None
        with urllib.request.urlopen(f"http://{place}/moto-api/reset", data=b""):
            pass  # the servers of one process have their objects in common
        client = boto3.client(
            "s3", endpoint_url=f"http://{place}", aws_access_key_id="k", aws_secret_access_key="s",
            region_name="us-east-1",
        )  # fmt: skip
        client.create_bucket(Bucket=_BUCKET)

        def count_objects() -> int:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=_BUCKET)
            return sum(len(page.get("Contents", [])) for page in pages)

        yield _Server(stack.enter_context(StorageProxy(place)), count_objects)


def _find_packages() -> dict[str, str]:
    """Spark's settings that bring S3A, with the modules of the AWS SDK that it loads: its bundle has 686 MB."""
    names = [path.name for path in Path(spark_jars().directory).glob("hadoop-client-api-*.jar")]
    hadoop = names[0].removeprefix("hadoop-client-api-").removesuffix(".jar") if names else "none"
    if hadoop not in _SDK:
        raise BenchError(f"this Spark brings Hadoop {hadoop}, and the benchmark knows S3A of {', '.join(_SDK)}")
    sdk, accelerator = _SDK[hadoop]
    packages = [
        _CLOUD,
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        *(f"software.amazon.awssdk:{module}:{sdk}" for module in ("s3", "s3-transfer-manager", "sts")),
        f"software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:{accelerator}",
    ]
    return {"spark.jars.packages": ",".join(packages), "spark.jars.excludes": ",".join(_NOT_NEEDED)}
