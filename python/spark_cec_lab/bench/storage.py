"""`cec bench storage`: requests to an object store, and the time of a batch when each request takes long.

The store is an emulated S3 (moto) on loopback, behind a proxy that counts and delays. Each run has three phases: its
first batches, batches whose requests are counted, and batches whose every request takes `DELAY_S` longer.

Our checkpoint file manager serves Spark's two logs. The peers write their state files through Spark's default manager
in each variant, so this is no comparison with a peer at its best: that has a manager without renames for these, too.
"""

from __future__ import annotations

import logging
import shutil
import statistics
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spark_cec.session import MANAGER, MANAGER_KEY, PYTHON_KEY, jar_path
from spark_cec.settings import PREFIX
from spark_cec.toolchain import spark_jars
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import SILENCE_S, Say, after, started
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.providers import Provider, in_turn
from spark_cec_lab.bench.ratios import medians
from spark_cec_lab.bench.workloads import Shape, Workload
from spark_cec_lab.storage.proxy import Order, Seen, StorageProxy

WORKLOAD = Workload(Shape.UNIFORM, keys=20_000, updates=5_000, partitions=8)

DELAY_S = 0.05
RETAINED = 10
"""Batches that Spark keeps: its default of 100 would show no deletion in a short run."""

_FIRST, _COUNTED, _DELAYED = 30, 40, 10
_BUCKET = "bench"
_SDK = {"3.5.0": ("2.35.4", "1.3.1")}
"""By Hadoop's release: the releases of the AWS SDK and of Amazon's analytics accelerator that its S3A is built with."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A provider, and whether Spark's logs are written by our checkpoint file manager."""

    provider: Provider
    has_manager: bool

    @property
    def name(self) -> str:
        """For output."""
        return f"{self.provider.value}, {'our' if self.has_manager else 'default'} file manager"


VARIANTS = (
    Variant(Provider.CEC, has_manager=True),
    Variant(Provider.ROCKSDB_ZSTD, has_manager=True),
    Variant(Provider.HDFS_ZSTD, has_manager=True),
    Variant(Provider.CEC, has_manager=False),
    Variant(Provider.ROCKSDB, has_manager=False),
    Variant(Provider.HDFS, has_manager=False),
)
PROVIDERS = tuple(dict.fromkeys(each.provider for each in VARIANTS))


def storage(
    spec: JobSpec, providers: Sequence[Provider], rounds: int, work: Path, write: Callable[[dict[str, Any]], None],
    say: Say,
) -> None:  # fmt: skip
    """Runs each variant of the providers once in each round; writes a line for each run, and a summary.

    Raises `BenchError`.
    """
    variants = tuple(each for each in VARIANTS if each.provider in providers)
    packages = _find_packages()
    jar = str(shutil.copy(jar_path(), work))
    found: dict[Variant, dict[int, dict[str, float]]] = {each: {} for each in variants}
    for number in range(rounds):
        for variant in in_turn(variants, number):
            name = f"round {number + 1}/{rounds}, {variant.name}: "
            placed = replace(spec, provider=variant.provider, jar=jar)
            values, details = _run_one(placed, variant, packages, work / "run", after(name, say))
            found[variant][number] = values
            line = {"task": "storage", "provider": variant.provider.value, "our_manager": variant.has_manager}
            write({**line, "round": number, **values, **details})
    write({"summary": "storage", "medians": _summarize(found)})


def _summarize(found: Mapping[Variant, Mapping[int, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The medians of each variant over the rounds, by its name."""
    return {variant.name: medians(list(rounds.values())) for variant, rounds in found.items()}


def _run_one(
    spec: JobSpec, variant: Variant, packages: Mapping[str, str], home: Path, say: Say
) -> tuple[dict[str, float], dict[str, Any]]:
    home.mkdir()
    try:
        with _run_server() as (proxy, count_objects):
            conf = {
                **packages, **_settings_of(proxy.url),
                "spark.sql.streaming.minBatchesToRetain": str(RETAINED), PREFIX + "index.path": str(home / "index"),
                **({MANAGER_KEY: MANAGER} if variant.has_manager else {}),
                **dict(spec.conf),
            }  # fmt: skip
            if variant.has_manager or variant.provider.is_ours:  # the manager is in our jar, whatever keeps the state
                conf |= {"spark.jars": spec.jar, PYTHON_KEY: sys.executable}
            last = _FIRST + _COUNTED + _DELAYED - 1
            placed = replace(
                spec, checkpoint=f"s3a://{_BUCKET}/{uuid.uuid4().hex}", scratch=str(home / "scratch"),
                conf=tuple(conf.items()), last_batch=last,
            )  # fmt: skip
            return _measure(placed, home, proxy, count_objects, say)
    finally:
        shutil.rmtree(home)


def _measure(
    spec: JobSpec, home: Path, proxy: StorageProxy, count_objects: Callable[[], int], say: Say
) -> tuple[dict[str, float], dict[str, Any]]:
    counted: Sequence[Seen] = ()
    before, objects, quick, slow = 0, 0, list[float](), list[float]()
    with started(spec, home) as child:
        for event in child.events(SILENCE_S):
            batch, ms = int(event["batch"]), float(event["batch_ms"])
            say(f"batch {batch}: {ms:.0f} ms")
            if batch == _FIRST - 1:
                before = len(proxy.seen())
            elif _FIRST <= batch < _FIRST + _COUNTED:
                quick.append(ms)
            elif batch > _FIRST + _COUNTED:  # the one before began without the delay
                slow.append(ms)
            if batch == _FIRST + _COUNTED - 1:
                counted = proxy.seen()[before:]
                objects = count_objects()
                proxy.decide = lambda _: Order(delay_s=DELAY_S)
    values = {
        "requests_per_batch": len(counted) / _COUNTED,
        "batch_ms": statistics.median(quick),
        "batch_ms_delayed": statistics.median(slow),
        "objects": float(objects),
    }
    return values, {"by_kind": _count_kinds(counted)}


def _count_kinds(seen: Sequence[Seen]) -> dict[str, float]:
    """Requests of a batch by what they ask for, and of what."""
    kinds = Counter(f"{each.request.kind.value} {_place_of(each.request.key)}" for each in seen)
    return {kind: count / _COUNTED for kind, count in sorted(kinds.items())}


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
def _run_server() -> Iterator[tuple[StorageProxy, Callable[[], int]]]:
    """An S3 server with a bucket behind a proxy, and a function that counts the objects there."""
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        raise BenchError(f"{error}: pip install 'moto[server]'") from None
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would log each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", aws_access_key_id="k", aws_secret_access_key="s",
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket=_BUCKET)

    def count_objects() -> int:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=_BUCKET)
        return sum(len(page.get("Contents", [])) for page in pages)

    try:
        with StorageProxy(f"{host}:{port}") as proxy:
            yield proxy, count_objects
    finally:
        server.stop()


def _find_packages() -> dict[str, str]:
    """Spark's settings that bring S3A, with the modules of the AWS SDK that it loads: its bundle has 686 MB."""
    names = [path.name for path in Path(spark_jars().directory).glob("hadoop-client-api-*.jar")]
    hadoop = names[0].removeprefix("hadoop-client-api-").removesuffix(".jar") if names else "none"
    if hadoop not in _SDK:
        raise BenchError(f"this Spark brings Hadoop {hadoop}, and the benchmark knows S3A of {', '.join(_SDK)}")
    sdk, accelerator = _SDK[hadoop]
    packages = [
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        *(f"software.amazon.awssdk:{module}:{sdk}" for module in ("s3", "s3-transfer-manager", "sts")),
        f"software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:{accelerator}",
    ]
    return {"spark.jars.packages": ",".join(packages), "spark.jars.excludes": "software.amazon.awssdk:bundle"}
