"""The queries of flows, as far as Spark need not run for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from spark_cec.availability.union import EpochReads
from spark_cec.pipeline import Pipeline, flows
from spark_cec.pipeline.declare import FlowError
from spark_cec.pipeline.flows import Flows
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.replicas import Replica


@dataclass
class Made:
    """What a flow's function answers, with the constants of its program."""

    constants: tuple[str, ...]
    schema = StructType([StructField("n", LongType())])


class Started(Exception):
    """A query was about to start."""


@pytest.mark.parametrize("replica", ["a", None])
def test_a_flow_of_a_replica_starts_again_with_the_constants_of_its_first_start(
    replica: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other replica has compared those. A function that reads a clock has others at each call."""
    clock = ["09:00"]
    made = Pipeline("shop", str(tmp_path))
    made.flow(name="web", kept=True)(lambda spark: None)
    for name, answer in (("refuse_other_rows", None), ("list_bounded_columns", frozenset()), ("list_servers", ())):
        monkeypatch.setattr(flows, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(flows, "list_constants", lambda made: made.constants)
    monkeypatch.setattr(Flows, "_call_function", lambda *_: Made((f"TIMESTAMP '{clock[0]}'",)))

    def start(*_: Any) -> None:
        raise Started

    monkeypatch.setattr(Flows, "_make_writer", start)
    own = None if replica is None else Replica(replica, str(tmp_path))
    graph = made.graph()
    found = Flows(FakeSpark(), graph, made.flows, PipelineHome.of(graph, str(tmp_path), own), replica=own)  # type: ignore[arg-type]
    with pytest.raises(Started):
        found.start("web")
    clock[0] = "09:01"
    with pytest.raises(Started if own is None else FlowError) as ended:
        found.start("web")
    assert own is None or "flow web has other dates, times or tables than at the start" in str(ended.value)


@pytest.mark.parametrize(
    ("reads", "alpha", "yields_ms"),
    [
        (EpochReads(frozenset({"app"})), 0.9, 6_000),
        (EpochReads(frozenset({"app"})), 0.5, 5_000),
        (EpochReads(frozenset({"app"}), pause_ms=9_000), 0.9, 0),
        (EpochReads(frozenset({"app"}), {"web": 3}), 0.9, 0),
        (None, 0.9, 0),
    ],
    ids=["process", "a small alpha", "delay", "reads an epoch", "the flow itself"],
)
def test_an_epoch_yields_to_its_flow_unless_its_rows_have_waited(
    reads: EpochReads | None, alpha: float, yields_ms: int, tmp_path: Path
) -> None:
    made = Pipeline("shop", str(tmp_path))
    made.flow(name="web")(lambda spark: None)
    made.flow(name="app")(lambda spark: None)
    times = {"web": ("t", "1 second"), "app": ("t", "1 second")}
    made.flow(name="both", within="10s", alpha=alpha, watermarks=times)(lambda web, app: None)
    assert flows._find_yields_ms(made.flows["both"], reads) == yields_ms


class FakeSpark:
    """A session whose context takes any property."""

    @property
    def sparkContext(self) -> FakeSpark:  # noqa: N802
        return self

    def setLocalProperty(self, key: str, value: str) -> None:  # noqa: N802
        pass
