"""A query with its log, or its whole checkpoint, on an S3 server (moto, on loopback): SIGKILLs, restarts, requests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cec_it.checkpoints import hadoop_of, settings_of
from cec_it.fed_pages import INPUTS, feeding
from cec_it.killed_jobs import (
    BATCHES,
    TWO_EXECUTORS,
    finish,
    make_drivers,
    make_jobs,
    rows_of,
    run_disturbed,
    run_two_drivers,
    run_with_dying_executors,
    start,
    stderr_of,
)
from cec_it.pipelines import CASES, read_board
from cec_it.replicated_shop import Shop
from cec_it.s3a import SECRET, S3Server, fetch_s3a, run_server
from cec_it.totals_job import CEC, MANAGER, Job
from spark_cec.session import jar_path
from spark_cec_lab.storage.proxy import PASS, Order, StorageProxy

ONE_CONF_LINE = {"spark.sql.streaming.checkpointFileManagerClass": MANAGER}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with run_server() as running:
        running.client().create_bucket(Bucket="query")
        yield running


def secrets_in(job: Job) -> list[Path]:
    return [path for path in Path(job.root).rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def keys_of(server: S3Server, prefix: str) -> list[str]:
    return [each["Key"] for each in server.client().list_objects_v2(Bucket="query", Prefix=prefix).get("Contents", [])]


def test_a_killed_query_with_its_log_on_s3_is_exact_and_its_keys_are_shown_nowhere(
    server: S3Server, tmp_path: Path
) -> None:
    conf = {**server.conf(), CEC + "log.path": "s3a://query/logs of a query"}
    undisturbed, killed = make_jobs(tmp_path, None, conf, doubles=False)
    assert start(undisturbed).wait(240) == 0
    run_disturbed(killed)
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    assert any("/segments/" in key for key in keys_of(server, "logs of a query"))
    assert secrets_in(killed) == [], "the secret is in no file of the query, nor in what its processes print"


@pytest.mark.parametrize("doubles", [False, True], ids=["integers", "doubles"])
def test_a_killed_query_with_its_checkpoint_on_s3_is_exact(doubles: bool, server: S3Server, tmp_path: Path) -> None:
    place = f"doubles-{doubles}"
    conf = {**server.conf(), "spark.jars": fetch_s3a(), **ONE_CONF_LINE, CEC + "writeAt": "batch"}
    undisturbed, killed = make_jobs(tmp_path, f"s3a://query/{place}", conf, doubles=doubles)
    assert start(undisturbed).wait(240) == 0
    before = len(server.proxy.seen())
    run_disturbed(killed, probe=True)
    assert rows_of(killed) == rows_of(undisturbed) and len(rows_of(killed)) == BATCHES
    probed = json.loads(Path(killed.root, "probe.json").read_text())
    assert probed == {
        "created": {"0": "org.apache.hadoop.fs.FileAlreadyExistsException", "900": "created"},
        "given_up": "created",
        "there": ["0", "900"],
        "left": ["0"],
    }
    assert secrets_in(killed) == []
    seen = [each.request for each in server.proxy.seen()[before:] if each.request.bucket == "query"]
    entry = f"{place}/commits/5"
    of_one_entry = Counter((each.kind.value, each.is_conditional) for each in seen if each.key == entry)
    assert of_one_entry[("PUT", True)] == 1 and of_one_entry[("COPY", False)] == 0, of_one_entry
    assert not [each for each in seen if each.key.startswith(f"{place}/commits/.")], "no temporary file"
    batches = sum(each.kind.value == "PUT" and each.key.startswith(f"{place}/commits/") for each in seen)
    segments = {each.key for each in seen if each.kind.value == "PUT" and "/segments/" in each.key}
    # A start may write flushes of its replay, one for each store, and a report of each load.
    assert len(segments) <= batches + 3 * 2 * 2, f"{len(segments)} objects for {batches} batches of two stores"


def settings_on(server: S3Server) -> dict[str, str]:
    return {**server.conf(), "spark.jars": fetch_s3a(), **ONE_CONF_LINE}


@pytest.mark.long
@pytest.mark.parametrize("place", ["its logs", "all of it"])
def test_a_pipeline_on_s3_answers_without_an_input_that_is_away(place: str, server: S3Server, tmp_path: Path) -> None:
    """The keys stand in Spark's settings alone, also for the pipeline's home."""
    CASES["away"].feed(tmp_path / "in", 7)
    logs = {**server.conf(), CEC + "log.path": "s3a://query/logs of a pipeline"}
    conf = logs if place == "its logs" else {
        **settings_on(server), "cec.test.home": "s3a://query/pipeline", "spark.jars": f"{jar_path()},{fetch_s3a()}",
    }  # fmt: skip
    command = [sys.executable, "-m", "cec_it.pipeline_driver", "away", str(tmp_path), "local[2]"]
    environment = {**os.environ, "CEC_CONF": json.dumps(conf), "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "driver.log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=300, check=False)
    assert done.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert read_board(tmp_path)[0] == CASES["away"].expected(tmp_path / "in")
    assert "answers tentatively, in epoch 1" in (tmp_path / "driver.log").read_text()


@pytest.mark.long
def test_of_two_drivers_one_goes_on(server: S3Server, tmp_path: Path) -> None:
    """One is paused and continued."""
    run_two_drivers(*make_drivers(tmp_path, "s3a://query/two", settings_on(server)))


@pytest.mark.long
def test_a_batch_whose_executor_dies_before_it_writes_does_not_count(server: S3Server, tmp_path: Path) -> None:
    """On the first restart, and on the second."""
    whole, killed = make_jobs(tmp_path, "s3a://query/dying", settings_on(server), both=TWO_EXECUTORS)
    assert finish(whole) == 0, stderr_of(whole)[-3000:]
    with settings_of(hadoop_of(server.conf())):
        run_with_dying_executors(killed)
    assert rows_of(killed) == rows_of(whole) and len(rows_of(whole)) == BATCHES


@pytest.mark.long
def test_a_query_of_many_batches_deletes_old_entries_and_is_exact_after_a_kill(
    server: S3Server, tmp_path: Path
) -> None:
    """Spark keeps 100 entries of each log. They are deleted 50 at a time, and after a kill the rest of them."""
    batches, first_kill, retained, together = 240, 170, 100, 50
    whole, killed = make_jobs(tmp_path, "s3a://query/many", settings_on(server), batches=batches)
    assert finish(whole) == 0, stderr_of(whole)[-3000:]
    run_disturbed(killed, (first_kill, first_kill + 10))
    assert rows_of(killed) == rows_of(whole) and len(rows_of(whole)) == batches
    for log in ("offsets", "commits"):
        names = [key.rpartition("/")[2] for key in keys_of(server, f"many/{log}/")]
        kept = sorted(int(name) for name in names if name.isdigit())
        assert kept == list(range(kept[0], kept[-1] + 1)) and kept[-1] >= batches - 1, kept
        assert retained <= len(kept) <= retained + together + 2, f"{len(kept)} entries of {log}"


@pytest.mark.long
def test_replicas_with_their_home_on_s3(server: S3Server, spark: SparkSession, tmp_path: Path) -> None:
    """An input goes away, and the driver that runs the sink is killed. The other one knows after its lease's time."""
    jars = {"spark.jars": f"{jar_path()},{fetch_s3a()}", "cec.test.home": "s3a://query/replicas"}
    conf = {**settings_on(server), **jars}
    with feeding(spark, tmp_path) as feed, Shop(tmp_path, "local[2]", feed, conf) as shop:
        end_s = shop.kill_in_turn("ab")
        shop.stop()
    shop.check(end_s)


@pytest.mark.long
def test_a_replica_that_is_cut_off_from_the_store_takes_no_part_until_it_is_back(
    server: S3Server, spark: SparkSession, tmp_path: Path
) -> None:
    """It lives, and runs the sink. An input is away meanwhile, and comes back while the replica is still cut off."""
    jars = {"spark.jars": f"{jar_path()},{fetch_s3a()}", "cec.test.home": "s3a://query/cut off"}
    with StorageProxy(server.proxy.upstream) as way, feeding(spark, tmp_path) as feed, Shop(
        tmp_path, "local[2]", feed, {**settings_on(server), **jars}
    ) as shop:
        shop.start("a", conf={**settings_on(S3Server(server.endpoint, way)), **jars})
        shop.await_sinks("a")
        shop.start("b")
        shop.put(5, 25, *INPUTS)
        shop.await_stable()
        shop.put(25, 45, "web")
        shop.await_tentative()
        way.decide = lambda _: Order(refused=True)
        shop.put(45, 75, "web")
        shop.await_sinks("b")
        shop.await_tentative()
        shop.put(25, 75, "app")
        shop.await_stable()
        way.decide = lambda _: PASS
        shop.put(75, 105, *INPUTS)
        shop.await_stable()
        shop.living.pop("b").kill()
        shop.put(105, 125, *INPUTS)
        shop.await_sinks("a")
        end_s = shop.await_stable()
        shop.stop()
    shop.check(end_s)
