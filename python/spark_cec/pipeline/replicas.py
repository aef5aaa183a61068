"""A pipeline in two replicas: where their files are, and what cannot run in replicas.

| in the home | what it has |
|---|---|
| `replicas/a`, `replicas/b` | what the home of a pipeline has, of the flows of that replica |
| `sinks/<sink>` | the checkpoint of a sink, which one of the replicas runs |
| `sinks/lock`, `sinks/lease` | the lease of the sinks, on a file system or elsewhere |
| `sinks/reads.json` | the flows that each sink reads |
| `agreed/<flow>` | the agreements on the batches of a flow that reads a source (`agent.agreements`) |
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.lease import LOCK_FILE
from spark_cec.availability.replicas import REPLICAS
from spark_cec.availability.union import Copy
from spark_cec.pipeline.declare import Flow
from spark_cec.pipeline.graph import Graph, GraphError
from spark_cec.pipeline.options import parse_interval_ms
from spark_cec.pipeline.status import PipelineStatus, State
from spark_cec.recovery.query_files import PIPELINE_FILE

STATUS_FILE = "status.json"

SINKS_FILE = "reads.json"
"""Beside the checkpoints of the sinks: the flows that each sink reads. The replicas share it, as the checkpoints."""

FORMER = "former"
"""In a record: the columns of a flow that has had others before, with those. Each replica has a history of its own."""

_LOOK_S = 0.2
_ANNOUNCE_S = 1.0
_SILENT_S = 10.0
"""A replica that has not said again for so many seconds that it starts may be gone."""

FRESH_S = 75.0
"""A replica runs if it writes its status within so many seconds. It does so once a second, if the storage answers.
So this is longer than a request to a storage is repeated.
"""

STARTS_WITHIN_S = FRESH_S + 15.0
"""So long a replica waits for the other one, which starts at the same time, to record its program."""

DEFAULT_INTERVAL = "1 second"
"""Between two batches of a flow that reads a source. A replica that is behind runs them one after the other."""

_MEND = "or run the pipeline without replicas"


@dataclass(frozen=True, slots=True)
class Replica:
    """One of the two replicas of a pipeline. `base`: the home of both."""

    name: str
    base: str

    @property
    def home(self) -> str:
        """The home of this replica's flows."""
        return _home(self.base, self.name)

    @property
    def other(self) -> Replica:
        """The other replica."""
        return Replica(next(each for each in REPLICAS if each != self.name), self.base)

    @property
    def sinks(self) -> str:
        """The directory of the sinks, whose lease the replica has that runs them."""
        return f"{self.base}/sinks"

    def agreements(self, flow: str) -> str:
        """The agreements on the batches of a flow."""
        return f"{self.base}/agreed/{flow}"

    def copies(self, flow: str) -> tuple[Copy, ...]:
        """The channels of a flow, in both replicas."""
        return tuple(Copy(each, f"{_home(self.base, each)}/flows/{flow}") for each in REPLICAS)


def _home(base: str, replica: str) -> str:
    return f"{base}/replicas/{replica}"


def parse_replica(pipeline: str, base: str, name: str | None) -> Replica | None:
    """The replica of that name; None for a pipeline without replicas. Raises `GraphError` for another name."""
    if name is None:
        return None
    if name not in REPLICAS:
        raise GraphError(pipeline, [f"there is no replica {name!r}: give {' or '.join(REPLICAS)}"])
    return Replica(name, base)


def list_replicas(base: str) -> tuple[Replica, ...]:
    """The replicas that were ever started in a home; none for a pipeline without replicas."""
    return tuple(
        Replica(each, base) for each in REPLICAS if open_storage(_home(base, each)).exists(PIPELINE_FILE)
    )


def refuse_other_kind(pipeline: str, base: str, replica: Replica | None) -> None:
    """Raises `GraphError` if the home was begun with replicas and is to go on without, or the other way round."""
    if replica is None and list_replicas(base):
        raise GraphError(pipeline, [f"{base} was begun with replicas: give --replica a or b, or another home"])
    if replica is not None and open_storage(base).exists(PIPELINE_FILE):
        raise GraphError(pipeline, [f"{base} was begun without replicas: leave --replica out, or give another home"])


def check_replicas(graph: Graph, flows: Mapping[str, Flow], *, is_cec: bool) -> None:
    """Raises `GraphError` with all that cannot run in replicas, as far as Spark's plans need not be asked."""
    found = [] if is_cec else [f"replicas need the protocol 'cec': leave the protocol out, {_MEND}"]
    cycles = [each for members in graph.cycles() for each in members]
    if cycles:
        found.append(f"{cycles[0]} feeds itself, and replicas cannot: declare it without the cycle, {_MEND}")
    for name, flow in flows.items():
        found.extend(f"{name} {each}, {_MEND}" for each in _judge(graph, flow))
    if found:
        raise GraphError(graph.name, found)


def _judge(graph: Graph, flow: Flow) -> Iterator[str]:
    node = flow.node
    if node.inputs and flow.bucket_ms is None:
        yield "reads whole batches, and replicas read by buckets: give bucket and watermarks"
    if flow.output_mode not in (None, "append") and not node.is_sink:
        yield f"has output_mode={flow.output_mode!r}, and replicas have append alone: leave it out"
    if flow.trigger is not None and "processingTime" not in flow.trigger:
        yield f"has trigger={dict(flow.trigger)!r}, and replicas go on: leave it out, or give processingTime"
    if flow.most_wait_ms is not None:
        yield "has waits_at_most, and each replica would go on without an input at another row: leave it out"
    if flow.keep is not None and not flow.blocks:
        yield "has at_keep='go on', and each replica would go on without an input at another row: leave it out"
    if flow.keep is not None and node.is_sink:
        yield "has keep and reads either replica's channels, and a replica holds its own flows alone: leave it out"
    if str(flow.reads.get("failOnDataLoss", "true")).lower() != "true":
        yield "has failOnDataLoss=false, and each replica would lose other rows: leave it out"
    if node.is_sink and node.name == LOCK_FILE:
        yield "has the name of the file that locks the sinks: give it another name"
    sources = [each for each in node.inputs if not graph.nodes[each].inputs]
    if node.is_sink and sources:
        yield f"reads {sources[0]}, which reads a source: let a flow by buckets stand between them"


def refuse_some_sinks(graph: Graph, chosen: Collection[str]) -> None:
    """Raises `GraphError` if some sinks were chosen and others not: the replicas have one lease for all sinks."""
    sinks = {name for name, node in graph.nodes.items() if node.is_sink}
    if sinks & set(chosen) and not sinks <= set(chosen):
        left_out = ", ".join(sorted(sinks - set(chosen)))
        raise GraphError(graph.name, [f"replicas run all sinks or none, and {left_out} was left out: choose it, too"])


def refuse_other_graph(
    pipeline: str, replica: Replica, wanted: Mapping[str, Any], wait_s: float = 0.0,
    dead: PipelineStatus | None = None, announce: Callable[[], None] = lambda: None,
) -> PipelineStatus | None:  # fmt: skip
    """Raises `GraphError` if the other replica runs with another graph, or reads in another way. `wanted`: our record.

    One that only starts may not have recorded its program yet. `wait_s`: how long to wait until it has; 0 before our
    own record is written. Of two that start at once each has recorded its program before it waits. Answers the last
    status of a replica that has another program, and does not run any more; `dead`: an earlier answer. `announce` is
    called now and then while this waits: it says again that our replica starts, so that the other one waits, too.
    """
    begun = announced = time.monotonic()
    sight, pause = None, threading.Event()
    while (status := _read_status(replica.other)) is not None and not status.is_over:
        differ = _find_differences(replica.other, wanted)
        if not differ:
            return None
        now = time.monotonic()
        sight = Sight.after(sight, status, now)
        verdict = judge_other_program(sight, now, begun, time.time(), wait_s, dead)
        if verdict is Verdict.GO_ON:
            return None if sight.is_starting else status
        if verdict is Verdict.REFUSE:
            mend = "run one program in both, and stop both to change it"
            has = f"replica {replica.other.name} runs with other {', '.join(differ)} than replica {replica.name}"
            raise GraphError(pipeline, [f"{has}: {mend}"])
        pause.wait(_LOOK_S)
        if time.monotonic() - announced >= _ANNOUNCE_S:
            announced = time.monotonic()
            announce()
    return None


class Verdict(Enum):
    """What to do at the sight of a replica with another program."""

    GO_ON = "go on"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Sight:
    """The status of a replica with another program. `since`: when it was first seen so, by our clock, in s.

    `writes`: it says the same of its flows as the status before, at another time. So its driver lives.
    """

    status: PipelineStatus
    since: float
    writes: bool = False

    @property
    def is_starting(self) -> bool:
        """Whether it only starts: it may not have recorded its program yet."""
        return _is_starting(self.status)

    @classmethod
    def after(cls, before: Sight | None, status: PipelineStatus, now: float) -> Sight:
        """The sight of a status after another one. A start that fails puts the status back that was there."""
        if before is not None and before.status == status:
            return before
        return cls(status, now, before is not None and before.is_starting == _is_starting(status))


def judge_other_program(
    sight: Sight, now: float, begun: float, wall_s: float, wait_s: float, dead: PipelineStatus | None
) -> Verdict:
    """Whether a replica with another program runs. `now`, `begun`: our clock, now and at the first look, in s.

    `wall_s`: seconds since 1970. `wait_s`, `dead`: as of `refuse_other_graph`.
    """
    still_s = now - sight.since
    if sight.status == dead or still_s >= FRESH_S:
        return Verdict.GO_ON
    if not sight.is_starting:
        return Verdict.REFUSE if sight.writes else Verdict.WAIT
    was_killed = not sight.writes and abs(wall_s - sight.status.wall_ms / 1000) > FRESH_S
    if not wait_s or was_killed:
        return Verdict.GO_ON
    is_due = now - begun >= wait_s and sight.writes and still_s < _SILENT_S
    return Verdict.REFUSE if is_due else Verdict.WAIT


def _is_starting(status: PipelineStatus) -> bool:
    return all(flow.state is State.STARTING for flow in status.flows)


def _find_differences(other: Replica, wanted: Mapping[str, Any]) -> list[str]:
    """In what the program of the other replica differs; nothing if it never ran."""
    try:
        theirs = json.loads(open_storage(other.home).read(PIPELINE_FILE))
    except (FileNotFoundError, ValueError):  # its own start says what is wrong
        return []
    if not isinstance(theirs, dict):
        return []
    return sorted(key for key in (wanted.keys() | theirs.keys()) - {FORMER} if wanted.get(key) != theirs.get(key))


def _read_status(replica: Replica) -> PipelineStatus | None:
    """The last status of a replica; None if there is none, or if it is damaged."""
    try:
        return PipelineStatus.from_json(json.loads(open_storage(replica.home).read(STATUS_FILE)))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def find_interval_ms(flow: Flow) -> int:
    """The time between two batches of a flow that reads a source, in ms: as its trigger says, or the default."""
    return parse_interval_ms((flow.trigger or {}).get("processingTime", DEFAULT_INTERVAL)) or 0


def describe_reads(
    flows: Mapping[str, Flow], settings: Mapping[str, Mapping[str, str]], bounded: Mapping[str, Collection[str]],
    constants: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """How each flow reads, and the settings of its session: they must be the same in both replicas.

    `bounded`: by flow, the columns for which it tells below which time no row will come. Outside readers need that.
    `constants`: by flow, the dates, times and tables in its program.
    """
    return {
        name: {
            "bucket_ms": flow.bucket_ms, "settings": dict(settings.get(name, {})),
            "bounded": sorted(bounded.get(name, ())),
            "watermarks": {read: list(each) for read, each in flow.watermarks.items()},
            **({"constants": list(constants[name])} if constants.get(name) else {}),
        }
        for name, flow in flows.items()
    }  # fmt: skip


def list_columns(record: Mapping[str, Any]) -> dict[str, str]:
    """By flow, the columns that its channel may have, as Spark's JSON: the present ones, and those of before."""
    return {**record.get("schemas", {}), **record.get(FORMER, {})}


def read_record(replica: Replica) -> dict[str, Any]:
    """What a replica has recorded of its pipeline. Raises `FileNotFoundError`, and `ValueError` for a damaged record.
    """
    found = json.loads(open_storage(replica.home).read(PIPELINE_FILE))
    if not isinstance(found, dict):
        raise ValueError(f"{replica.home}/{PIPELINE_FILE} has no record")
    return found


def read_newest_record(replicas: Collection[Replica]) -> dict[str, Any]:
    """The record of the replica that has written its status last. Errors as of `read_record`."""
    return read_record(max(replicas, key=_find_status_ms))


def _find_status_ms(replica: Replica) -> int:
    status = _read_status(replica)
    return 0 if status is None else status.wall_ms
