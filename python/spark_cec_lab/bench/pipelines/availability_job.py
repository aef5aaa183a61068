"""A flow that reads two others, one of which is away for a while: `python -m …availability_job SPEC` runs it once.

It counts the rows of both by key, in windows that overlap, so that many are open and few rows keep them so. One JSON
line for each phase, the last one with `done`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.pipeline.query_progress import last_batch, read_progress, read_wait
from spark_cec.recovery.rollback import roll_back
from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.pipelines.driver import session_of, settle
from spark_cec_lab.bench.pipelines.way_job import WaySpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_cec.pipeline import Pipeline
    from spark_cec.pipeline.running import RunningPipeline

WITHIN, SUSPENDS, WAITS, GOES_BACK = "within", "suspends", "waits", "goes back"
"""The ways: the flow answers within X, and goes on so or not while it catches up; or it waits.

The last one is the paper's checkpoint/redo: the flow itself goes on without the input. When that one is back, the
pipeline stops, the flow is taken back to its last batch before, and all starts again.
"""

X_S, ALPHA = 10.0, 0.5
AWAY_S = 20.0
_LOOK_S = 0.05
_SETTLED_LAG_S = 6.0
_SETTLED_S = 15.0
_BATCHES = 5
_PATIENCE_S = 300.0
_SECOND = {"processingTime": "1 second"}
"""For the inputs: else their small batches would take all processors."""
_WINDOWS_OF_A_KEY = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """A hundred windows are open of each of `keys`. They begin every `slide_s` seconds, and each row is in all of them.
    `rows_per_s`: of both inputs together.
    """

    keys: int
    slide_s: int
    rows_per_s: int

    @property
    def windows(self) -> int:
        """How many are open if each key has a row in each window."""
        return self.keys * _WINDOWS_OF_A_KEY

    @property
    def enough(self) -> int:
        """How many must be open: the oldest window of a key has just ended, and the newest wait for its next row."""
        pause_s = 2 * self.keys / self.rows_per_s
        return round(self.windows * (1 - max(pause_s / self.slide_s, 1.0) / _WINDOWS_OF_A_KEY))

    @classmethod
    def busy(cls, windows: int) -> Shape:
        """Some windows close in each second."""
        return cls(max(windows // _WINDOWS_OF_A_KEY, 1), 1, 1_000)

    @classmethod
    def large(cls, windows: int) -> Shape:
        """Few rows keep many windows open: a key has a row in the time of ten windows' beginnings."""
        keys = max(windows // _WINDOWS_OF_A_KEY, 50)
        return cls(keys, 10, keys // 50)


@dataclass(frozen=True, slots=True)
class AwaySpec:
    """Which way to run below `home`, and how many outages."""

    way: str
    home: str
    jar: str
    memory: str
    shape: Shape
    outages: int = 1

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AwaySpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "shape": Shape(**fields["shape"])})

    def spark_conf(self) -> dict[str, str]:
        """The whole Spark conf of the session."""
        return WaySpec(self.way, self.home, self.jar, self.memory, None, 0).spark_conf()


@dataclass(slots=True)
class _Seen:
    """What the sink has seen: when the first tentative row came."""

    tentative_at: float | None = None
    kinds: dict[str, int] = field(default_factory=dict)

    def take(self, rows: DataFrame, _: int) -> None:
        """For Spark's `foreachBatch`."""
        for row in rows.groupBy("_kind").count().collect():
            self.kinds[row["_kind"]] = self.kinds.get(row["_kind"], 0) + row["count"]
            if row["_kind"] == "tentative" and self.tentative_at is None:
                self.tentative_at = time.time()

    def forget(self) -> None:
        """Begins anew."""
        self.tentative_at, self.kinds = None, {}


def run(spec: AwaySpec) -> None:
    """Runs the outages. The last one counts: those before it load and compile what an outage needs."""
    spark = session_of(spec.spark_conf())
    outages = _Outages(spec, spark)
    for number in range(spec.outages):
        found = outages.run_once()
        if number + 1 < spec.outages:
            _tell(phase="first outage, which does not count", **found)
    outages.running.stop()
    _tell(done=True, **found)


class _Outages:
    """Lets an input of a running pipeline go away for a while, again and again."""

    def __init__(self, spec: AwaySpec, spark: SparkSession) -> None:
        self._spec = spec
        self._spark = spark
        self._seen = _Seen()
        self._gate = Path(spec.home) / "away"
        self.running = self._start()

    def _start(self) -> RunningPipeline:
        return _pipeline(self._spec, self._gate, self._seen).start(self._spark)

    def run_once(self) -> dict[str, Any]:
        """Runs all phases: rows of both, one is away, both again."""
        way, seen, enough = self._spec.way, self._seen, self._spec.shape.enough
        self._wait(lambda: _open_windows(self.running) >= enough, f"{enough} windows")
        self._wait(lambda: self._lag_s() < _SETTLED_LAG_S, "the flow has caught up")
        settle(self._lag_s, _SETTLED_S, lambda: time.sleep(_LOOK_S))
        seen.forget()
        counts = self.running.queries()["counts"]
        windows, before, batch = _open_windows(self.running), _heap_bytes(self._spark), _median_batch_ms(counts)
        _tell(phase="settled", windows=windows, batch_ms=batch)
        self._gate.touch()
        newest = last_batch(counts) or 0
        held_at = self._wait(lambda: _held_since(self.running), "the flow waits for the input that is away")
        if way in (WITHIN, SUSPENDS):
            self._wait(lambda: seen.tentative_at, "a tentative row")
        time.sleep(max(held_at + AWAY_S - time.time(), 0.0))
        during, back_at = _heap_bytes(self._spark), time.time()
        self._gate.unlink()
        _tell(phase="back", tentative=seen.kinds.get("tentative", 0))
        if way == GOES_BACK:
            self.running.stop()
            _go_back(f"{self._spec.home}/pipeline/flows", newest)
            self.running = self._start()
        self._wait(lambda: self._lag_s() < _SETTLED_LAG_S and not _has_epoch(self.running), "the flow has caught up")
        return {
            "windows": windows, "batch_ms": batch, "caught_up_s": round(time.time() - back_at, 3),
            "heap_before": before, "heap_during": during,
            "first_tentative_s": None if seen.tentative_at is None else seen.tentative_at - held_at - ALPHA * X_S,
            "tentative": seen.kinds.get("tentative", 0), "stable": seen.kinds.get("stable", 0),
        }  # fmt: skip

    def _lag_s(self) -> float:
        """How far the flow is behind the clock."""
        counts = self.running.queries().get("counts")
        end_ms = None if counts is None else read_progress(counts).until_ms
        return time.time() - (end_ms or 0) / 1000

    def _wait(self, look: Callable[[], Any], what: str) -> Any:
        """What `look` answers, as soon as it is no longer None or False."""
        end = time.monotonic() + _PATIENCE_S
        while not (found := look()):
            for flow in self.running.status().failed:
                raise SystemExit(f"flow {flow.name}: {flow.error}")
            if time.monotonic() > end:
                raise SystemExit(f"not within {_PATIENCE_S:.0f} s: {what}")
            time.sleep(_LOOK_S)
        return found


def _pipeline(spec: AwaySpec, gate: Path, seen: _Seen) -> Pipeline:
    from pyspark.sql import functions as F  # noqa: N812

    from spark_cec.pipeline import Pipeline

    made = Pipeline("availability", f"{spec.home}/pipeline")
    place, shape = str(gate), spec.shape

    def hold(value: int) -> int:
        while Path(place).exists():
            time.sleep(0.05)
        return value

    def events(spark: SparkSession) -> DataFrame:
        stream = spark.readStream.format("rate").option("rowsPerSecond", str(max(shape.rows_per_s // 2, 1)))
        return stream.option("numPartitions", "1").load().selectExpr("value", "timestamp AS t")

    @made.flow(trigger=_SECOND)
    def web(spark: SparkSession) -> DataFrame:
        return events(spark)

    @made.flow(trigger=_SECOND)
    def app(spark: SparkSession) -> DataFrame:
        return events(spark).withColumn("value", F.udf(hold, "bigint")("value"))

    pace = "suspend" if spec.way == SUSPENDS else "process"
    bound = {"within": f"{X_S}s", "alpha": ALPHA, "while_correcting": pace}
    how = {"bucket": "1s"} if spec.way in (WAITS, GOES_BACK) else bound
    if spec.way == GOES_BACK:
        how["waits_at_most"] = f"{ALPHA * X_S:g}s"

    @made.flow(watermarks={"web": ("t", "0 seconds"), "app": ("t", "0 seconds")}, **how)
    def counts(web: DataFrame, app: DataFrame) -> DataFrame:
        window = F.window("t", f"{_WINDOWS_OF_A_KEY * shape.slide_s} seconds", f"{shape.slide_s} seconds")
        grouped = web.unionByName(app).groupBy(window, (F.col("value") % shape.keys).alias("key"))
        return grouped.count().select("window.start", "key", "count")

    @made.sink(tentative=True)
    def left(counts: DataFrame) -> DataStreamWriter:
        return counts.writeStream.foreachBatch(seen.take)

    return made


def _go_back(flows: str, batch: int) -> None:
    """Takes the flow back to the end of a batch. The sink begins anew, which costs little."""
    checkpoint = f"{flows}/counts"
    own, log = open_storage(f"{checkpoint}/cec"), open_storage(f"{checkpoint}/cec/log")
    roll_back(open_storage(checkpoint), own, log, batch)
    shutil.rmtree(f"{flows}/left")


def _open_windows(running: RunningPipeline) -> int:
    query = running.queries().get("counts")
    progress = None if query is None else query.lastProgress
    return 0 if progress is None else sum(each["numRowsTotal"] for each in progress["stateOperators"])


def _median_batch_ms(query: StreamingQuery) -> float:
    """How long a batch takes: the median of the newest ones."""
    took = [each.durationMs["triggerExecution"] for each in query.recentProgress if "addBatch" in each.durationMs]
    return float(statistics.median(took[-_BATCHES:]))


def _held_since(running: RunningPipeline) -> float | None:
    """Since when rows wait for the input that is away, in seconds since 1970; None if none waits for long."""
    held_s = max(read_wait(running.queries()["counts"]).held_s.values(), default=0.0)
    return time.time() - held_s if held_s > 2.0 else None


def _has_epoch(running: RunningPipeline) -> bool:
    return any(flow.epoch is not None for flow in running.status().flows)


def _heap_bytes(spark: SparkSession) -> int:
    """The bytes of live objects in the JVM's heap."""
    jvm: Any = spark.sparkContext._jvm
    for _ in range(2):
        jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


def _tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run(AwaySpec.from_json(sys.argv[1]))
