"""A process that runs pipelines for the comparison: `python -m spark_cec_lab.bench.protocols.job CONF`.

Each line of its standard input is a `RunSpec`; it answers each with one line, an `Outcome`. All of them run in one
session, one after the other.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.status import State
from spark_cec.pipeline.supervise import Patience
from spark_cec_lab.bench.pipelines.driver import session_of
from spark_cec_lab.bench.processes import members_of
from spark_cec_lab.bench.protocols.feed import MOST_PIECES, ChangesFeed, Feed, numbers
from spark_cec_lab.bench.protocols.spec import CYCLIC, Done, Outcome, Recovery, RunSpec
from spark_cec_lab.bench.protocols.watch import Checkpoints, Progress, bytes_of, recovery_of
from spark_cec_lab.nexmark.events import Nexmark
from spark_cec_lab.nexmark.flows import FLOW_QUERIES, nexmark_pipeline
from spark_cec_lab.nexmark.reachability import reachability

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_cec.pipeline.runnable import Pipeline
    from spark_cec.pipeline.running import RunningPipeline

LOOK_S = 0.03
AHEAD = 40
"""Pieces that may be on their way where as much is done as can be."""

PIECE_EVENTS = 20_000
PIECE_CHANGES = 40
PIECE_S = 0.25
"""Of input by the clock."""

LONGEST = 4
_STREAMS = 10_000
_START_S = 60.0


def conf(scratch: str, jar: str, memory: str = "3g") -> dict[str, str]:
    """The whole Spark conf of the session."""
    return {
        "spark.master": "local[2]",
        "spark.jars": jar,
        "spark.driver.memory": memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={scratch}"',
        "spark.local.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }


class Running:
    """One run of a pipeline."""

    def __init__(self, spark: SparkSession, spec: RunSpec) -> None:
        """Starts it."""
        from spark_cec.pipeline.start import start_pipeline

        self.spec = spec
        root = Path(spec.home)
        shutil.rmtree(root, ignore_errors=True)
        self.began = time.time()
        self._is_cyclic = spec.query == CYCLIC
        self.feed, pipeline = (_cyclic if self._is_cyclic else _nexmark)(spec, root)
        self.flows = [name for name, flow in pipeline.flows.items() if not flow.node.is_sink]
        self.sources = [name for name in self.flows if not pipeline.flows[name].node.inputs]
        self.query = [name for name in self.flows if name not in self.sources]
        self._spark = spark
        self._running: RunningPipeline = start_pipeline(pipeline, spark, Patience(wait_s=0.0))
        self._progress = Progress(f"{root}/home", self.sources, self.query)
        self._checkpoints = Checkpoints(f"{root}/home", self.flows, self.began)
        self._done: list[Done] = []
        self._clock = 0.0
        self._restarts: dict[str, int] = {}
        self._failed_s: float | None = None
        self._restarted_s: float | None = None

    def run(self) -> Outcome:
        """To its end.

        1. Feed it until its first input has come out, then for the time that does not count.
        2. Feed it for the time that does, and let it fail in between.
        3. Stop it, and count what it has written.
        """
        spec = self.spec
        try:
            while not self._done:  # 1
                self._step()
                if self._now() > _START_S:
                    raise SystemExit(f"nothing has come out within {_START_S:.0f} s: {self._running.status()}")
            self._feed_for(spec.settle_s)
            began_s, batches, cpu_s = self._now(), self._batches(), _cpu_s()  # 2
            if spec.fails_s is not None:
                self._feed_for(spec.fails_s)
                self._fail()
            self._feed_for(began_s + spec.seconds - self._now())
            ended_s, batches, cpu_s = self._now(), self._batches() - batches, _cpu_s() - cpu_s
        finally:
            status = self._running.stop()  # 3
        for flow in status.failed:
            raise SystemExit(f"flow {flow.name}: {flow.error}")
        self._look()
        return self._outcome(began_s, ended_s, max(batches, 0), cpu_s)

    def _batches(self) -> int:
        """Of all flows, so far; a rollback takes some back."""
        return sum(flow.batch or 0 for flow in self._running.status().flows)

    def _outcome(self, began_s: float, ended_s: float, batches: int, cpu_s: float) -> Outcome:
        home = f"{self.spec.home}/home"
        payload, added, stores = bytes_of(home, self.flows)
        taken = self._checkpoints.taken
        recovery: Recovery | None = None
        if self._failed_s is not None:
            restart_s = (self._restarted_s or float("inf")) - self._failed_s
            told = self._progress.rollbacks
            recovery = recovery_of(told[-1], restart_s) if told else Recovery(restart_s, 0.0, 1, 0, 0)
        return Outcome(
            self.spec, began_s, ended_s, tuple(self._done), taken, len(taken),
            payload, added, stores, batches, cpu_s, self._failed_s, recovery,
        )  # fmt: skip

    def _now(self) -> float:
        return time.time() - self.began

    def _feed_for(self, seconds: float) -> None:
        end = self._now() + seconds
        while self._now() < end:
            self._step()

    def _step(self) -> None:
        self._give()
        self._look()
        time.sleep(LOOK_S)

    def _give(self) -> None:
        piece = PIECE_CHANGES if self._is_cyclic else PIECE_EVENTS
        if self.spec.rate is not None:
            piece = max(int(self.spec.rate * PIECE_S), 1)
        if self.spec.rate is None or not self._done:
            while len(self.feed.pieces) < len(self._done) + AHEAD:
                self.feed.give(piece, self._now())
            self._clock = self._now()
            return
        while self._clock + PIECE_S <= self._now():
            self._clock += PIECE_S
            self.feed.give(piece, self._clock)

    def _look(self) -> None:
        done, at = self._progress.look()
        while len(self._done) < done:
            piece = self.feed.pieces[len(self._done)]
            self._done.append(Done(piece.given_s, at - self.began, piece.events))
        self._checkpoints.look()
        if self._failed_s is not None and self._restarted_s is None and self._is_up():
            self._restarted_s = self._now()

    def _is_up(self) -> bool:
        """Whether all flows run that the failure has stopped, and have since."""
        flows = self._running.status().flows
        restarted = any(flow.restarts > self._restarts.get(flow.name, 0) for flow in flows)
        rolled = self.spec.protocol == "cec" or len(self._progress.rollbacks) > 0
        return restarted and rolled and all(flow.state in (State.RUNNING, State.REPLAYING) for flow in flows)

    def _fail(self) -> None:
        """An instance of the query loses the job that it is running, as if its worker were lost."""
        name = self.query[0]
        self._restarts = {flow.name: flow.restarts for flow in self._running.status().flows}
        self._failed_s = self._now()
        while all(flow.restarts == self._restarts[flow.name] for flow in self._running.status().flows):
            query = self._running.queries()[name]
            self._spark.sparkContext.cancelJobGroup(str(query.runId))
            self._step()
            if self._now() > self._failed_s + _START_S:
                raise SystemExit(f"{name} did not fail")


def _cpu_s() -> float:
    """Of this process and all that it has started, which is a session of its own."""
    return sum(member.cpu_s for member in members_of(os.getsid(0)))


def _nexmark(spec: RunSpec, root: Path) -> tuple[Feed, Pipeline]:
    query = FLOW_QUERIES[spec.query]
    streams = Nexmark(rate=_STREAMS, hot_percent=spec.hot_percent, seed=spec.seed)
    places = {view: root / "in" / view for view in query.key}

    def of(session: SparkSession, view: str) -> DataFrame:
        return numbers(session, str(places[view]))

    feed = Feed(list(places.values()))
    return feed, nexmark_pipeline(query, f"{root}/home", streams, of, spec.instances, **_how(spec))


def _cyclic(spec: RunSpec, root: Path) -> tuple[Feed, Pipeline]:
    feed = ChangesFeed(root / "in", spec.seed)
    return feed, reachability(f"{root}/home", str(root), LONGEST, MOST_PIECES, **_how(spec))


def _how(spec: RunSpec) -> dict[str, Any]:
    release = "at-once" if spec.protocol == "none" else "checkpoint"
    return {"protocol": spec.protocol, "checkpoint_interval": spec.interval_s, "release": release}


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    spark = session_of(json.loads(arguments[0]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        outcome = Running(spark, RunSpec.from_json(line)).run()
        print(json.dumps(outcome.to_json()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
