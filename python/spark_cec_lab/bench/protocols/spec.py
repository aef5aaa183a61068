"""One run of the comparison: what is asked of the job, and what it answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from spark_cec_lab.simulation.protocols.outcome import Taken

CYCLIC = "reachability"
"""The query with a cycle."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A pipeline under a protocol, below `home`.

    `query`: q1, q3, q8, q12, or `CYCLIC`, in so many `instances`. `rate`: input a second, events or changes, by the
    clock; None: as much as can be done. `settle_s` do not count; then it is looked at for `seconds`, in which an
    instance of the query fails after `fails_s`, None: it does not. `hot_percent`: of the keys, None as NexMark has it.
    """

    query: str
    protocol: str
    instances: int
    home: str
    rate: float | None = None
    settle_s: float = 8.0
    seconds: float = 20.0
    fails_s: float | None = None
    interval_s: float = 5.0
    hot_percent: int | None = None
    seed: int = 20110627

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """The reverse of `to_json`."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of input that has come out: when it was given, when it was done (s since the run began), its events."""

    given_s: float
    done_s: float
    events: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """`restart_s`: from the failure until all that had to go back run again, and `own_s` of it for what the pipeline
    does itself; `batches` that were taken back, of `back` flows; `invalid` checkpoints.
    """

    restart_s: float
    own_s: float
    back: int
    batches: int
    invalid: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has shown; times in seconds since it began, `began_s` and `ended_s` what is looked at of it.

    `payload_bytes` and `protocol_bytes` of the messages, all of them; `stores_bytes` of what stores wrote;
    `checkpoints`: how many were taken in all; `batches` of all flows and `cpu_s` of all processes: in the time that is
    looked at.
    """

    spec: RunSpec
    began_s: float
    ended_s: float
    done: tuple[Done, ...]
    taken: tuple[Taken, ...]
    checkpoints: int
    payload_bytes: int
    protocol_bytes: int
    store_bytes: int
    batches: int = 0
    cpu_s: float = 0.0
    failed_at_s: float | None = None
    recovery: Recovery | None = None

    @property
    def events_s(self) -> float:
        """Events that came out in a second, from the first batch that came out while it was looked at to the last.

        Not from the begin to the end of that time: whether one more batch falls into it is chance.
        """
        at = [each.done_s for each in self.done if self.began_s <= each.done_s < self.ended_s]
        if not at or at[0] == at[-1]:
            return 0.0
        return sum(each.events for each in self.done if at[0] < each.done_s <= at[-1]) / (at[-1] - at[0])

    def to_json(self) -> dict[str, Any]:
        """For one line."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Outcome:
        """The reverse of `to_json`."""
        return cls(**{
            **fields, "spec": RunSpec(**fields["spec"]), "done": tuple(Done(**each) for each in fields["done"]),
            "taken": tuple(Taken(**each) for each in fields["taken"]),
            "recovery": Recovery(**fields["recovery"]) if fields["recovery"] else None,
        })  # fmt: skip
