"""A pipeline under a checkpointing protocol: who takes part, and how all of them go back to one line.

The machines are asked by the agent, between the batches of the flows (`agent.protocols`); what they have taken is in
the flows' folders (`protocols.records`). Here is what a failure needs: nobody runs while it is done.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.agent.owner import external_log, refuse_if_owned
from spark_cec.errors import DamagedLog, SettingsError, UnsuitableCheckpoint
from spark_cec.log.home import absolute_home
from spark_cec.log.storage import Storage
from spark_cec.pipeline.graph import Graph, GraphError
from spark_cec.protocols.choose import Protocol, UnknownProtocol, check_inputs, protocol_of
from spark_cec.protocols.coordinated import CycleRefused
from spark_cec.protocols.driving import line_of
from spark_cec.protocols.records import Records, checkpoints_of, read_records, records_in
from spark_cec.protocols.spec import SPEC_FILE, Spec, new_run, note_stop, read_spec, write_spec
from spark_cec.recovery.query_files import QUERY
from spark_cec.recovery.rollback import has_whole_batch, refuse_out_of_reach, roll_back
from spark_cec.recovery.spark_logs import committed_batch
from spark_cec.settings import PREFIX, duration_ms

_LOG = logging.getLogger(__name__)

ROLLBACK_FILE = "rollback.json"
ROLLBACKS = "rollbacks"
RETAINED_KEY = "spark.sql.streaming.minBatchesToRetain"
RETAINED = "1000000000"
"""Batches that Spark keeps of a flow that takes part: all, since the agent lets go what no line needs any more."""

RELEASES = ("checkpoint", "at-once")
_ENDING = frozenset({"availableNow", "once", "continuous", "realTime"})


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """How a pipeline is checkpointed. `interval_s`: between checkpoints; none with CEC, which has them all the time.

    `at_once`: what sinks are given leaves the pipeline with its batch, and again if a failure takes it back; else when
    no failure can take it back any more.
    """

    protocol: Protocol = Protocol.CEC
    interval_s: float = 5.0
    at_once: bool = False

    @property
    def is_cec(self) -> bool:
        """Whether each flow comes back by itself."""
        return self.protocol is Protocol.CEC

    def taking_part(self, graph: Graph) -> dict[str, tuple[str, ...]]:
        """The flows that are taken back together, with what each reads of them; sinks, if they are not behind that."""
        members = [node for node in graph.nodes.values() if self.at_once or not node.is_sink]
        return {node.name: tuple(dict.fromkeys(node.inputs)) for node in members}

    def to_json(self) -> dict[str, Any]:
        """What is recorded of it with a home: what may not change."""
        return {"name": self.protocol.value, "release": RELEASES[1] if self.at_once else RELEASES[0]}


def checkpointing_of(pipeline: str, protocol: str, interval: str | float, release: str) -> Checkpointing:
    """From what a user says. Raises `GraphError` for what there is not, and for what does not go together."""
    try:
        found = protocol_of(protocol)
        interval_s = float(interval) if isinstance(interval, int | float) else duration_ms("", interval) / 1000
    except UnknownProtocol as error:
        raise GraphError(pipeline, [f"protocol={protocol!r}: {error}"]) from None
    except SettingsError:
        raise GraphError(
            pipeline, [f"checkpoint_interval={interval!r}: give a duration such as 5s, or a number of seconds"]
        ) from None
    if not interval_s > 0:
        raise GraphError(pipeline, [f"checkpoint_interval={interval!r}: give more than 0"])
    if release not in RELEASES:
        raise GraphError(pipeline, [f"release={release!r}: give {' or '.join(RELEASES)}"])
    if found is Protocol.NONE and release != "at-once":
        mend = "without checkpoints nothing is ever safe from a failure: say release='at-once'"
        raise GraphError(pipeline, [f"protocol='none' has release={release!r}: {mend}"])
    return Checkpointing(found, interval_s, release == "at-once")


def check_flows(graph: Graph, checkpointing: Checkpointing, triggers: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Raises `GraphError` for a graph, or a flow, that cannot be had under the protocol."""
    if checkpointing.is_cec:
        return
    try:
        check_inputs(checkpointing.protocol, checkpointing.taking_part(graph))
    except CycleRefused as error:
        raise GraphError(graph.name, [str(error)]) from None
    ending = [name for name, trigger in triggers.items() if _ENDING & (trigger or {}).keys()]
    if ending:
        why = f"under protocol={checkpointing.protocol.value!r} a failure may take each flow back, so all run on"
        mend = "leave it out, or say processingTime"
        raise GraphError(graph.name, [f"{name} has trigger={triggers[name]!r}: {why}; {mend}" for name in ending])


class Lines:
    """Takes the flows of a pipeline back to their line, and says which run of them all comes next."""

    def __init__(self, home: str, graph: Graph, checkpointing: Checkpointing) -> None:
        """Reads nothing yet. `home`: of the pipeline."""
        self.checkpointing = checkpointing
        self._name = graph.name
        self._place = home
        self._home = open_storage(home)
        self._inputs = checkpointing.taking_part(graph)
        self._run = ""
        self._rollbacks = -1  # the first one is that of the start
        self._warned: set[str] = set()

    def conf_of(self, flow: str) -> dict[str, str]:
        """What the session of a flow says of the run that is under way."""
        own = {"protocol.home": self._place, "protocol.flow": flow, "protocol.run": self._run}
        if flow in self._inputs:
            own["protocol"] = self.checkpointing.protocol.value
        return {PREFIX + key: value for key, value in own.items()}

    @property
    def told(self) -> tuple[str, int]:
        """The protocol, and how often this driver has taken all flows back since it started."""
        return self.checkpointing.protocol.value, max(self._rollbacks, 0)

    def warn_of_long_batches(self, flow: str, ms: float | None) -> None:
        """Says once that a flow's checkpoints cannot be as frequent as they are wanted."""
        interval_ms = 1000 * self.checkpointing.interval_s
        if ms is None or ms <= interval_ms or not self.takes_part(flow) or flow in self._warned:
            return
        self._warned.add(flow)
        _LOG.warning(
            "pipeline %s: a batch of flow %s takes %.1f s; checkpoints come between batches, and not every %g s then "
            "(checkpoint_interval)", self._name, flow, ms / 1000, self.checkpointing.interval_s,
        )  # fmt: skip

    def takes_part(self, flow: str) -> bool:
        """Whether a failure takes this flow back with the others."""
        return flow in self._inputs

    def go_back(self, failed: Collection[str] = ()) -> None:
        """All flows that take part are taken back to the newest line there is. None of them may run.

        1. Find the line, unless one was found before, and not all are there yet; all must be able to go there. Count
           the runs before.
        2. Write it down: after a crash the same is done again.
        3. Take each flow back to its checkpoint, and forget those behind it.
        4. Number the run that begins now, and write down how this went.

        Raises `UnsuitableCheckpoint` where a flow cannot go there, `Fenced` where one runs.
        """
        began = time.monotonic()
        line, records = self._begun() or self._newest()  # 1
        for name in self._inputs:
            self._refuse_out_of_reach(name, records[name], line[name])
        runs_before = self._runs_before()
        self._home.replace(ROLLBACK_FILE, json.dumps({"line": line}).encode())  # 2
        report = {name: self._take_back(name, records[name], line[name]) for name in self._inputs}  # 3
        number, self._run = runs_before + 1, new_run()  # 4
        protocol, interval_s = self.checkpointing.protocol, self.checkpointing.interval_s
        write_spec(self._home, Spec(protocol, interval_s, self._inputs, number, self._run))
        took_ms = round(1000 * (time.monotonic() - began), 1)
        told = {"failed": sorted(failed), "at_ms": int(time.time() * 1000), "took_ms": took_ms, "flows": report}
        self._home.replace(f"{ROLLBACKS}/{number:010d}.json", json.dumps(told, indent=1).encode())
        self._home.delete(ROLLBACK_FILE)
        self._rollbacks += 1
        if any(each["batches"] for each in report.values()):
            back = ", ".join(f"{name} to batch {each['batch']}" for name, each in report.items() if each["batches"])
            _LOG.warning("pipeline %s: its flows go back to one line: %s", self._name, back)

    def stop(self) -> None:
        """All flows are about to be stopped in good order: what they leave then is a line, too."""
        note_stop(self._home, self._run)

    def _runs_before(self) -> int:
        """How often all flows have begun so far; each time has left a report, too, should the file be damaged."""
        reports = [file.name.removesuffix(".json") for file in self._home.list(ROLLBACKS)]
        told = max((int(each) for each in reports if each.isascii() and each.isdigit()), default=0)
        try:
            before = read_spec(self._home)
        except DamagedLog as error:
            _LOG.warning(
                "%s cannot be read (%s): it is written anew, behind run %d, the last one in %s",
                f"{self._place}/{SPEC_FILE}", error, told, ROLLBACKS,
            )  # fmt: skip
            return told
        return max(before.number if before is not None else 0, told)

    def _take_back(self, name: str, records: Records, number: int) -> dict[str, int]:
        """One flow: where it is then, how many batches that takes back, and how many checkpoints are of no use."""
        at, leases = records.at(number), CheckpointLeases()
        checkpoint, own = open_storage(self._flow(name)), self._own(name)
        leases.hold(self._flow(name), own, log=external_log(self._flow(name), self._log_home(name)))
        try:
            was = committed_batch(checkpoint)
            roll_back(checkpoint, own, self._log(name), at.batch)
        finally:
            leases.close()
        invalid = records.forget_after(number)
        return {"batch": at.batch, "batches": was - at.batch, "checkpoint": number, "invalid": len(invalid)}

    def _refuse_out_of_reach(self, name: str, records: Records, number: int) -> None:
        checkpoint = open_storage(self._flow(name))
        refuse_if_owned(self._flow(name), self._log_home(name))
        refuse_out_of_reach(checkpoint, self._own(name), self._log(name), records.at(number).batch)

    def _records(self, name: str, inputs: tuple[str, ...]) -> Records:
        """The checkpoints of a flow, without those whose batch Spark has lost, as by a power loss: it syncs no file."""
        records, checkpoint = read_records(self._own(name), name, inputs), open_storage(self._flow(name))
        lost = [each for each in records.known if each.batch >= 0 and not has_whole_batch(checkpoint, each.batch)]
        for each in lost if len(lost) < len(records.known) else ():  # else there is no way to go
            _LOG.warning(
                "%s has checkpoint %d of batch %d, which Spark's logs there do not have whole: an older one is used",
                checkpoint.url, each.checkpoint.number, each.batch,
            )  # fmt: skip
            records.known.remove(each)
        return records

    def _begun(self) -> tuple[dict[str, int], dict[str, Records]] | None:
        """A line that not all are at yet, if all can go there still; else an older one is as good."""
        if not self._home.exists(ROLLBACK_FILE):
            return None
        # Whatever Spark's commits say: they are being cut.
        records = records_in(self._place, self._inputs, open_storage)
        try:
            told = json.loads(self._home.read(ROLLBACK_FILE))["line"]
            line = {name: int(told[name]) for name in self._inputs}
            for name, number in line.items():
                self._refuse_out_of_reach(name, records[name], number)
        except (LookupError, TypeError, ValueError, UnsuitableCheckpoint) as why:
            _LOG.warning(
                "pipeline %s: its flows were going back to one line, which cannot be gone to any more (%s): they go "
                "back further", self._name, why,
            )  # fmt: skip
            return None
        return line, records

    def _newest(self) -> tuple[dict[str, int], dict[str, Records]]:
        """The newest line that there is, by the number of each flow's checkpoint, and all checkpoints."""
        records = {name: self._records(name, read) for name, read in self._inputs.items()}
        line = line_of(self.checkpointing.protocol, checkpoints_of(records))
        return {name: at.number for name, at in line.items()}, records

    def _flow(self, name: str) -> str:
        return f"{self._place}/flows/{name}"

    def _own(self, name: str) -> Storage:
        return open_storage(f"{self._flow(name)}/cec")

    def _log(self, name: str) -> Storage:
        return open_storage(self._log_home(name))

    def _log_home(self, name: str) -> str:
        query = QUERY.read(self._own(name))
        inside = f"{self._flow(name)}/cec/log"
        return inside if query is None else absolute_home(self._flow(name), query["log_home"])
