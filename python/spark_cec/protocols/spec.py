"""What a pipeline's protocol is, as its driver tells the agent: `<home>/protocol.json`, written before flows start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_cec.errors import DamagedLog
from spark_cec.ids import new_id
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.words import Process

SPEC_FILE = "protocol.json"


@dataclass(frozen=True, slots=True)
class Spec:
    """`inputs`: the flows that take part, each with those of them that it reads. `interval_s`: between checkpoints.

    `number` counts the times that all of them have gone back to a line and begun again from there, from 1 on; `run` is
    a name that no other one has, in this home or in another one at its place: see `new_run`.
    """

    protocol: Protocol
    interval_s: float
    inputs: Mapping[Process, tuple[Process, ...]]
    number: int
    run: str

    def readers(self, sender: Process) -> tuple[Process, ...]:
        """Who reads a flow's messages, of those that take part."""
        return tuple(name for name, read in self.inputs.items() if sender in read)


STOPPING_FILE = "stopping.json"
"""That all flows of a run are being stopped in good order: what they leave then is a line."""


def note_stop(home: Storage, run: str) -> None:
    """Before the first of them is stopped."""
    home.replace(STOPPING_FILE, encode_object({"run": run}))


def is_stopping(home: Storage, run: str) -> bool:
    """Whether that run is. One that cannot be read says nothing: then the last line is one."""
    try:
        return bool(decode_object(STOPPING_FILE, home.read(STOPPING_FILE), "note of a stop")[0]["run"] == run)
    except (FileNotFoundError, DamagedLog):
        return False


def new_run() -> str:
    """A name for a run of all flows; in order of time, as far as clocks are right."""
    return f"{int(time.time() * 1000):013d}-{new_id().hex()[:8]}"


def write_spec(home: Storage, spec: Spec) -> None:
    """Writes the file. `home` is rooted at the pipeline's home."""
    fields = {
        "protocol": spec.protocol.value, "interval_s": spec.interval_s, "number": spec.number, "run": spec.run,
        "inputs": {name: list(read) for name, read in spec.inputs.items()},
    }  # fmt: skip
    home.replace(SPEC_FILE, encode_object(fields))


def read_spec(home: Storage) -> Spec | None:
    """None where no protocol has begun there. Errors: `DamagedLog`, `NewerFormat`."""
    if not home.exists(SPEC_FILE):
        return None
    fields, _ = decode_object(SPEC_FILE, home.read(SPEC_FILE), "protocol of a pipeline")
    return Spec(
        Protocol(fields["protocol"]), float(fields["interval_s"]),
        {name: tuple(read) for name, read in fields["inputs"].items()}, int(fields["number"]), str(fields["run"]),
    )  # fmt: skip
