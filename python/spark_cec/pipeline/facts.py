"""Reads the facts that decide to which line the flows of a pipeline go back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_cec.log.storage import Storage
from spark_cec.pipeline.decide import BegunLine, FlowFacts, LineFacts
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Process
from spark_cec.protocols.records import Records
from spark_cec.recovery.facts import Places
from spark_cec.recovery.rollback import has_whole_batch, read_reach

ROLLBACK_FILE = "rollback.json"
"""In a pipeline's home: the line of a rollback that has begun and not ended, `{"line": {flow: number}}`."""


def read_line_facts(
    home: Storage, protocol: Protocol, places: Mapping[Process, Places], records: Mapping[Process, Records]
) -> LineFacts:
    """The facts of the flows that take part. `home` is rooted at the pipeline's home.

    Errors: `DamagedLog` if the note of forgotten output in a flow's log is unreadable.
    """
    flows = {name: read_flow_facts(places[name], own) for name, own in records.items()}
    return LineFacts(protocol, flows, read_begun_line(home))


def read_flow_facts(places: Places, records: Records) -> FlowFacts:
    """The facts of a flow with these checkpoints."""
    batches = {each.batch for each in records.known if each.batch >= 0}
    whole = frozenset(each for each in batches if has_whole_batch(places.checkpoint, each))
    return FlowFacts(tuple(records.known), whole, read_reach(places.checkpoint, places.own, places.log))


def read_begun_line(home: Storage) -> BegunLine | None:
    """The line of an unfinished rollback; None if every rollback has ended."""
    if not home.exists(ROLLBACK_FILE):
        return None
    try:
        line = json.loads(home.read(ROLLBACK_FILE))["line"]
        return BegunLine({str(name): int(number) for name, number in line.items()})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return BegunLine(damage=f"{ROLLBACK_FILE} cannot be read: {error!r}")
