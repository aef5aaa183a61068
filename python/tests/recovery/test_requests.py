"""Requests to write the dirty windows, of several commands at once."""

from __future__ import annotations

from spark_cec.recovery.query_files import FLUSH, Flushed
from spark_cec.recovery.requests import answer_flush, ask_flush, flush_answer, withdraw_flush
from tests.log.support import memory_storage


def test_a_second_request_waits_for_the_first() -> None:
    own = memory_storage()
    assert ask_flush(own, "a") and not ask_flush(own, "b")
    withdraw_flush(own, "b")
    answer_flush(own, FLUSH.read(own) or "", 3, [])
    assert flush_answer(own, "a") == Flushed("a", 3, ()) and flush_answer(own, "b") is None
    assert ask_flush(own, "b")
    answer_flush(own, "a", 4, ["late"])
    assert FLUSH.read(own) == "b", "an answer deletes no other request"
