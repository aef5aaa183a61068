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
from spark_cec.agent.output_cache import OutputCache
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.ids import new_id
from spark_cec.log import manifest
from spark_cec.log.frame import FrameKind, OutputMeta, crc32c
from spark_cec.log.record import encode_table
from spark_cec.recovery.replay_range import PlannedBatch, read_planned

_LOG = logging.getLogger(__name__)
_NUMBER_OF_FILES = re.compile(r'\{"logOffset":(\d+)\}')


class OutputCalls:
    """The sink's calls, on executors (`write`) and on the driver (`publish`)."""

    def __init__(self, logs: OpenLogs, output_cache: OutputCache, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._output_cache = output_cache
        self._newest_ms: dict[str, int] = {}

    def write(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Writes one output frame, durable when this returns, but invisible until a manifest names it.

        Arguments: `home`, `batch`, `partition`, `attempt`, `generation`, `spool`. Answers the frame's id (hex) and its
        number of rows; without rows, no id.
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
        self._output_cache.note(log.log_id, frame_id, payload)
        return {"frame": frame_id.hex(), "rows": rows.num_rows}

    def publish(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Makes a batch visible in one step, and answers whether this manifest was the batch's first, which wins.

        Arguments: `home`, `batch`, `frames`, `rows`, `schema`, `truncate`, `generation`. `checkpoint` and `sources`
        (names, in Spark's order) tell the batch's input. Raises `Fenced` if a later run has taken the output back.
        """
        log = self._logs.get_known(arguments["home"])
        planned = _read_planned(str(arguments["checkpoint"]), int(arguments["batch"]))
        wanted = manifest.Manifest(
            batch=int(arguments["batch"]),
            frames=tuple(arguments["frames"]),
            rows=int(arguments["rows"]),
            schema_json=arguments["schema"],
            truncate=bool(arguments["truncate"]),
            generation=int(arguments["generation"]),
            wall_ms=self._next_wall_ms(log, int(arguments["batch"])),
            consumed=_describe_inputs(
                str(arguments["checkpoint"]), [str(name) for name in arguments["sources"]], planned
            ),
            boundary_ms=planned.watermark_ms if planned else None,
            piggyback=self._protocols.sends(str(arguments["checkpoint"]), int(arguments["batch"])),
        )
        log.refuse_if_gone()
        counts = manifest.publish(log.storage, wanted, log.published.cuts)
        return {"first": counts == wanted}

    def _next_wall_ms(self, log: OpenLog, batch: int) -> int:
        """The wall clock, or the previous batch's time if the clock was set back.

        So times in a log's output never decrease. Else a reader from a given time on would miss some batches.
        """
        newest = self._newest_ms.get(log.log_id)
        if newest is None:
            before = manifest.load_between(log.storage, batch - 1, batch - 1)
            newest = max((each.wall_ms for _, each in before if isinstance(each, manifest.Manifest)), default=0)
        newest = max(newest, int(time.time() * 1000))
        self._newest_ms[log.log_id] = newest
        return newest


def _read_planned(checkpoint: str, batch: int) -> PlannedBatch | None:
    """The planned batch; None if it is unreadable now.

    The rows are durable, so their publication does not wait for metadata.
    """
    try:
        return read_planned(open_storage(checkpoint), batch)
    except OSError as error:
        _LOG.warning("what went into batch %d is not noted with its output: %s", batch, error)
        return None


def _describe_inputs(
    checkpoint: str, sources: Sequence[str], planned: PlannedBatch | None
) -> tuple[manifest.Consumed, ...]:
    """The input of a batch; empty if the offset log has another format or another number of sources."""
    if planned is None or len(planned.offsets) != len(sources):
        return ()
    return tuple(
        manifest.Consumed(source, end, _checksum_entries(checkpoint, end, len(sources)))
        for source, end in zip(sources, planned.offsets, strict=True)
    )


def _checksum_entries(checkpoint: str, end: str | None, sources: int) -> int | None:
    """The checksum of the file-source entries with the number in `end`; None for another kind of source.

    Spark does not sync these entries. It does not record which source has which directory, so the entries of all
    sources with that number count. A batch that runs again finds all of them unchanged.
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
