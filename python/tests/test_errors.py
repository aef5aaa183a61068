"""The consequence of each error, for the names that the JVM knows as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_cec import errors
from spark_cec.errors import CecError, Consequence, LostLog, NoLine, consequence_of

SHIM = Path(__file__).resolve().parents[2] / "jvm-shim" / "src" / "main" / "scala"
RETRIED = {"AgentUnavailable", "LiveStore", "Refused", "ReplayFailed"}
"""Names that the JVM gives to errors of its own for which there is no class, because a restart may end well."""


def test_a_subclass_inherits_the_consequence() -> None:
    assert LostLog.consequence is NoLine.consequence is Consequence.FIX
    assert consequence_of("LostLog") is consequence_of("NoLine") is Consequence.FIX


def test_a_name_of_no_class_is_tried_again() -> None:
    assert consequence_of("Nonsense") is CecError.consequence is Consequence.RETRY


@pytest.mark.parametrize(
    ("kind", "consequence"),
    [
        *((kind, Consequence.FIX) for kind in ("Divergence", "TooLarge", "DamagedLog", "NotKept", "Unsupported")),
        *((kind, Consequence.RETRY) for kind in ("Fenced", "TransientError", "CommitOutcomeUnknown")),
        ("RestartNeeded", Consequence.RESTART),
    ],
)
def test_consequences(kind: str, consequence: Consequence) -> None:
    assert consequence_of(kind) is consequence


@pytest.mark.parametrize(
    "error", [errors.NotKept(0, 3), errors.OutputBegunAnew("/log", 7, 5), errors.OutputTakenBack("/log", 7, 5, 2)]
)
def test_in_replicas_no_folder_of_a_flow_is_to_be_deleted(error: CecError) -> None:
    """Sinks would go on with the old channel of the other replica, and the old agreements would stay."""
    assert "in replicas, another home of the pipeline" in str(error)


def test_every_name_that_the_jvm_gives_is_a_class_or_is_known_to_be_tried_again() -> None:
    code = "\n".join(path.read_text() for path in sorted(SHIM.rglob("*.scala")))
    given = set(re.findall(r'new CecException\("(\w+)"', code)) | set(re.findall(r'val Divergence = "(\w+)"', code))
    assert {"DamagedLog", "RestartNeeded", "Divergence"} <= given
    assert {kind for kind in given if not hasattr(errors, kind)} == RETRIED
