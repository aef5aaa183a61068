"""What the jobs of `chain` and `union` share: what they are told, and what they tell of each batch."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from spark_cec.session import MANAGER, MANAGER_KEY
from spark_cec.settings import PROVIDER, PROVIDER_KEY
from spark_cec_lab.bench.flink_job import end_with_the_parent
from spark_cec_lab.bench.pipelines.driver import observed_latency

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_cec.pipeline.running import RunningPipeline

NewestQuery = Callable[[], "StreamingQuery | None"]

_LOOK_AGAIN_S = 0.02
_QUICK_JIT = " -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class WaySpec:
    """Which way to run below `home`. `rows_per_s`: of sources that follow the clock; None: all that can be had, in
    batches of `batch_rows`.
    """

    way: str
    home: str
    jar: str
    memory: str
    rows_per_s: int | None
    batch_rows: int

    def to_json(self) -> str:
        """The spec as one JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WaySpec:
        """The reverse of `to_json`."""
        return cls(**json.loads(text))

    def spark_conf(self, *, is_short: bool = False) -> dict[str, str]:
        """The whole Spark conf of the session. `is_short`: C1 alone compiles, because C2 takes longer."""
        return {
            "spark.master": "local[2]",
            "spark.jars": self.jar,
            "spark.driver.memory": self.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f'"-Djava.io.tmpdir={self.home}"{_QUICK_JIT if is_short else ""}',
            "spark.local.dir": self.home,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.scheduler.mode": "FAIR",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.pollingDelay": "100ms",
            PROVIDER_KEY: PROVIDER,
            MANAGER_KEY: MANAGER,
        }


def run_job(start: Callable[[WaySpec], NewestQuery]) -> None:
    """Runs until the process ends, saying of each batch of a query when it ended and what it had.

    The spec is the first argument of the process. `start` starts all queries, and answers a look at the one to tell of.
    """
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    newest, told = start(WaySpec.from_json(sys.argv[1])), -1
    while True:
        query = newest()
        progress = None if query is None else query._jsq.lastProgress()
        if progress is not None and progress.batchId() != told:
            told = progress.batchId()
            found = observed_latency(json.loads(progress.json()))
            if found:
                print(json.dumps(found), flush=True)
        time.sleep(_LOOK_AGAIN_S)


def look_at_flow(running: RunningPipeline, name: str) -> NewestQuery:
    """A look at the query of a flow; ends the process if a flow has failed."""

    def newest() -> StreamingQuery | None:
        for flow in running.status().failed:
            raise SystemExit(f"flow {flow.name}: {flow.error}")
        return running.queries().get(name)

    return newest
