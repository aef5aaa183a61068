"""The home of a pipeline: its flows' checkpoints, the graph that it was begun with, its lease, and its status."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import CheckpointLeases
from spark_cec.checkpoint.columns import column_names, with_former_columns
from spark_cec.errors import CecError, Fenced, LogLocationError
from spark_cec.log.storage import Storage
from spark_cec.pipeline.checkpointing import CEC, Checkpointing
from spark_cec.pipeline.graph import Graph, GraphError, check_columns, check_recorded, to_json
from spark_cec.pipeline.replicas import (
    FORMER,
    SINKS_FILE,
    STARTS_WITHIN_S,
    STATUS_FILE,
    Replica,
    list_columns,
    list_replicas,
    refuse_other_graph,
    refuse_other_kind,
)
from spark_cec.pipeline.status import FlowStatus, PipelineStatus, State
from spark_cec.recovery.query_files import PIPELINE_FILE
from spark_cec.recovery.spark_logs import committed_batch

_LOG = logging.getLogger(__name__)

PROTOCOL = "protocol"


_BEFORE = "before"
"""In the status of a start: the status that was there before."""


def _describe(graph: Graph, home: str, flows: Collection[str], state: State) -> PipelineStatus:
    now = tuple(FlowStatus(name, state) for name in graph.nodes if name in flows)
    return PipelineStatus(graph.name, home, os.getpid(), int(time.time() * 1000), now)


class NoHome(CecError):
    """A place is no home of a pipeline, or its files are unreadable: see the message."""


class PipelineHome:
    """`<home>/pipeline.json`, `<home>/status.json`, and `<home>/flows/<flow>`: a checkpoint with the flow's channel."""

    def __init__(self, home: str, replica: Replica | None = None, sinks: Collection[str] = ()) -> None:
        """`replica`: whose home it is. Its `sinks` are elsewhere. Raises `LogLocationError` for an unusable place."""
        self.home = home
        self._replica = replica
        self._sinks = frozenset(sinks)
        self._storage = open_storage(home)
        self._leases = CheckpointLeases()

    @classmethod
    def of(cls, graph: Graph, base: str, replica: Replica | None) -> PipelineHome:
        """The home of a pipeline, or of its replica. Raises `GraphError` if the home was begun in the other way."""
        refuse_other_kind(graph.name, base, replica)
        sinks = [name for name, node in graph.nodes.items() if node.is_sink]
        return cls(base) if replica is None else cls(replica.home, replica, sinks)

    def flow(self, name: str) -> str:
        """The checkpoint of a flow, which holds its channel."""
        return self._find_place(name, is_sink=name in self._sinks)

    def _find_place(self, name: str, *, is_sink: bool) -> str:
        if self._replica is not None and is_sink:
            return f"{self._replica.sinks}/{name}"
        return f"{self.home}/flows/{name}"

    def take(
        self, graph: Graph, schemas: Mapping[str, str], checkpointing: Checkpointing = CEC, wait_s: float | None = None,
        reads: Mapping[str, Any] | None = None, flows: Collection[str] | None = None,
    ) -> list[str]:  # fmt: skip
        """Takes the lease, compares the graph with the recorded one, and records it; answers the new flows.

        `schemas`: the columns of each flow, as Spark's JSON. `reads`: how each flow of a replica reads. Waits at most
        `wait_s` for the end of a killed driver. If the call fails, it gives the lease back. `flows`: those that start;
        None for all. The status says so before the programs of two replicas are compared: of two that start at once,
        one sees the other one.

        Raises `Fenced` if another driver has the pipeline, `GraphError` if the graph or a column's type changed, and
        `LogLocationError` for an unusable place.
        """
        self._hold(graph, wait_s)
        starting = graph.nodes.keys() if flows is None else flows
        try:
            self._write_starting(graph, starting)
            recorded = self._read(PIPELINE_FILE)
            new = self._compare_graph(graph, recorded, checkpointing, schemas)
            before = list_columns(recorded or {})
            # Ask the storage whether a flow's folder exists only if the answer matters.
            known = {name: with_former_columns(each, before[name]) for name, each in schemas.items()
                     if name not in new and before.get(name, each) != each and not self._is_gone(name)}  # fmt: skip
            for name in known:
                gone = sorted(column_names(before[name]) - column_names(schemas[name]))
                if gone and graph.readers(name):
                    _LOG.warning(
                        "flow %s of pipeline %s no longer has the column %s: its readers do not get the column any "
                        "more, and new columns are null in the rows that were written before",
                        name, graph.name, " and ".join(gone),
                    )  # fmt: skip
            wanted = {**to_json(graph), "schemas": dict(schemas), PROTOCOL: checkpointing.to_json()}
            if former := {name: each for name, each in known.items() if each != schemas[name]}:
                wanted[FORMER] = former
            if self._replica is not None:
                wanted = {**wanted, "reads": dict(reads or {})}
                dead = refuse_other_graph(graph.name, self._replica, wanted)
            if wanted != recorded:
                self._storage.replace(PIPELINE_FILE, json.dumps(wanted, indent=1).encode())
            if self._replica is not None:
                announce = partial(self._write_starting, graph, starting)
                refuse_other_graph(graph.name, self._replica, wanted, STARTS_WITHIN_S, dead, announce)
                self._record_sinks(graph, self._replica)
        except BaseException:
            self.withdraw(graph)
            raise
        return new

    def withdraw(self, graph: Graph) -> None:
        """Gives the lease back after a start that failed. The status is as before, or says that nothing runs.

        Writes nothing if another driver may have the home.
        """
        with contextlib.suppress(OSError, CecError):
            if self._leases.has(self.home):
                self.confirm()
                before = self._read_before()
                if before is None:
                    self._write_state(graph, graph.nodes, State.STOPPED)
                else:
                    self._storage.replace(STATUS_FILE, json.dumps(before).encode())
        self.release()

    def _write_starting(self, graph: Graph, flows: Collection[str]) -> None:
        """Says that flows are starting, and keeps the status that was there before, for a start that fails.

        Raises `Fenced` if another driver may have the home.
        """
        self.confirm()
        now = _describe(graph, self.home, flows, State.STARTING).to_json()
        self._storage.replace(STATUS_FILE, json.dumps({**now, _BEFORE: self._read_before()}).encode())

    def _read_before(self) -> dict[str, Any] | None:
        """The status before the present start; None if there was none, or if it cannot be read."""
        with contextlib.suppress(LogLocationError):
            found = self._read(STATUS_FILE)
            before = found.get(_BEFORE, found) if found is not None else None
            return before if isinstance(before, dict) else None
        return None

    def announce(
        self, graph: Graph, flows: Collection[str], checkpointing: Checkpointing = CEC, wait_s: float | None = None
    ) -> None:
        """Checks the home before Spark starts, and writes a status that says that these flows are starting.

        Raises the errors of `take`, except those that need the columns.
        """
        taken = self._hold(graph, wait_s)
        try:
            recorded = self._read(PIPELINE_FILE)
            self._compare_graph(graph, recorded, checkpointing)
            self._write_starting(graph, flows)
        finally:
            if taken:
                self.release()

    def take_back(self, graph: Graph) -> None:
        """Puts back the status that `announce` has replaced, after a start that failed. A running driver's stays."""
        with contextlib.suppress(OSError, CecError):
            if self._hold(graph, 0.0):
                self.withdraw(graph)

    def _write_state(self, graph: Graph, flows: Collection[str], state: State) -> None:
        self.write_status(_describe(graph, self.home, flows, state))

    def _hold(self, graph: Graph, wait_s: float | None) -> bool:
        """Takes the lease; answers whether this call took it."""
        self._storage.probe_writable()
        try:
            return self._leases.hold(self.home, self._storage, wait_s)
        except Fenced as error:
            holder = re.search(r"agent process (\d+)", str(error))
            raise Fenced(
                f"pipeline {graph.name} at {self.home} is running already: stop that driver first"
                f"{f', process {holder[1]}' if holder else ''}; a pipeline has one driver at a time"
            ) from None

    def _compare_graph(
        self, graph: Graph, recorded: dict[str, Any] | None, checkpointing: Checkpointing,
        schemas: Mapping[str, str] | None = None,
    ) -> list[str]:  # fmt: skip
        """Compares graph and protocol with the recorded ones; answers the new flows."""
        sinks = None if self._replica is None else _read_sinks(self._replica)
        if recorded is None and sinks is None:
            return list(graph.nodes)
        base = None if self._replica is None else self._replica.base
        try:
            recorded = _join_records(recorded, sinks)
            _refuse_another_protocol(graph.name, self.home, recorded, checkpointing)
            new = check_recorded(graph, recorded, self.home, self._is_gone, base)
            check_columns(graph, list_columns(recorded), schemas or {}, self.home, self._is_gone, base)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise LogLocationError(
                f"{self.home}/{PIPELINE_FILE}", f"holds no graph ({error!r}); restore it from a copy"
            ) from error
        if new and not checkpointing.is_cec:
            how = f"under protocol={checkpointing.protocol.value!r} flows cannot be added"
            mend = "because its lines have no checkpoint of them; give the pipeline another home"
            raise GraphError(graph.name, [f"{self.home} was begun without {' and '.join(new)}: {how}, {mend}"])
        return new

    def _record_sinks(self, graph: Graph, replica: Replica) -> None:
        """Records what the sinks read. Before this it must be certain that the other replica runs no other program."""
        reads = {name: list(node.inputs) for name, node in graph.nodes.items() if node.is_sink}
        storage, wanted = open_storage(replica.sinks), {"name": graph.name, "reads": reads}
        if _read_object(storage, SINKS_FILE) != wanted:
            storage.replace(SINKS_FILE, json.dumps(wanted).encode())

    def has_batch(self, name: str) -> bool:
        """Whether a flow has committed a batch, in any run; True if the storage does not answer."""
        try:
            return committed_batch(open_storage(self.flow(name))) >= 0
        except (OSError, CecError):
            return True

    def _is_gone(self, flow: str) -> bool:
        """Whether nothing is left of a flow, or of a sink that had this name when the home was begun."""
        places = {self._find_place(flow, is_sink=is_sink) for is_sink in (False, True)}
        return not any(place.list("") or place.list("cec/log") for place in map(open_storage, places))

    def confirm(self) -> None:
        """Raises `Fenced` if another driver may have taken the home over, as after a pause."""
        self._leases.confirm(self.home)

    @property
    def is_lost(self) -> bool:
        """Whether another driver is known to have taken the home over."""
        return self._leases.is_lost(self.home)

    def release(self) -> None:
        """Gives the lease back, if this object has it."""
        self._leases.release(self.home)

    def write_status(self, status: PipelineStatus) -> None:
        """Writes the status."""
        self._storage.replace(STATUS_FILE, json.dumps(status.to_json()).encode())

    def status(self) -> PipelineStatus:
        """Reads the newest status. Raises `NoHome`."""
        fields = self._read(STATUS_FILE)
        if fields is None:
            raise NoHome(f"{self.home} is no home of a pipeline that was ever started: it has no {STATUS_FILE}")
        try:
            return PipelineStatus.from_json(fields)
        except (KeyError, ValueError, TypeError) as error:
            raise NoHome(f"{self.home}/{STATUS_FILE} cannot be read: {error!r}") from error

    def recorded_flows(self) -> dict[str, bool]:
        """The names of the flows and sinks of the recorded graph; True for a sink. Raises `NoHome`."""
        fields = self._read(PIPELINE_FILE)
        if fields is None:
            raise NoHome(f"{self.home} is no home of a pipeline that was ever started: it has no {PIPELINE_FILE}")
        if not isinstance(fields.get("flows"), dict):
            raise NoHome(f"{self.home}/{PIPELINE_FILE} holds no graph; restore it from a copy")
        return {name: bool(node.get("sink")) for name, node in fields["flows"].items()}

    def _read(self, path: str) -> dict[str, Any] | None:
        return _read_object(self._storage, path)


def _read_object(storage: Storage, path: str) -> dict[str, Any] | None:
    """A file with a JSON object; None if there is none. Raises `LogLocationError` for a damaged one."""
    try:
        found = json.loads(storage.read(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise LogLocationError(f"{storage.url}/{path}", f"cannot be read: {error}; restore it from a copy") from error
    if not isinstance(found, dict):
        raise LogLocationError(f"{storage.url}/{path}", "holds no object: restore it from a copy")
    return found


def _read_sinks(replica: Replica) -> dict[str, Any] | None:
    """The graph of the sinks as the replicas ran them last; None if an earlier release did, or if none ever ran.

    Raises `LogLocationError` for a damaged record.
    """
    found = _read_object(open_storage(replica.sinks), SINKS_FILE)
    if found is None:
        return None
    try:
        sinks = {name: {"inputs": list(inputs), "sink": True} for name, inputs in found["reads"].items()}
        return {"name": found["name"], "flows": sinks}
    except (KeyError, TypeError, AttributeError) as error:
        raise LogLocationError(
            f"{replica.sinks}/{SINKS_FILE}", f"does not say what the sinks read ({error!r}); restore it from a copy"
        ) from error


def _join_records(recorded: dict[str, Any] | None, sinks: dict[str, Any] | None) -> dict[str, Any]:
    """What this replica has recorded, with the sinks as both have them: it may have been away when they changed."""
    if recorded is None or sinks is None:
        return recorded or sinks or {}
    own = {name: node for name, node in recorded["flows"].items() if not node["sink"]}
    return {**recorded, "flows": {**own, **sinks["flows"]}}


def open_homes(base: str) -> dict[str, PipelineHome]:
    """The homes of a pipeline's replicas, by name; if it has none, its only home, by an empty name."""
    found = {}
    for each in list_replicas(base):
        recorded = PipelineHome(each.home, each)._read(PIPELINE_FILE) or {}
        sinks = [name for name, node in recorded.get("flows", {}).items() if node.get("sink")]
        found[each.name] = PipelineHome(each.home, each, sinks)
    return found or {"": PipelineHome(base)}


def _refuse_another_protocol(
    pipeline: str, home: str, recorded: Mapping[str, Any], checkpointing: Checkpointing
) -> None:
    """Raises `GraphError` for another protocol: it cannot go back to the checkpoints of the recorded one."""
    then, now = recorded.get(PROTOCOL, CEC.to_json()), checkpointing.to_json()
    for what, name in (("protocol", "name"), ("release", "release")):
        if then.get(name) != now[name] and not (name == "release" and checkpointing.is_cec):
            begun = f"{home} was begun with {what}={then.get(name)!r}, and is to go on with {what}={now[name]!r}"
            raise GraphError(pipeline, [f"{begun}: give the former value, or give the pipeline another home"])
