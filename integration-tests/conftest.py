"""Fixtures of the integration tests: one Spark session for all that need no kill, and the undisturbed results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LOG = "stderr.log"
_OURS = [str(ROOT / "python"), str(HERE), str(ROOT / "support")]
sys.path[:0] = [path for path in _OURS if path not in sys.path]

from pyspark.sql import SparkSession  # noqa: E402

from cec_it import kafka_session  # noqa: E402
from cec_it.class_archive import share_classes  # noqa: E402
from cec_it.driver import session_builder  # noqa: E402
from cec_it.long_tests import find_unknown, is_long, part_of  # noqa: E402
from cec_it.references import References  # noqa: E402

share_classes()

LONGEST = ("test_kill_matrix", "test_pipeline", "test_running_pipeline", "test_bench", "test_cluster", "test_kills")
"""Files that take minutes: begun first, so that none of them is what everyone waits for at the end."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What shares fixtures stays together: a file, of the kill matrix the queries of one driver."""
    unknown = find_unknown(item.nodeid for item in items)
    if unknown and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"cec_it.long_tests names {unknown[0]}, which no test is called")
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        group = params.get("group", "") if item.path.stem == "test_kill_matrix" else ""
        part = part_of(item.nodeid, group)
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
        elif part is not None and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.more)
            item.add_marker(f"part{part}")
        item.add_marker(pytest.mark.xdist_group(f"{item.path.relative_to(ROOT)} {group}".strip()))
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups that are not kept together cost a third of the time, without a word: each worker makes their fixtures."""
    apart = [item.nodeid for item in session.items if "@" not in item.nodeid]
    if session.config.getoption("loadgroup", False) and apart:
        raise pytest.UsageError(f"pytest-xdist does not group {apart[0]}: which release goes with this pytest?")


@pytest.fixture(scope="session", autouse=True)
def _path_of_programs() -> Iterator[None]:
    """Programs that tests start find ours, also if no test before them has made a session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(_OURS))
        yield


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the CEC provider. Use `newSession()` to set confs: they must not leak into other tests."""
    with_kafka = any(HERE / "kafka" in item.path.parents for item in request.session.items)
    scratch = tmp_path_factory.mktemp("spark")
    saved = dict(os.environ)
    os.environ.update(PYSPARK_PYTHON=sys.executable, TMPDIR=str(scratch))
    with _standard_error_into(scratch / LOG):
        builder = session_builder(scratch, "local[2]")
        session = (kafka_session.with_connector(builder) if with_kafka else builder).getOrCreate()
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture(scope="session")
def spark_log(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that holds what the session's JVM, agent and workers write to standard error."""
    return next(tmp_path_factory.getbasetemp().glob(f"spark*/{LOG}"))


@contextmanager
def _standard_error_into(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile have the file as their standard error for good."""
    ours = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


@pytest.fixture(scope="session")
def references(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> References:
    """Results of undisturbed runs with Spark's own provider."""
    return References(spark, tmp_path_factory.mktemp("references"))
