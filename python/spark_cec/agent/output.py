"""Calls of the sink: output frames, and the manifest that makes a batch visible."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_cec.agent.logs import OpenLogs
from spark_cec.ids import new_id
from spark_cec.log import manifest
from spark_cec.log.frame import FrameKind, OutputMeta
from spark_cec.log.record import encode_table


class OutputCalls:
    """What the sink asks for, on executors (`write`) and on the driver (`publish`)."""

    def __init__(self, logs: OpenLogs) -> None:
        self._logs = logs

    def write(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `batch`, `partition`, `attempt`, `generation`, `spool`: one output frame, durable when this returns.

        It is invisible until a manifest names it. Answers its id (hex) and its rows; no id for no rows.
        """
        log = self._logs.get_known(arguments["home"])
        with pa.memory_map(arguments["spool"]) as file, pa.ipc.open_stream(file) as stream:
            rows = stream.read_all()
        if not rows.num_rows:
            return {"frame": None, "rows": 0}
        frame_id = new_id()
        meta = OutputMeta(
            frame_id=frame_id,
            batch=int(arguments["batch"]),
            partition=int(arguments["partition"]),
            attempt=int(arguments["attempt"]),
            generation=int(arguments["generation"]),
            rows=rows.num_rows,
            wall_ms=int(time.time() * 1000),
        )
        log.catalog.note(*log.writer.append(FrameKind.OUTPUT, meta, encode_table(rows, log.settings.compression)))
        return {"frame": frame_id.hex(), "rows": rows.num_rows}

    def publish(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `batch`, `frames`, `rows`, `schema`, `truncate`, `generation`: makes a batch visible, all at once.

        The first manifest of a batch wins; answers whether this one did.
        """
        log = self._logs.get_known(arguments["home"])
        wanted = manifest.Manifest(
            batch=int(arguments["batch"]),
            frames=tuple(arguments["frames"]),
            rows=int(arguments["rows"]),
            schema_json=arguments["schema"],
            truncate=bool(arguments["truncate"]),
            generation=int(arguments["generation"]),
            wall_ms=int(time.time() * 1000),
        )
        counts = manifest.publish(log.storage, wanted)
        return {"first": counts == wanted}
