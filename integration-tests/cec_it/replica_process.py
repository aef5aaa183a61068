"""A replica of a pipeline in a process of its own, which tests kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from pyspark.sql import SparkSession

from cec_it.driver import session_builder
from spark_cec.pipeline import Pipeline
from spark_cec.pipeline.start import start_pipeline
from spark_cec.pipeline.supervise import Patience
from testbed.processes import ProcessTree

_CONF = "CEC_CONF"


class Driver:
    """A replica in a process of its own."""

    def __init__(
        self, module: ModuleType, replica: str, root: Path, master: str, *more: str,
        conf: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Starts it. `module`: one that takes the replica, a directory and the master as arguments, and `more`.

        `conf`: more settings of Spark.
        """
        command = [sys.executable, "-m", module.__name__, replica, str(root), master, *more]
        with (root / f"stderr-{replica}").open("ab") as errors, (root / f"stdout-{replica}").open("ab") as said:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=said, stderr=errors, start_new_session=True,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", _CONF: json.dumps(dict(conf or {}))},
            )  # fmt: skip
        self.family = ProcessTree(self.process.pid)

    def kill(self) -> None:
        """SIGKILL, with all of its processes."""
        self.family.kill()

    def end(self) -> int:
        """Stops it in good order; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(120)


def read_conf() -> dict[str, str]:
    """The settings that the test has given to this process."""
    return dict(json.loads(os.environ.get(_CONF, "{}")))


def run_replica(made: Pipeline, replica: str, root: Path, master: str) -> int:
    """Runs a replica until the standard input ends; the exit code. Prints the status as lines of JSON."""
    builder = session_builder(root / f"scratch-{replica}", master).config("spark.scheduler.mode", "FAIR")
    for key, value in read_conf().items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).getOrCreate()
    running = start_pipeline(made, spark, Patience(wait_s=0.5), replica=replica)
    over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while not over.wait(0.5) and not running.is_over:
        print(json.dumps(running.status().to_json()), flush=True)
    failed = running.stop().failed
    print(json.dumps(running.status().to_json()), flush=True)
    return 1 if failed else 0


def exit_with(code: int) -> None:
    """Ends the process, whatever threads Spark has left."""
    sys.stdout.flush()
    os._exit(code)
