"""An agent without a process: its calls, JSON in and JSON out, with what a shim would send."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.calls import Calls
from spark_cec.agent.messages import REQUESTS
from spark_cec.ids import NO_CHECKPOINT, StoreId, new_id
from spark_cec.log.home import read_log_id
from spark_cec.settings import PREFIX
from tests.checkpoint.support import Rows, Tip, record_table, request

DECISION = {"mode": "deferred", "operators": [], "reason": "test", "provider": False}

WITH_STATE = {**DECISION, "provider": True}

NO_STATE = {
    "provider": False, "stateful": False, "planned": False, "recorded_provider": None,
    "transform_with_state": False, "speculation": False,
}
"""A query without an operator that has state."""

NOTHING_KNOWN: dict[str, Any] = {
    **dict.fromkeys(("sink_path", "log_id", "forecast", "committed_batch", "checkpoint_id", "sources", "request")),
    "session_settings": {}, "named": False, "load_waves": 1.0, "generation": 1, "retained": 100, "may_wait": False,
    "may_lose": False, "had_lease": False, "stopping": False, "sink": "waits",
}  # fmt: skip
"""What a request says of a query of which the shim knows nothing."""


class Refused(Exception):
    """An answer that is an error. Attribute: `kind`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Agent:
    """The calls of one agent; `checkpoint` is the query's, `home` where its log is."""

    def __init__(self, scratch: Path, checkpoint: Path | None = None) -> None:
        self.scratch = scratch
        self.checkpoint = str(checkpoint or scratch / "checkpoint")
        self.home = f"{self.checkpoint}/cec/log"
        (scratch / "spool").mkdir(exist_ok=True)
        self.conf = {PREFIX + "index.path": str(scratch / "index")}
        self.calls = Calls(str(scratch / "spool"))

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """One call; raises `Refused` if the answer is an error."""
        known: dict[str, Any] = {"home": self.home, "checkpoint": self.checkpoint, "path": self.checkpoint}
        known |= {"conf": self.conf, "wait_s": 15.0, **NOTHING_KNOWN}
        known["query"] = {**NO_STATE, **{key: arguments.pop(key) for key in NO_STATE if key in arguments}}
        if name == "release":
            known["generation"] = self.calls._starts._leases.run_of(self.checkpoint) or 0
        if isinstance(store := arguments.get("store"), StoreId | list):
            arguments["store"] = asdict(store if isinstance(store, StoreId) else StoreId(*store))
        fields = REQUESTS[name].__struct_fields__
        sent = {**{key: value for key, value in known.items() if key in fields}, **arguments}
        answer = json.loads(self.calls.answer(name, json.dumps(sent)))
        assert isinstance(answer, dict)
        if "error" in answer:
            raise Refused(answer["error"]["kind"], answer["error"]["message"])
        return answer

    def begin_run(self, committed: int = -1, **more: Any) -> int:
        """A run of the query begins after that batch; its generation."""
        return int(self.begin(committed, **more)["generation"])

    def run_once(self, committed: int = -1) -> int:
        """A run that has taken the lease, and has given it back; its generation."""
        generation = self.begin_run(committed, decision=WITH_STATE)
        held = int(self.ask("hold", generation=generation)["generation"])
        self.ask("release")
        return held

    def begin(self, committed: int = -1, **more: Any) -> dict[str, Any]:
        """The same; what the agent answers. A log that is there is one that `check` has found to be the query's."""
        spark = open_storage(self.checkpoint)
        if committed >= 0 and not spark.list("offsets"):  # else the test has written Spark's logs
            for log in ("offsets", "commits"):
                spark.replace(f"{log}/{committed}", b"v1\n{}\n-")
        known = {"committed_batch": committed, "log_seen": read_log_id(open_storage(self.home)), "decision": DECISION}
        return self.ask("begin", **{**known, **more})

    def plan(self, committed: int = -1, **more: Any) -> dict[str, Any]:
        """The plan of a run that begins after that batch."""
        planned = self.begin(committed, **more)["plan"]
        assert isinstance(planned, dict)
        return planned

    def warnings(self, committed: int) -> list[str]:
        """The warnings of a run that begins after that batch."""
        return [message["line"] for message in self.begin(committed)["said"] if message["warns"]]

    def spool(self, table: pa.Table | None) -> str | None:
        """A spool file with these rows."""
        if table is None:
            return None
        path = self.calls.spool.new_file(table.nbytes)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        return path

    def append_arguments(
        self,
        store: StoreId,
        before: Tip,
        changes: dict[bytes, Rows],
        checked: AbstractSet[bytes] = frozenset(),
        *,
        whole: bool = True,
        grouped: bool = False,
        inputs: int = 1,
        generation: int = 1,
    ) -> tuple[Tip, dict[str, Any]]:
        """The tip after a batch and what the shim would send for its commit."""
        after, records = before.next(changes, checked)
        sent = request(store, before, after, records, grouped, whole=whole, inputs=inputs, generation=generation)
        meta = sent.meta
        base = None if meta.base_checkpoint_id == NO_CHECKPOINT else meta.base_checkpoint_id.hex()
        arguments = {
            "store": asdict(store),
            "version": meta.version,
            "generation": generation,
            "retained": 100,
            "forecast": None,
            "checkpoint_id": meta.checkpoint_id.hex(),
            "base_checkpoint_id": base,
            "spool": self.spool(record_table(grouped, records)),
            "live": list(sent.live_changes.items()),
            "live_is_whole": whole,
            "digest": "17",
            "state_rows": sum(len(rows) for rows in after.state.values()),
            "flags": int(meta.flags),
            **{
                name: getattr(meta, name)
                for name in (
                    "open_windows",
                    "dirty_from",
                    "dirty_windows",
                    "opened",
                    "checked",
                    "closed",
                    "inputs",
                    "elapsed_us",
                )
            },
        }
        return after, arguments

    def append(
        self,
        store: StoreId,
        before: Tip,
        changes: dict[bytes, Rows],
        checked: AbstractSet[bytes] = frozenset(),
        **more: Any,
    ) -> tuple[Tip, dict[str, Any]]:
        """One commit; the tip after it, and the answer."""
        after, arguments = self.append_arguments(store, before, changes, checked, **more)
        return after, self.write(arguments)

    def write(self, *commits: dict[str, Any], retry: bool = False) -> dict[str, Any]:
        """Sends the commits in one call; the answer of the first one."""
        answer = self.ask("append", commits=list(commits), outputs=[], retry=retry)["commits"]
        assert len(answer) == len(commits)
        return dict(answer[0])

    def write_output(self, batch: int, spool: str | None, rows: int, *, partition: int = 0, generation: int = 1) -> str:
        """Writes an output frame; its id."""
        frame: str = new_id().hex()
        known = {"frame": frame, "batch": batch, "partition": partition, "attempt": 0, "generation": generation}
        output = {**known, "rows": rows, "spool": spool}
        assert self.ask("append", log_id=None, commits=[], outputs=[output]) == {"commits": []}
        return frame

    def rows(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows of the spool file that an answer names."""
        if answer["spool"] is None:
            return []
        with pa.memory_map(answer["spool"]) as file, pa.ipc.open_stream(file) as stream:
            found = stream.read_all().to_pylist()
        Path(answer["spool"]).unlink()
        assert isinstance(found, list)
        return found


def window(name: bytes, value: bytes = b"1") -> dict[bytes, Rows]:
    """A plain window with a value, as a change; without one it closes."""
    return {name: {name: value} if value else {}}
