"""Crashes during the rewind and the replay, as the states on disk that they leave behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from cec_it import feeds, local, results
from cec_it.driver import FOREACH, Job, Query, last_batch
from cec_it.references import References
from purchases_demo.crashes import newest
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.recovery.plan import Recording, save_recording

QUERY = Query("long-windows", feeds.RATE, FOREACH)
STOPPED_AFTER = 6


@dataclass(frozen=True, slots=True)
class Crashed:
    """A job whose query stopped with batches to replay: `rewound_to` is T, `committed` is V."""

    job: Job
    rewound_to: int
    committed: int

    @property
    def checkpoint(self) -> Path:
        return self.job.checkpoint(QUERY)


def restart(spark: SparkSession, crashed: Crashed, root: Path, prepare: Callable[[Path, Crashed], None]) -> Job:
    """Run a copy of the crashed job to its end, after `prepare` has changed its checkpoint."""
    job = replace(crashed.job, root=str(root), life=1)
    shutil.copytree(crashed.job.out(QUERY), job.out(QUERY))
    checkpoint = shutil.copytree(crashed.checkpoint, job.checkpoint(QUERY))
    prepare(checkpoint, crashed)
    own = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(root / "index")})
    local.run_to(own, job, QUERY, last_batch(job))
    return job


@pytest.fixture(scope="module")
def crashed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    root = tmp_path_factory.mktemp("crashed")
    job = Job(str(root / "job"), (QUERY,), local.BATCHES, local.ROWS)
    own = local.session(spark, local.OPENINGS_ONLY, **{"index.path": str(root / "index")})
    local.run_to(own, job, QUERY, STOPPED_AFTER)
    committed = newest(job.checkpoint(QUERY) / "commits")
    once = restart(spark, Crashed(job, -1, committed), root / "once", lambda *_: None)
    report = local.reports(once.checkpoint(QUERY), 1)[0]
    assert report["committed_batch"] == committed
    assert int(str(report["replayed_batches"])) > 2, report
    return Crashed(job, int(str(report["rewound_to"])), committed)


def offsets_of(checkpoint: Path, batch: int) -> tuple[str | None, ...]:
    """Each source's offset in Spark's offset log."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]
    return tuple(None if line == "-" else line for line in lines)


def record(checkpoint: Path, crashed: Crashed) -> None:
    """What a rewind does first."""
    last = newest(checkpoint / "offsets")
    offsets = {batch: offsets_of(checkpoint, batch) for batch in range(crashed.rewound_to + 1, last + 1)}
    save_recording(open_storage(str(checkpoint / "cec")), Recording(crashed.committed, crashed.rewound_to, offsets))


def cut(directory: Path, batches: list[int]) -> None:
    """Remove entries of one of Spark's logs, with their checksums."""
    for batch in batches:
        (directory / str(batch)).unlink()
        for beside in directory.glob(f"*{batch}.crc"):
            if beside.name.strip(".").split(".")[0] == str(batch):
                beside.unlink()


def batches_after(directory: Path, batch: int) -> list[int]:
    return sorted(
        (int(path.name) for path in directory.iterdir() if path.name.isdigit() and int(path.name) > batch), reverse=True
    )


def only_recorded(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)


def commits_cut_from_the_top(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)
    cut(checkpoint / "commits", batches_after(checkpoint / "commits", crashed.rewound_to)[:2])


def commits_cut_from_the_bottom(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)
    cut(checkpoint / "commits", batches_after(checkpoint / "commits", crashed.rewound_to)[-2:])


def commits_cut(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)
    cut(checkpoint / "commits", batches_after(checkpoint / "commits", crashed.rewound_to))


def offsets_cut_from_the_top(checkpoint: Path, crashed: Crashed) -> None:
    commits_cut(checkpoint, crashed)
    cut(checkpoint / "offsets", batches_after(checkpoint / "offsets", crashed.rewound_to + 1)[:2])


def offsets_cut_from_the_bottom(checkpoint: Path, crashed: Crashed) -> None:
    commits_cut(checkpoint, crashed)
    cut(checkpoint / "offsets", batches_after(checkpoint / "offsets", crashed.rewound_to + 1)[-2:])


def all_cut(checkpoint: Path, crashed: Crashed) -> None:
    commits_cut(checkpoint, crashed)
    cut(checkpoint / "offsets", batches_after(checkpoint / "offsets", crashed.rewound_to + 1))


def half_replayed(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)
    middle = (crashed.rewound_to + crashed.committed) // 2
    cut(checkpoint / "commits", batches_after(checkpoint / "commits", middle))
    cut(checkpoint / "offsets", batches_after(checkpoint / "offsets", middle + 1))


def all_but_one_replayed(checkpoint: Path, crashed: Crashed) -> None:
    record(checkpoint, crashed)
    cut(checkpoint / "commits", [crashed.committed])
    cut(checkpoint / "offsets", batches_after(checkpoint / "offsets", crashed.committed))


STATES = [
    only_recorded,
    commits_cut_from_the_top,
    commits_cut_from_the_bottom,
    commits_cut,
    offsets_cut_from_the_top,
    offsets_cut_from_the_bottom,
    all_cut,
    half_replayed,
    all_but_one_replayed,
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_crash_in_a_recovery_is_mended_by_the_same_steps(
    state: Callable[[Path, Crashed], None],
    crashed: Crashed,
    spark: SparkSession,
    references: References,
    tmp_path: Path,
) -> None:
    job = restart(spark, crashed, tmp_path / "job", state)
    report = local.reports(job.checkpoint(QUERY), 1)[0]
    assert (report["committed_batch"], report["rewound_to"]) == (crashed.committed, crashed.rewound_to)
    assert report["digest_ok"] is True
    calls = results.calls_of(job.out(QUERY), 1)
    assert calls[0] == crashed.committed + 1, "the sink is not called for replayed batches"
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)


def test_an_obsolete_recording_is_not_obeyed(
    crashed: Crashed, spark: SparkSession, references: References, tmp_path: Path
) -> None:
    def leave_an_old_one(checkpoint: Path, crashed: Crashed) -> None:
        offsets = {batch: offsets_of(checkpoint, batch) for batch in range(2, 6)}
        wrong = {batch: tuple(json.dumps(0) for _ in each) for batch, each in offsets.items()}
        save_recording(open_storage(str(checkpoint / "cec")), Recording(4, 1, wrong))

    job = restart(spark, crashed, tmp_path / "job", leave_an_old_one)
    report = local.reports(job.checkpoint(QUERY), 1)[0]
    assert (report["committed_batch"], report["rewound_to"]) == (crashed.committed, crashed.rewound_to)
    assert results.last_recorded(job.out(QUERY)) == references.get(QUERY, job)
    assert not (job.checkpoint(QUERY) / "cec" / "replay.json").exists()


def test_a_replay_that_spark_would_forget_in_the_middle_is_refused(
    spark: SparkSession, crashed: Crashed, tmp_path: Path
) -> None:
    job = replace(crashed.job, root=str(tmp_path / "job"), life=1)
    checkpoint = shutil.copytree(crashed.checkpoint, job.checkpoint(QUERY))
    before = _contents(checkpoint)
    own = local.session(spark, local.OPENINGS_ONLY, **{"spark.sql.streaming.minBatchesToRetain": "2"})
    with pytest.raises(
        AnalysisException, match=r"minBatchesToRetain=2 is too few for this start.*Set it to at least \d"
    ):
        local.run_to(own, job, QUERY, last_batch(job))
    assert _contents(checkpoint) == before


@pytest.mark.parametrize("log", ["offsets", "commits"])
def test_a_rewind_to_a_batch_that_spark_forgot_is_refused(
    log: str, spark: SparkSession, crashed: Crashed, tmp_path: Path
) -> None:
    """As when `minBatchesToRetain` was too low once: Spark could not go on from there, and the way back was cut."""
    job = replace(crashed.job, root=str(tmp_path / "job"), life=1)
    checkpoint = shutil.copytree(crashed.checkpoint, job.checkpoint(QUERY))
    cut(checkpoint / log, list(range(crashed.rewound_to + 1)))
    before = _contents(checkpoint)
    own = local.session(spark, local.OPENINGS_ONLY)
    with pytest.raises(
        AnalysisException, match=rf"no longer have batch {crashed.rewound_to}\b.*restore the checkpoint"
    ):
        local.run_to(own, job, QUERY, last_batch(job))
    assert _contents(checkpoint) == before


def _contents(checkpoint: Path) -> dict[Path, bytes]:
    """Every file of Spark's logs, and the recording if there is one."""
    files = [*local.files_in(checkpoint / "commits"), *local.files_in(checkpoint / "offsets")]
    return {path: path.read_bytes() for path in [*files, *(checkpoint / "cec").glob("replay.json")]}
