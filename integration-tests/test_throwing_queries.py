"""A source or sink that throws, or is stopped in a call: Spark makes of it what it makes of it with its own store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cec_it import local
from spark_cec.session import jar_path
from spark_cec.settings import PREFIX
from spark_cec.toolchain import SparkJars, compile_sources, java_command, spark_jars

HERE = Path(__file__).resolve().parent
OPENED = ("java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
PLACES = ("toMicroBatchStream", "latestOffset", "planInputPartitions", "sink commit", "createSource", "getOffset")
CLASSES = [f"org.apache.spark.sql.cec.testing.{name}" for name in ("ThrowingTables", "ThrowingSources")]
SOURCES = ",".join(["throwing", "throwing-v1", *CLASSES])

Answers = dict[tuple[str, str, str], list[str]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The causes of each query's end, by the place, what happens there, and the store."""
    root = tmp_path_factory.mktemp("throwing")
    classes = root / "classes"
    classes.mkdir()
    found = spark_jars()
    jars = SparkJars(found.directory, found.version, found.scala)
    compile_sources(jars, [HERE / "typed" / "ThrowingQueries.scala"], [], classes, quiet=True)
    class_path = os.pathsep.join([str(classes), str(found.directory / "*"), jar_path()])
    opened = [part for package in OPENED for part in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    conf = {
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.cec.CecStateStoreProvider",
        "spark.local.dir": str(root),
        PREFIX + "python": sys.executable,
        PREFIX + "sources.replayable": SOURCES,
    }
    run = subprocess.run(
        [
            *[java_command(), "-Xmx768m", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={root}", *opened],
            *["-cp", class_path, "org.apache.spark.sql.cec.testing.ThrowingQueries", str(root)],
            *(f"{key}={value}" for key, value in conf.items()),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(HERE.parent / "python"), "TMPDIR": str(root)},
    )
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert all(each["reached"] for each in lines), lines
    for place in PLACES:
        decided = local.query_json(root / f"{place}-io-cec")
        assert decided["mode"] == "deferred", f"only the sources of deferred queries are wrapped: {decided}"
    return {(each["place"], each["how"], each["store"]): each["causes"] for each in lines}


@pytest.mark.parametrize("place", PLACES)
def test_a_stop_is_no_failure(answers: Answers, place: str) -> None:
    assert answers[place, "wait", "cec"] == answers[place, "wait", "spark"] == []


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_keeps_its_class_and_its_message(answers: Answers, place: str) -> None:
    assert answers[place, "io", "cec"] == answers[place, "io", "spark"] == ["java.io.IOException: the disk is on fire"]
