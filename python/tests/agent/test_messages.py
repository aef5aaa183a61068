"""The messages between the shim and the agent: one schema for both sides."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import shim_messages
from spark_cec.agent import messages
from spark_cec.agent.messages import REQUESTS, FlushedRequest, LoadAnswer, ReportAnswer
from tests.agent.support import Agent


def test_the_scala_classes_are_those_of_the_schema() -> None:
    """Say `make messages` after a change of the schema."""
    assert shim_messages.TARGET.read_text() == shim_messages.write_scala()


def test_each_request_has_a_call_of_the_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    assert set(agent.calls._by_name) == set(REQUESTS)
    agent.calls.close()


def test_the_name_of_a_call_follows_from_the_class() -> None:
    assert FlushedRequest.call() == "flushed"
    assert messages.BetweenBatchesRequest.call() == "between_batches"


def test_a_request_lacks_nothing_that_it_needs() -> None:
    known = {"checkpoint": "c", "home": "h", "version": 1, "generation": 1, "failed": [], "request": None}
    assert msgspec.json.decode(json.dumps(known), type=FlushedRequest).request is None
    for field in known:
        left = {key: value for key, value in known.items() if key != field}
        with pytest.raises(msgspec.ValidationError, match=f"missing required field `{field}`"):
            msgspec.json.decode(json.dumps(left), type=FlushedRequest)


@pytest.mark.parametrize("wrong", ["1", 1.5, None, True])
def test_a_number_is_a_number(wrong: object) -> None:
    text = json.dumps({"home": "h", "version": wrong})
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        msgspec.json.decode(text, type=messages.AcknowledgeRequest)


def test_the_scala_side_writes_null_where_a_request_needs_a_field() -> None:
    """A field that is left out would be refused."""
    scala = shim_messages.write_scala()
    assert 'node.set[JsonNode]("log_id", Json.orNull(logId)(value => Json.node(value)))' in scala
    assert "final case class ReportAnswer(done: Boolean, path: Option[String] = None)" in scala
    assert ReportAnswer(done=True).path is None and "recovery_estimate_ms" in LoadAnswer.__struct_fields__
