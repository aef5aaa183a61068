"""The protocol of a pipeline, in `<home>/protocol.json`. The driver writes it before flows start; the agent reads it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from spark_cec.errors import DamagedLog
from spark_cec.ids import new_id
from spark_cec.log.checked_json import decode_object, encode_object
from spark_cec.log.storage import Storage
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Process

SPEC_FILE = "protocol.json"


@dataclass(frozen=True, slots=True)
class Spec:
    """One run of the flows of a pipeline under a protocol.

    `inputs`: the flows that take part, each with the flows that it reads. `interval_s`: the time between checkpoints.
    `number` counts the runs of the home from 1. `run` is a name that no other run has, also if the home is made anew.
    """

    protocol: Protocol
    interval_s: float
    inputs: Mapping[Process, tuple[Process, ...]]
    number: int
    run: str

    def readers(self, sender: Process) -> tuple[Process, ...]:
        """The flows that take part and read this flow's messages."""
        return tuple(name for name, read in self.inputs.items() if sender in read)


STOPPING_FILE = "stopping.json"
"""Says that all flows of a run are being stopped in good order, so that they end at a line."""


def note_stop(home: Storage, run: str) -> None:
    """Notes the stop of a run, before its first flow is stopped."""
    home.replace(STOPPING_FILE, encode_object({"run": run}))


def is_stopping(home: Storage, run: str) -> bool:
    """Whether that run is being stopped; false if the note is unreadable, because then the last line stays."""
    try:
        return bool(decode_object(STOPPING_FILE, home.read(STOPPING_FILE), "note of a stop")[0]["run"] == run)
    except (FileNotFoundError, DamagedLog):
        return False


def new_run() -> str:
    """Makes a name for a run of all flows. Names are in order of time if the clocks are right."""
    return f"{int(time.time() * 1000):013d}-{new_id().hex()[:8]}"


def write_spec(home: Storage, spec: Spec) -> None:
    """Writes the file. `home` is rooted at the pipeline's home."""
    fields = {
        "protocol": spec.protocol.value, "interval_s": spec.interval_s, "number": spec.number, "run": spec.run,
        "inputs": {name: list(read) for name, read in spec.inputs.items()},
    }  # fmt: skip
    home.replace(SPEC_FILE, encode_object(fields))


def read_spec(home: Storage) -> Spec | None:
    """Reads the file; None if no protocol has begun there. Errors: `DamagedLog`, `NewerFormat`."""
    if not home.exists(SPEC_FILE):
        return None
    fields, _ = decode_object(SPEC_FILE, home.read(SPEC_FILE), "protocol of a pipeline")
    return Spec(
        Protocol(fields["protocol"]), float(fields["interval_s"]),
        {name: tuple(read) for name, read in fields["inputs"].items()}, int(fields["number"]), str(fields["run"]),
    )  # fmt: skip
