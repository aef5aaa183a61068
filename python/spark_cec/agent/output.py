"""Calls of the sink: output frames, and the manifest that makes a batch visible."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.logs import OpenLog, OpenLogs
from spark_cec.agent.output_cache import RecentOutput
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.ids import new_id
from spark_cec.log import manifest
from spark_cec.log.frame import FrameKind, OutputMeta, crc32c
from spark_cec.log.record import encode_table
from spark_cec.recovery.replay_range import PlannedBatch, read_planned

_LOG = logging.getLogger(__name__)
_NUMBER_OF_FILES = re.compile(r'\{"logOffset":(\d+)\}')


class OutputCalls:
    """What the sink asks for, on executors (`write`) and on the driver (`publish`)."""

    def __init__(self, logs: OpenLogs, recent: RecentOutput, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._recent = recent
        self._newest_ms: dict[str, int] = {}

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
        payload = encode_table(rows, log.settings.compression)
        header, location = log.writer.append(FrameKind.OUTPUT, meta, payload)
        log.catalog.note(header, location)
        self._recent.note(log.log_id, frame_id, payload)
        return {"frame": frame_id.hex(), "rows": rows.num_rows}

    def publish(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """`home`, `batch`, `frames`, `rows`, `schema`, `truncate`, `generation`: makes a batch visible, all at once.

        `checkpoint` and `sources` (their names, in Spark's order) say what went into it. The first manifest of a batch
        wins; answers whether this one did. `Fenced` where a later run has taken the output back.
        """
        log = self._logs.get_known(arguments["home"])
        planned = _planned(str(arguments["checkpoint"]), int(arguments["batch"]))
        wanted = manifest.Manifest(
            batch=int(arguments["batch"]),
            frames=tuple(arguments["frames"]),
            rows=int(arguments["rows"]),
            schema_json=arguments["schema"],
            truncate=bool(arguments["truncate"]),
            generation=int(arguments["generation"]),
            wall_ms=self._wall_ms(log, int(arguments["batch"])),
            consumed=_consumed(str(arguments["checkpoint"]), [str(name) for name in arguments["sources"]], planned),
            boundary_ms=planned.watermark_ms if planned else None,
            piggyback=self._protocols.sends(str(arguments["checkpoint"]), int(arguments["batch"])),
        )
        counts = manifest.publish(log.storage, wanted, log.published.cuts)
        return {"first": counts == wanted}

    def _wall_ms(self, log: OpenLog, batch: int) -> int:
        """Now, or the time of the batch before if the clock was set back since: in a log's output, time goes on.

        Else who reads what was published since a moment would pass over some of it.
        """
        newest = self._newest_ms.get(log.log_id)
        if newest is None:
            before = manifest.load_between(log.storage, batch - 1, batch - 1)
            newest = max((each.wall_ms for _, each in before if isinstance(each, manifest.Manifest)), default=0)
        newest = max(newest, int(time.time() * 1000))
        self._newest_ms[log.log_id] = newest
        return newest


def _planned(checkpoint: str, batch: int) -> PlannedBatch | None:
    """None where it cannot be read just now: the batch's rows are durable, and do not wait for what is told of them."""
    try:
        return read_planned(open_storage(checkpoint), batch)
    except OSError as error:
        _LOG.warning("what went into batch %d is not noted with its output: %s", batch, error)
        return None


def _consumed(
    checkpoint: str, sources: Sequence[str], planned: PlannedBatch | None
) -> tuple[manifest.Consumed, ...]:
    """None where Spark's offset log has another form, or other sources than the query: nothing is guessed."""
    if planned is None or len(planned.offsets) != len(sources):
        return ()
    return tuple(
        manifest.Consumed(source, end, _files(checkpoint, end, len(sources)))
        for source, end in zip(sources, planned.offsets, strict=True)
    )


def _files(checkpoint: str, end: str | None, sources: int) -> int | None:
    """The checksum of what sources of files have noted under that number, None of another source's end.

    Spark does not sync these notes. Which of its sources has which directory it does not say: all that have that number
    count, and a batch that runs again finds them all as they were.
    """
    found = _NUMBER_OF_FILES.fullmatch(end or "")
    if found is None:
        return None
    storage, notes = open_storage(checkpoint), []
    for source in range(sources):
        for name in (found[1], f"{found[1]}.compact"):
            with contextlib.suppress(OSError):
                notes.append(f"{source} ".encode() + storage.read(f"sources/{source}/{name}"))
    return crc32c(b"".join(notes)) if notes else None
