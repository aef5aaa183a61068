"""What a start says of its query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_cec.recovery import start_messages
from spark_cec.recovery.decide import OperatorDecision
from spark_cec.recovery.start_messages import StartMessage, describe_eager_operators

SHIM = Path(__file__).resolve().parents[3] / "jvm-shim" / "src" / "main" / "scala"


JOIN = "little, since it writes each row once in any case, and with it how many rows its key has"


def operator(number: int, kind: str, reason: str | None) -> OperatorDecision:
    return OperatorDecision(number, kind, reason is None, reason or "a replay gives the same")


@pytest.mark.parametrize(
    ("kind", "costs"),
    [
        ("aggregation", "a record for each key that a batch touches"),
        ("distinct", "a record for each key that a batch touches"),
        ("deduplication", "nothing, since it writes each key once in any case, as it first sees it"),
        ("deduplication within watermark", "nothing, since it writes each key once in any case, as it first sees it"),
        ("limit", "nothing, since it has one key"),
        ("stream-stream join", JOIN),
        ("what comes later", "a record for each key that a batch touches"),
    ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_one_line_says_why_an_operator_is_eager_and_what_that_costs(kind: str, costs: str, asked: bool) -> None:
    """Nobody is warned of what was asked for."""
    (word,) = describe_eager_operators([operator(0, kind, "the order of rows matters")], asked)
    begins = f"eager, so that every commit writes all that its batch touched: operator 0 ({kind}), which costs"
    assert word.line == f"{begins} {costs} (reason: the order of rows matters)"
    assert word.warns is not asked and "\n" not in word.line


def test_of_several_operators_those_that_are_eager_are_named() -> None:
    (word,) = describe_eager_operators(
        [operator(0, "aggregation", None), operator(1, "limit", "one"), operator(2, "aggregation", "two")], asked=False
    )
    assert word.line == (
        "eager, so that every commit writes all that its batch touched: operator 1 (limit), which costs nothing, since "
        "it has one key (reason: one); operator 2 (aggregation), which costs a record for each key that a batch "
        "touches (reason: two)"
    )


def test_nothing_is_said_of_a_query_that_defers() -> None:
    assert describe_eager_operators([], asked=False) == list[StartMessage]()
    assert describe_eager_operators([operator(0, "aggregation", None)], asked=True) == []


def test_the_kinds_are_those_of_the_shim() -> None:
    """A kind that has another name there would be said to cost something."""
    code = (SHIM / "org/apache/spark/sql/cec/recovery/StatefulOperators.scala").read_text()
    kinds = set(re.findall(r'=> Some\("([^"]+)"\)', code))
    assert len(kinds) > 8 and start_messages._COSTS_NOTHING.keys() | start_messages._COSTS_LITTLE.keys() < kinds
