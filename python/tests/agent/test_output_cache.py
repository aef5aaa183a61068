"""Output at hand: only what is read here, and no more than there is room for."""

from __future__ import annotations

import pytest

from spark_cec.agent.output_cache import OutputCache


def frame(number: int) -> bytes:
    """A frame's id."""
    return bytes([number]) * 16


def test_what_nobody_reads_here_is_not_kept() -> None:
    recent = OutputCache()
    recent.note("a", frame(0), memoryview(b"zero"))
    assert recent.find("a", frame(0)) is None
    recent.note("a", frame(1), memoryview(b"one"))
    recent.note("b", frame(2), memoryview(b"other"))
    assert bytes(recent.find("a", frame(1)) or b"") == b"one"
    assert recent.find("b", frame(2)) is None


@pytest.mark.parametrize(("limit", "kept"), [(40, [0, 1, 2, 3]), (39, [1, 2, 3]), (10, [3]), (9, [])])
def test_the_oldest_go_first(limit: int, kept: list[int]) -> None:
    recent = OutputCache(limit_bytes=limit)
    recent.find("a", frame(0))
    for number in range(4):
        recent.note("a", frame(number), memoryview(bytes(10)))
    assert [n for n in range(4) if recent.find("a", frame(n))] == kept


def test_a_frame_noted_twice_counts_once() -> None:
    recent = OutputCache(limit_bytes=25)
    recent.find("a", frame(0))
    for _ in range(3):
        recent.note("a", frame(0), memoryview(bytes(10)))
    recent.note("a", frame(1), memoryview(bytes(10)))
    assert [n for n in range(2) if recent.find("a", frame(n))] == [0, 1]
