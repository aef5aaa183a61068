"""Begins the runs of a pipeline under a checkpointing protocol: each run begins at a line of checkpoints.

The agent asks the machines between the batches of the flows (`agent.protocols`), and writes the checkpoints into the
flows' folders (`protocols.records`). This module does the rest: after a failure it takes all flows back together.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.agent.owner import external_log, refuse_log_of_another
from spark_cec.errors import DamagedLog
from spark_cec.log.home import absolute_home
from spark_cec.log.storage import Storage
from spark_cec.pipeline.checkpointing import Checkpointing
from spark_cec.pipeline.decide import LineOrders, decide_line
from spark_cec.pipeline.facts import ROLLBACK_FILE, read_line_facts
from spark_cec.pipeline.graph import Graph
from spark_cec.protocols.records import Record, Records, read_records
from spark_cec.protocols.spec import SPEC_FILE, Spec, new_run, note_stop, read_spec, write_spec
from spark_cec.recovery.facts import Places
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.rollback import roll_back
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import PREFIX

_LOG = logging.getLogger(__name__)

ROLLBACKS = "rollbacks"
"""In a pipeline's home: a report of each start of a run, `<number>.json`."""

RETAINED_KEY = "spark.sql.streaming.minBatchesToRetain"
RETAINED = "1000000000"
"""Spark keeps all batches of a flow that takes part, because the agent deletes those that no line needs."""


class ProtocolRuns:
    """The runs of a pipeline's flows under a checkpointing protocol; this driver begins one after another."""

    def __init__(
        self, home: str, graph: Graph, checkpointing: Checkpointing, confirm: Callable[[], None] = lambda: None
    ) -> None:
        """Reads nothing. `home` is the URL of the pipeline's home.

        `confirm` raises `Fenced` if another driver may have taken the home over. It is called before each change.
        """
        self.checkpointing = checkpointing
        self._pipeline = graph.name
        self._home = home
        self._confirm = confirm
        self._storage = open_storage(home)
        self._participants = checkpointing.list_participants(graph)
        self._run = ""
        self._begun_runs = 0
        self._warned: set[str] = set()

    @property
    def rollbacks(self) -> int:
        """How often this driver has taken all flows back after its start."""
        return max(self._begun_runs - 1, 0)

    def takes_part(self, flow: str) -> bool:
        """Whether a failure takes this flow back with the others."""
        return flow in self._participants

    def make_conf(self, flow: str) -> dict[str, str]:
        """The settings by which a flow's session knows the present run."""
        own = {"protocol.home": self._home, "protocol.flow": flow, "protocol.run": self._run}
        if self.takes_part(flow):
            own["protocol"] = self.checkpointing.protocol.value
        return {PREFIX + key: value for key, value in own.items()}

    def begin_run(self, failed: Collection[str] = ()) -> None:
        """Begins a run: takes all flows that take part back to one line. None of them may run.

        1. Read the facts, and decide the line. Count the earlier runs.
        2. Note the line in `rollback.json`. After a crash the next start goes on with this line.
        3. Take each flow back to its checkpoint, and delete the later checkpoints.
        4. Give the run its number and its name, report how the rollback went, and delete the note.

        `failed`: the flows whose failure ended the last run. Raises `UnsuitableCheckpoint` if a flow cannot go back,
        `DamagedLog` if the checkpoints of a flow are unreadable, `Fenced` if a flow runs, or
        another driver may have the home.
        """
        began = time.monotonic()
        places = {name: self._open_places(name) for name in self._participants}
        records = {name: read_records(places[name].own, name, read) for name, read in self._participants.items()}
        orders = decide_line(read_line_facts(self._storage, self.checkpointing.protocol, places, records))  # 1
        self._log_orders(orders)
        number = self._count_runs() + 1
        note = {"line": {name: record.checkpoint.number for name, record in orders.line.items()}}
        self._confirm()
        self._storage.replace(ROLLBACK_FILE, json.dumps(note).encode())  # 2
        report = {name: self._take_back(name, places[name], records[name], orders.line[name]) for name in places}  # 3
        self._confirm()
        self._run = new_run()  # 4
        write_spec(self._storage, self._make_spec(number))
        self._report(number, failed, 1000 * (time.monotonic() - began), report)
        self._storage.delete(ROLLBACK_FILE)
        self._begun_runs += 1

    def note_stop(self) -> None:
        """Notes that all flows of the run are about to be stopped in good order: they then end at a line.

        Raises `Fenced` if another driver may have the home.
        """
        self._confirm()
        note_stop(self._storage, self._run)

    def warn_of_long_batch(self, flow: str, ms: float | None) -> None:
        """Warns once if a flow's batch takes longer than the checkpoint interval. `ms`: of its newest batch."""
        interval_ms = 1000 * self.checkpointing.interval_s
        if ms is None or ms <= interval_ms or not self.takes_part(flow) or flow in self._warned:
            return
        self._warned.add(flow)
        _LOG.warning(
            "pipeline %s: a batch of flow %s takes %.1f s. Checkpoints come between batches, so they cannot come every "
            "%g s (checkpoint_interval)", self._pipeline, flow, ms / 1000, self.checkpointing.interval_s,
        )  # fmt: skip

    def _open_places(self, flow: str) -> Places:
        """The storages of a flow. Raises `UnsuitableCheckpoint` if its log belongs to another checkpoint."""
        checkpoint = f"{self._home}/flows/{flow}"
        own = open_storage(f"{checkpoint}/cec")
        home = _find_log(checkpoint, own)
        refuse_log_of_another(checkpoint, home)
        return Places(open_storage(checkpoint), own, open_storage(home))

    def _count_runs(self) -> int:
        """How many runs have begun in this home. The reports tell that, too, if the file is damaged."""
        reports = [file.name.removesuffix(".json") for file in self._storage.list(ROLLBACKS)]
        reported = max((int(each) for each in reports if each.isascii() and each.isdigit()), default=0)
        try:
            before = read_spec(self._storage)
        except DamagedLog as error:
            _LOG.warning(
                "%s/%s cannot be read (%s): the next run writes it anew, after run %d, the last one in %s",
                self._home, SPEC_FILE, error, reported, ROLLBACKS,
            )  # fmt: skip
            return reported
        return max(before.number if before is not None else 0, reported)

    def _take_back(self, name: str, places: Places, records: Records, to: Record) -> dict[str, int]:
        """Takes one flow back under its lease; answers the numbers for the report."""
        checkpoint, leases = f"{self._home}/flows/{name}", CheckpointLeases()
        leases.hold(checkpoint, places.own, log=external_log(checkpoint, _find_log(checkpoint, places.own)))
        try:
            self._confirm()
            was = committed_batch(places.checkpoint)
            roll_back(places.checkpoint, places.own, places.log, to.batch)
        finally:
            leases.close()
        number = to.checkpoint.number
        invalid = records.forget_after(number)
        return {"batch": to.batch, "batches": was - to.batch, "checkpoint": number, "invalid": len(invalid)}

    def _make_spec(self, number: int) -> Spec:
        return Spec(self.checkpointing.protocol, self.checkpointing.interval_s, self._participants, number, self._run)

    def _report(
        self, number: int, failed: Collection[str], took_ms: float, flows: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Writes the report of a start, and logs it if a flow went back."""
        report: dict[str, Any] = {
            "failed": sorted(failed), "at_ms": int(time.time() * 1000), "took_ms": round(took_ms, 1), "flows": flows,
        }  # fmt: skip
        self._storage.replace(f"{ROLLBACKS}/{number:010d}.json", json.dumps(report, indent=1).encode())
        back = [f"{name} to batch {each['batch']}" for name, each in flows.items() if each["batches"]]
        if back:
            _LOG.warning("pipeline %s: its flows go back to one line: %s", self._pipeline, ", ".join(back))

    def _log_orders(self, orders: LineOrders) -> None:
        if orders.abandoned is not None:
            _LOG.warning(
                "pipeline %s: an unfinished rollback cannot reach its line any more (%s): its flows go back further",
                self._pipeline, orders.abandoned,
            )  # fmt: skip
        for name, lost in orders.lost.items():
            for each in lost:
                _LOG.warning(
                    "%s/flows/%s has checkpoint %d of batch %d, and Spark's logs there lack files of that batch: an "
                    "older checkpoint is used", self._home, name, each.checkpoint.number, each.batch,
                )  # fmt: skip


def _find_log(checkpoint: str, own: Storage) -> str:
    query = QUERY.read(own)
    return f"{checkpoint}/cec/log" if query is None else absolute_home(checkpoint, query["log_home"])
