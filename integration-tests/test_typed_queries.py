"""Typed queries of Scala: what is decided for them, and that they see their rows as with Spark's own store."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from cec_it import local
from spark_cec.session import jar_path
from spark_cec.settings import PREFIX
from spark_cec.toolchain import SparkJars, compile_sources, java_command, spark_jars

HERE = Path(__file__).resolve().parent
SEED = int(os.environ.get("CEC_TEST_SEED", "4711"))
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
DECISIONS = {
    # query: words of the reason why it is eager; none if it is deferred
    "flatMap": "",
    "map": "",
    "mapPartitions": "it is fed by MapPartitions, which is not known",
    "reduceGroups": "is not known to be independent of the order of rows",
    "aggregator": "is not known to be independent of the order of rows",
    "state": "functions.orderFree=on",
    "initial state": "functions.orderFree=on",
}


Answers = dict[tuple[str, str, str], list[str]]


def compiled(out: Path) -> str:
    """Class path of the queries, Spark and the shim."""
    out.mkdir()
    found = spark_jars()
    jars = SparkJars(found.directory, found.version, found.scala)
    compile_sources(jars, [HERE / "typed" / "TypedQueries.scala"], [], out, quiet=True)
    return os.pathsep.join([str(out), str(found.directory / "*"), jar_path()])


def write_events(root: Path) -> None:
    """Two files of events, in two orders; zeros of both signs."""
    for order, shuffle in (("first", 1), ("second", 2)):
        (root / order).mkdir(parents=True)
        for number in range(2):
            dice = random.Random(SEED + number)
            lines = [
                json.dumps({"key": dice.randrange(3), "x": dice.choice([0.0, -0.0, 2.5]), "seq": dice.randrange(4)})
                for _ in range(50)
            ]
            random.Random(shuffle + number).shuffle(lines)
            path = root / order / f"{number}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The rows of each query, by its name, the order of its input, and the store."""
    root = tmp_path_factory.mktemp("typed")
    write_events(root / "events")
    opened = [part for package in OPENED for part in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    command = [java_command(), "-Xmx768m", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={root}", *opened]
    conf = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.cec.CecStateStoreProvider",
        "spark.local.dir": str(root),
        PREFIX + "python": sys.executable,
    }
    words = [str(root), str(root / "events"), *(f"{key}={value}" for key, value in conf.items())]
    run = subprocess.run(
        [*command, "-cp", compiled(root / "classes"), "org.apache.spark.sql.cec.testing.TypedQueries", *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(HERE.parent / "python"), "TMPDIR": str(root)},
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    for query in DECISIONS:
        decided = local.query_json(root / f"{query.replace(' ', '-')}-first-cec")
        wanted = "eager" if DECISIONS[query] else "deferred"
        assert decided["mode"] == wanted and DECISIONS[query] in str(decided["reason"]), decided
    return {(each["query"], each["order"], each["store"]): each["rows"] for each in found}


@pytest.mark.parametrize("query", DECISIONS)
def test_rows_come_as_with_sparks_own_store(answers: Answers, query: str) -> None:
    for order in ("first", "second"):
        assert answers[query, order, "cec"] == answers[query, order, "rocksdb"], f"seed {SEED}"
        assert len(answers[query, order, "cec"]) >= 4


@pytest.mark.parametrize("query", ["state", "initial state", "reduceGroups"])
def test_these_queries_depend_on_the_order_of_rows(answers: Answers, query: str) -> None:
    """Else the test above would prove nothing."""
    assert answers[query, "first", "rocksdb"] != answers[query, "second", "rocksdb"], f"seed {SEED}"


def test_an_initial_state_is_seen(answers: Answers) -> None:
    assert answers["state", "first", "cec"] != answers["initial state", "first", "cec"]
