"""Executors that unpack a Python environment of their own: their agents run in it, the driver's in the driver's."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from cec_it import cluster, feeds, local, results
from cec_it.cluster import command_of
from cec_it.crashes import driver
from cec_it.driver import FOREACH, Job, Query
from cec_it.references import References

QUERY = Query("count-windows", feeds.RATE, FOREACH)
ROOT = Path(__file__).parents[1]
PYTHON = "./environment/bin/python"
DEADLINE_S = 120.0


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A small environment, packed as `venv-pack` does, that finds our packages where this one has them."""
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    (own,) = home.glob("lib/python*/site-packages")
    (own / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'python'}\n")
    packed = tmp_path / "environment.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(home, ".")
    return packed


@pytest.mark.long
def test_each_jvm_runs_its_agent_in_its_own_python(archive: Path, references: References, tmp_path: Path) -> None:
    run_with(archive, references, tmp_path)


@pytest.mark.long
def test_a_whole_environment_packed_with_venv_pack(references: References, tmp_path: Path) -> None:
    home, packed = tmp_path / "environment", tmp_path / "environment.tar.gz"
    venv.create(home, with_pip=True, symlinks=True)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("spark_cec-*.whl")
    # Without extras: Spark's own Python code comes with Spark, an agent needs no more, and the job itself uses pandas.
    subprocess.run([home / "bin" / "pip", "install", "-q", wheel, "pandas"], check=True)
    subprocess.run([Path(sys.executable).with_name("venv-pack"), "-q", "-p", home, "-o", packed], check=True)
    run_with(packed, references, tmp_path)


def run_with(archive: Path, references: References, tmp_path: Path) -> None:
    """A query on executors that unpack the archive; raises `AssertionError` if an agent runs in another Python."""
    with cluster.running(tmp_path / "cluster", workers=2) as running:
        conf = running.conf() | {"spark.archives": f"{archive}#environment"}
        job = Job(str(tmp_path / "job"), (QUERY,), local.BATCHES, local.ROWS, master=running.url, conf=conf)
        with driver(job, "cec_it.supervised", PYSPARK_PYTHON=PYTHON) as child:
            events = [child.next_event(DEADLINE_S)]
            while events[-1] is not None and events[-1][1]["event"] not in ("batch", "failed"):
                events.append(child.next_event(DEADLINE_S))
            agents = [command_of(pid).split(b"\0")[0] for pid in running.agents()]
            agent_here = command_of(local.agent_of_driver(child.pid)).split(b"\0")[0]
            while events[-1] is not None:
                events.append(child.next_event(DEADLINE_S))
    failures = [event[1] for event in events if event is not None and event[1]["event"] == "failed"]
    assert not failures, failures
    assert agents == [PYTHON.encode()] * len(agents) and agents, "the executors' agents"
    assert agent_here == sys.executable.encode(), "the driver's agent"
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)
