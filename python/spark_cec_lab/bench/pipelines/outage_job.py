"""One outage: three inputs, of which one is cut off for a while, and a chain of flows that answers meanwhile.

`python -m spark_cec_lab.bench.pipelines.outage_job SPEC` runs one for each line of its input, all on one Spark
session: what the JVM has compiled for one run serves the others. A thread writes files of rows for each input, twice
a second; so the right answers are known without Spark. The inputs' flows run once a second. The first flow behind them
unites the inputs by buckets, and counts their rows in windows of a second, by 100 keys. Each later flow of the chain
does the same with the rows of the one before it. One JSON line for each phase, the last one with `done`.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec_lab.bench.pipelines.batch_log import BatchLog, find_costs
from spark_cec_lab.bench.pipelines.driver import session_of, settle
from spark_cec_lab.bench.pipelines.topology import name_parameters
from spark_cec_lab.bench.pipelines.way_job import WaySpec
from spark_cec_lab.bench.processes import members_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_cec.pipeline import Pipeline
    from spark_cec.pipeline.running import RunningPipeline

INPUTS = ("north", "south", "east")
CUT = "east"
KEYS = 100
FILES_PER_S = 2
_USUAL_WINDOWS = 8
"""The usual delay is the median over the windows of so many seconds before the cut."""
_NO_NAME = "None"
"""Spark's name of the sink's query, which has none."""
SETTLED_S = 10.0
_LEFT_OUT_S = 3
"""The windows of the first seconds are left out: they wait for the queries' start."""
_PATIENCE_S = 600.0
_LOOK_S = 0.1

Answer = tuple[int, int]
"""The number of the rows in a window, and the sum of their values."""
Window = tuple[int, int]
"""A key, and the second at which the window begins."""


@dataclass(frozen=True, slots=True)
class Outage:
    """`cut_s`: for how long an input is away. `wait_s`: alpha times X. `x_s`: X. `pace`, `pace_after`: `while_away` and
    `while_correcting`. `chain`: the number of flows, one after the other. `rows_per_s`: of all inputs together.
    `state`: rows that the first flow keeps for good, beside its windows.
    """

    cut_s: float
    wait_s: float
    x_s: float
    pace: str = "process"
    pace_after: str = "process"
    chain: int = 1
    rows_per_s: int = 3_000
    bucket_s: float = 1.0
    state: int = 0


@dataclass(frozen=True, slots=True)
class OutageSpec:
    """What runs below `home`."""

    home: str
    outage: Outage

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OutageSpec:
        """The reverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "outage": Outage(**fields["outage"])})


class Inputs:
    """Writes the rows, in a thread of its own. `expected`: the right answers.

    `is_cut`: the rows of one input are kept back until it is False. `last_s`: all other rows up to this second are in
    files.
    """

    def __init__(self, root: Path, rows_per_s: int, state: int = 0) -> None:
        self.expected = dict[Window, Answer]()
        self.is_cut = False
        self.last_s = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, name="inputs", daemon=True)
        self._root = root
        self._rows = max(rows_per_s // FILES_PER_S // len(INPUTS), 1)
        self._state = state
        for name in INPUTS:
            (root / name).mkdir(parents=True)

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def end(self) -> None:
        """Writes no more."""
        self._ending.set()
        self._thread.join()

    def _write(self) -> None:
        """Files follow the clock, and not one another, so a slow write costs no rate."""
        began, number, kept = time.time(), 0, list[str]()
        while not self._ending.wait(max(began + number / FILES_PER_S - time.time(), 0.0)):
            number += 1
            now = time.time()
            second, at = int(now), datetime.fromtimestamp(now, UTC).isoformat()
            for i, name in enumerate(INPUTS):
                lines = list[str]()
                for row in range(self._rows):
                    key, value = (number * self._rows + row) % KEYS, (number * 31 + row * 7 + i) % 1000
                    count, total = self.expected.get((key, second), (0, 0))
                    self.expected[key, second] = count + 1, total + value
                    lines.append(f'{{"time": "{at}", "key": {key}, "v": {value}}}')
                if number == 1 and i == 0:  # rows that no window counts
                    lines += [f'{{"time": "{at}", "key": {KEYS + row}, "v": 0}}' for row in range(self._state)]
                if name == CUT:
                    kept += lines
                    if self.is_cut:
                        continue
                    lines, kept = kept, []
                self._put(name, number, lines)
            self.last_s = second - 1

    def _put(self, name: str, number: int, lines: list[str]) -> None:
        made = self._root / f".{name}-{number}"
        made.write_text("\n".join(lines))
        made.rename(self._root / name / f"{number:06d}.json")


@dataclass(slots=True)
class Board:
    """What the sink has got. `first_at`: when a window's first row came, stable or not. `stable`: each answer, and how
    often it came.
    """

    first_at: dict[Window, float] = field(default_factory=dict)
    stable: dict[Window, Counter[Answer]] = field(default_factory=dict)
    first_tentative_at: float | None = None
    tentative: int = 0

    def forget_tentative(self) -> None:
        """Forgets the tentative rows of the flows' start."""
        self.tentative, self.first_tentative_at = 0, None

    def take(self, rows: DataFrame, _: int) -> None:
        """For Spark's `foreachBatch`."""
        found, now = rows.collect(), time.time()
        for row in found:
            if row["_kind"] == "undo":
                continue
            window, answer = (row["key"], row["second"]), (row["n"], row["total"])
            self.first_at.setdefault(window, now)
            if row["_kind"] == "stable":
                self.stable.setdefault(window, Counter())[answer] += 1
            else:
                self.tentative += 1
                self.first_tentative_at = self.first_tentative_at or now


class Processors:
    """How many processors this process and its children keep busy, by phase. They are a session of their own.

    `found`: by phase, processor seconds in a second.
    """

    def __init__(self) -> None:
        self.found = dict[str, float]()
        self.begin()

    def begin(self) -> None:
        """A phase begins."""
        self._cpu_s, self._at = self._look(), time.monotonic()

    def end(self, phase: str) -> None:
        """A phase ends, and the next one begins."""
        cpu_s, at = self._cpu_s, self._at
        self.begin()
        self.found[phase] = round((self._cpu_s - cpu_s) / max(self._at - at, 1e-9), 3)

    @staticmethod
    def _look() -> float:
        return sum(member.cpu_s for member in members_of(os.getsid(0)))


def run(spec: OutageSpec, spark: SparkSession) -> None:
    """Runs all phases: all inputs, one is cut off, all again, until nothing is tentative; then compares all rows."""
    outage, root, board = spec.outage, Path(spec.home), Board()
    inputs = Inputs(root, outage.rows_per_s, outage.state)
    log = BatchLog(spark, root / "pipeline/flows" / name_flow(0) / "epochs")
    running = _declare(root, outage, board).start(spark)
    inputs.start()
    log.start()
    _wait(running, lambda: board.stable and _delay_s(board, inputs) < SETTLED_S * outage.chain + 1, "the first windows")
    processors = Processors()
    settle(lambda: _delay_s(board, inputs), SETTLED_S, lambda: _pass(running, _LOOK_S))
    processors.end("usual")
    _wait(running, lambda: not _has_epoch(running), "no epoch is open")
    board.forget_tentative()
    processors.begin()
    cut_at, inputs.is_cut = time.time(), True
    _tell(phase="cut", windows=len(board.stable))
    _pass(running, outage.cut_s)
    inputs.is_cut, back_at = False, time.time()
    processors.end("away")
    _tell(phase="back", tentative=board.tentative)
    last = int(back_at)
    _wait(running, lambda: _is_corrected(running, board, inputs, last), "all rows of the outage are stable")
    corrected_s = time.time() - back_at
    processors.end("correcting")
    _pass(running, SETTLED_S)
    log.end()
    inputs.end()
    running.stop()
    windows, flows = _windows_until(inputs, board), [name_flow(number) for number in range(outage.chain)]
    wrong = sum(board.stable.get(each) != {inputs.expected[each]: 1} for each in windows)
    unknown = board.stable.keys() - inputs.expected.keys()
    _tell(
        done=True, **_delays(board, windows, cut_at), tentative=board.tentative, corrected_s=corrected_s,
        first_tentative_s=_since(board.first_tentative_at, cut_at + outage.wait_s),
        costs=find_costs(log.batches, INPUTS, flows, _NO_NAME, cut_at, log.opened_at),
        stable=len(windows), wrong=wrong + len(unknown), processors=processors.found,
    )  # fmt: skip


def name_flow(number: int) -> str:
    """The name of a flow of the chain, from 0 on."""
    return f"counts{number + 1}"


def _declare(root: Path, outage: Outage, board: Board) -> Pipeline:
    from pyspark.sql import functions as F  # noqa: N812

    from spark_cec.pipeline import Pipeline

    made = Pipeline("outage", f"{root}/pipeline")

    def read(name: str) -> None:
        @made.flow(name=name, trigger={"processingTime": "1 second"})  # else small batches take all processors
        def rows(spark: SparkSession) -> DataFrame:
            read = spark.readStream.schema("time TIMESTAMP, key INT, v BIGINT").json(f"{root}/{name}")
            return read.withColumn("n", F.lit(1).cast("bigint")).withColumnRenamed("v", "total")

    for name in INPUTS:
        read(name)
    bounds: dict[str, Any] = {
        "within": f"{outage.x_s:g}s", "alpha": outage.wait_s / outage.x_s, "bucket": f"{1000 * outage.bucket_s:g}ms",
        "while_away": outage.pace, "while_correcting": outage.pace_after, "partitions": 1,
    }  # fmt: skip

    def count(*frames: DataFrame) -> DataFrame:
        rows = frames[0]
        for frame in frames[1:]:
            rows = rows.unionByName(frame)
        if outage.state:  # Spark keeps the keys for good, and lets no row through. The condition stays behind it.
            kept = rows.filter(F.col("key") >= KEYS).dropDuplicates(["key"]).filter("total < 0")
            rows = rows.filter(F.col("key") < KEYS).unionByName(kept)
        sums: list[Column] = [F.sum("n").alias("n"), F.sum("total").alias("total")]
        found = rows.groupBy(F.window("time", "1 second").alias("w"), "key").agg(*sums)
        return found.select(F.col("w.start").alias("time"), "key", "n", "total")

    def show(rows: DataFrame) -> DataStreamWriter:
        columns = rows.select(F.unix_timestamp("time").alias("second"), "key", "n", "total", "_kind")
        return columns.writeStream.foreachBatch(board.take)

    read_by: Sequence[str] = INPUTS
    for number in range(outage.chain):
        name = name_flow(number)

        def counts(*frames: DataFrame) -> DataFrame:  # of each flow its own, because it has its own parameters
            return count(*frames)

        watermarks = dict.fromkeys(read_by, ("time", "0 seconds"))
        made.flow(name=name, watermarks=watermarks, **bounds)(name_parameters(counts, read_by))
        read_by = (name,)
    made.sink(name="board", tentative=True)(name_parameters(show, read_by))
    return made


def _wait(running: RunningPipeline, look: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not look():
        _pass(running, _LOOK_S)
        if time.monotonic() > end:
            raise SystemExit(f"not within {_PATIENCE_S:.0f} s: {what}")


def _pass(running: RunningPipeline, seconds: float) -> None:
    """Lets time pass. Ends the process if a flow has failed."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for flow in running.status().failed:
            raise SystemExit(f"flow {flow.name}: {flow.error}")
        time.sleep(min(left, 0.5))


def _delay_s(board: Board, inputs: Inputs) -> float:
    """How far the newest window is behind the clock."""
    return inputs.last_s - max((second for _, second in list(board.stable)), default=0)


def _is_corrected(running: RunningPipeline, board: Board, inputs: Inputs, last: int) -> bool:
    due = [window for window in list(inputs.expected) if window[1] <= last]
    return not _has_epoch(running) and all(window in board.stable for window in due)


def _has_epoch(running: RunningPipeline) -> bool:
    return any(flow.epoch is not None for flow in running.status().flows)


def _windows_until(inputs: Inputs, board: Board) -> list[Window]:
    """The windows that must be right: from the first ones on, to the newest second that the sink has got."""
    seconds = [second for _, second in board.stable]
    return [window for window in inputs.expected if min(seconds) <= window[1] <= max(seconds)]


def _delays(board: Board, windows: list[Window], cut_at: float) -> dict[str, float]:
    """`usual_s`: the median from a window's end to its first row, before the cut. `delay_new_s`: the longest one."""
    first = min(second for _, second in windows) + _LEFT_OUT_S
    shown = [window for window in windows if window[1] >= first and window in board.first_at]
    found = {window: board.first_at[window] - window[1] - 1 for window in shown}
    usual = [delay for (_, second), delay in found.items() if cut_at - _USUAL_WINDOWS <= second < cut_at - 1]
    late = [delay for (_, second), delay in found.items() if second >= cut_at - 1]
    return {"usual_s": statistics.median(usual), "delay_new_s": max(late)}


def _since(at: float | None, begin: float) -> float | None:
    return None if at is None else at - begin


def _tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _listen(lines: queue.SimpleQueue[str]) -> None:
    """Passes the lines of the standard input on. At its end the parent has ended, and then so ends this process."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(1)


if __name__ == "__main__":
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    session = session_of(WaySpec.from_json(sys.argv[1]).spark_conf(is_short=True))
    while True:
        run(OutageSpec.from_json(asked.get()), session)
