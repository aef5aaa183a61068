"""The measured process on Flink: the query of *uniform* in Flink SQL, a JSON line of its progress twice a second.

`PYTHON flink_job.py SPEC` with a Python that has apache-flink 2.x, which need not have this package; SPEC is what
`spark_cec_lab.bench.flink` makes. It goes on until its standard input closes: then the process that started it is gone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

_LOOK_AGAIN_S = 0.5
_LAST = 1 << 62


def run(spec: dict[str, Any]) -> None:
    """Starts the query on a cluster in this process, and tells of its progress until it ends, which it should not."""
    from pyflink.common import Configuration, WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.datastream.connectors.number_seq import NumberSequenceSource
    from pyflink.table import StreamTableEnvironment

    conf, port = Configuration(), _free_port()
    for key, value in {**spec["conf"], "rest.address": "127.0.0.1", "rest.port": str(port)}.items():
        conf.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    tables = StreamTableEnvironment.create(env)
    numbers = env.from_source(NumberSequenceSource(0, _LAST), WatermarkStrategy.no_watermarks(), "numbers")
    tables.create_temporary_view("numbers", tables.from_data_stream(numbers).alias("v"))
    tables.execute_sql(
        "CREATE TEMPORARY TABLE nowhere (k BIGINT, n BIGINT, total BIGINT, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('connector' = 'blackhole')"
    )
    job = tables.execute_sql(f"INSERT INTO nowhere {query(spec['keys'])}").get_job_client().get_job_id()
    address = f"http://127.0.0.1:{port}/jobs/{job}"
    while True:
        time.sleep(_LOOK_AGAIN_S)
        event = _progress(address)
        if event is not None:
            print(json.dumps(event), flush=True)


def query(keys: int) -> str:
    """Count and sum by key: the first `keys` values open a window each, later ones hit the open windows evenly."""
    # Knuth's generator, its low bits left out: Flink SQL has no fast hash of a number.
    mixed = f"MOD(ABS(v * 6364136223846793005 + 1442695040888963407) / 8388608, {keys})"
    rows = f"SELECT CASE WHEN v < {keys} THEN v ELSE {mixed} END AS k, MOD(v, 1000) AS amount FROM numbers"
    return f"SELECT k, COUNT(*), SUM(amount) FROM ({rows}) GROUP BY k"


def _progress(address: str) -> dict[str, Any] | None:
    """Tuples that the source has given, and the checkpoints; None if it does not say yet."""
    try:
        job = _get(address)
        if job["state"] in ("FAILED", "CANCELED", "FINISHED"):
            sys.exit(f"the query has ended: {job['state']} {_get(address + '/exceptions').get('root-exception', '')}")
        source = job["vertices"][0]["id"]
        metric = "Source__numbers.numRecordsOut"
        counts = _get(f"{address}/vertices/{source}/subtasks/metrics?get={metric}&agg=sum")
        checkpoints = _get(f"{address}/checkpoints")
    except (urllib.error.URLError, ConnectionError):
        return None
    if not counts:
        return None
    done, latest = checkpoints["counts"], checkpoints["latest"]["completed"]
    return {
        "tuples": int(counts[0]["sum"]), "at_s": time.monotonic(), "checkpoints": done["completed"],
        "failed_checkpoints": done["failed"], "checkpoint_ms": latest["end_to_end_duration"] if latest else None,
        "checkpoint_bytes": latest["checkpointed_size"] if latest else None,
    }  # fmt: skip


def _get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end_with_the_parent() -> None:
    """Reads standard input to its end, which is that of whoever started this process; then so ends this one."""
    while sys.stdin.readline():
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    run(json.loads(sys.argv[1]))
