"""What is said of a query's sources at its start, and when what is dirty is written while it runs."""

from __future__ import annotations

import json

import pytest

from spark_cec.errors import InputGone
from spark_cec.recovery.margin import Topic, needed_partitions
from spark_cec.recovery.replay_input import ReplayInput, SourceRange
from spark_cec.recovery.sources import (
    ACCEPT,
    Source,
    SourceStanding,
    ThinMargin,
    check_at_start,
    check_while_running,
    compare_margins,
    parse_sources,
    stand_sources,
)
from spark_cec.recovery.start_messages import StartMessage

NOW = 1_700_000_000_000
NAME = "KafkaV2[Subscribe[t]]"
START, END = '{"t":{"0":30}}', '{"t":{"0":60}}'
RATE = SourceRange('{"offset":1}', '{"offset":2}', None)
"""A source of another kind."""


def read(start: str, end: str) -> SourceRange:
    return SourceRange(start, end, needed_partitions(start, end))


DUE = ReplayInput(5, 8, NOW - 240_000, (RATE, read(START, END)))
NOT_DUE = ReplayInput(9, 8, None, (RATE, read(END, END)))
LINE = "a recovery now would need input since batch 5 (t-0 from offset 30), 4 minutes ago"
QUIET = "a recovery now would replay nothing: it goes on with batch 9 (t-0 from offset 60)"


def having(first: int, end: int = 100) -> tuple[Source, ...]:
    return Source("rate"), Source(NAME, {"t": Topic({0: (first, end)})})


def say(replay: ReplayInput, sources: tuple[Source, ...], share: float = 0.1, accepts: bool = False) -> StartMessage:
    return check_at_start(replay, sources, share, accepts, NOW)


def why(replay: ReplayInput, sources: tuple[Source, ...], share: float) -> str:
    """Why what is dirty should be written now; nothing if it should not."""
    thin = check_while_running(replay, sources, share)
    return thin.why if thin else ""


@pytest.mark.parametrize(("replay", "line"), [(DUE, LINE), (NOT_DUE, QUIET)])
def test_one_line_where_all_is_well(replay: ReplayInput, line: str) -> None:
    assert say(replay, having(0)) == StartMessage(line, False)
    assert say(replay, having(0)[:1]) == StartMessage(line, False), "a query with other sources is not judged"
    assert say(replay, (Source("rate"), Source("files"))) == StartMessage(line, False)


def test_input_that_is_gone_is_refused_by_name() -> None:
    with pytest.raises(InputGone) as refused:
        say(DUE, having(42))
    words = str(refused.value)
    assert words.startswith(
        "input that the recovery of batch 8 needs, from batch 5 on, is gone: "
        f"{NAME}: t-0 begins at offset 42, and is needed from 30 on: 12 of 30 offsets are gone. Nothing was changed"
    )
    assert "give the input back" in words
    assert ACCEPT == "spark.sql.streaming.stateStore.cec.onDivergence=accept"
    assert ACCEPT in words


def test_what_is_gone_may_be_accepted() -> None:
    word = say(DUE, having(42), accepts=True)
    assert word.warns
    assert word.line.startswith(f"{LINE}; input that the recovery of batch 8 needs, from batch 5 on, is gone: {NAME}: ")
    assert word.line.endswith(f"that is accepted ({ACCEPT})")


def test_a_thin_margin_is_warned_of_unless_that_is_off() -> None:
    thin = (
        f"{LINE}; {NAME} has little more than that: t-0 is needed from offset 30 on, and the source has it from 28 on"
    )
    assert say(DUE, having(28)) == StartMessage(thin, True)
    assert say(DUE, having(28), share=0.0) == StartMessage(LINE, False)


def test_a_source_that_does_not_answer_stops_nothing() -> None:
    silent = (Source("rate"), Source(NAME, error="TimeoutException: 10 s"))
    word = say(DUE, silent)
    assert word.warns
    assert f"{NAME} cannot be asked what it still has (TimeoutException: 10 s): the replay will tell" in word.line
    assert "the next batch will tell" in say(NOT_DUE, silent).line


def test_without_a_replay_what_the_query_has_not_read_counts() -> None:
    assert say(NOT_DUE, having(58)) == StartMessage(
        f"{QUIET}; {NAME} has nearly lost input that the query has not read: "
        "t-0 is needed from offset 60 on, and the source has it from 58 on", True
    )  # fmt: skip
    lost = say(NOT_DUE, having(62))
    assert lost.warns
    assert "has lost input that the query has not read: t-0 begins at offset 62, and is needed from 60 on" in lost.line


def test_while_it_runs_the_share_decides() -> None:
    assert check_while_running(DUE, having(20), 0.1) is None
    thin = check_while_running(DUE, having(28), 0.1)
    assert thin == ThinMargin(
        f"{NAME}: t-0 is needed from offset 30 on, and the source has it from 28 on", deletes=True
    )
    assert check_while_running(DUE, having(28), 0.0) is None
    assert f"{NAME}: t-0 begins at offset 42, and is needed" in why(DUE, having(42), 0.1)
    assert check_while_running(NOT_DUE, having(99), 1.0) is None, "with nothing to replay there is nothing to write"


def test_an_answer_from_before_the_newest_batch_is_no_alarm() -> None:
    """The sources are asked every ten seconds, and batches may have read beyond their answer since."""
    assert check_while_running(DUE, having(0, end=45), 0.1) is None
    assert check_while_running(DUE, having(0, end=20), 0.1) is None
    assert "is needed" in why(DUE, having(42, end=45), 0.1), "what was deleted stays deleted"


def test_a_topic_of_which_nothing_was_ever_deleted_is_known_as_such() -> None:
    """A query that reads it from its first record has no margin, and yet the topic does not keep too little."""
    first = ReplayInput(0, 3, None, (RATE, read('{"t":{"0":0}}', END),))
    assert check_while_running(first, having(0), 0.1) == ThinMargin(
        f"{NAME}: t-0 is needed from offset 0 on, and the source has it from 0 on", deletes=False
    )


def test_a_known_retention_is_named() -> None:
    sources = Source("rate"), Source(NAME, {"t": Topic({0: (28, 99)}, 5_000)})
    assert why(DUE, sources, 0.1).endswith("the source has it from 28 on (retention.ms=5000)")
    assert say(DUE, sources).line.endswith("(retention.ms=5000)")


def test_of_many_partitions_some_are_named() -> None:
    numbers = {str(n): 1 for n in range(9)}
    replay = ReplayInput(1, 1, None, (read(json.dumps({"t": numbers}), json.dumps({"t": dict.fromkeys(numbers, 5)})),))
    with pytest.raises(InputGone, match=r"t-2 begins at offset 3, [^;]*; and the same of 6 more partitions\. Nothing"):
        say(replay, (Source("K", {"t": Topic(dict.fromkeys(range(9), (3, 9)))}),))


def test_of_several_sources_the_worst_is_named() -> None:
    replay = ReplayInput(5, 8, None, (read(START, END), read('{"u":{"0":30}}', '{"u":{"0":60}}')))
    sources = Source("A", {"t": Topic({0: (29, 99)})}), Source("B", {"u": Topic({0: (30, 99)})})
    assert [source.name for source, _ in compare_margins(replay, sources)] == ["A", "B"]
    assert why(replay, sources, 0.5).startswith("B: u-0")


def test_the_word_of_the_shim() -> None:
    available = {"t": {"retention_ms": None, "partitions": {"0": [3, 9]}}}
    states = [("rate", None, None), ("K", json.dumps(available), None), ("L", None, "why")]
    assert parse_sources(states) == (
        Source("rate"), Source("K", {"t": Topic({0: (3, 9)})}), Source("L", error="why"),
    )  # fmt: skip


def stand(*partitions: tuple[int, int], retention_ms: int | None = None) -> SourceStanding:
    """A recovery needs offsets 30 to 59 of each of so many partitions; a partition has these from its first one on."""
    names = range(len(partitions))
    ends = (json.dumps({"t": {str(each): offset for each in names}}) for offset in (30, 60))
    replay = ReplayInput(5, 8, None, (RATE, read(*ends)))
    topic = Topic(dict(zip(names, partitions, strict=True)), retention_ms)
    (found,) = stand_sources(replay, (Source("rate"), Source(NAME, {"t": topic})))
    return found


def test_how_much_more_a_source_has_than_a_recovery_needs() -> None:
    text = f"{NAME} still has 10 offsets before that in t-1, which is nearest to a loss"
    assert stand((0, 100), (20, 100), (5, 100)) == SourceStanding(NAME, 90, 10, 0.25, False, text)
    assert stand((29, 100)).text == f"{NAME} still has 1 offset before that in t-0, which is nearest to a loss"
    assert stand((29, 100), retention_ms=7).text.endswith("to a loss (retention.ms=7)")
    assert stand((30, 100)).spare == 0 and not stand((30, 100)).gone
    assert stand((0, 100), (0, 100)) == SourceStanding(NAME, 60, None, None, False, f"{NAME} has lost nothing so far")


def test_a_source_has_lost_what_a_recovery_needs() -> None:
    found = stand((0, 100), (33, 100))
    assert (found.needed, found.spare, found.share, found.gone) == (60, 0, 0.0, True)
    assert found.text == (
        f"{NAME} has lost a part of that: t-1 begins at offset 33, and is needed from 30 on: 3 of 30 offsets are gone"
    )


def test_nothing_is_said_where_nothing_is_known_or_needed() -> None:
    assert stand_sources(NOT_DUE, having(20)) == ()
    assert stand_sources(DUE, having(20)[:1]) == (), "a query with other sources is not judged"
    assert stand_sources(DUE, (Source("rate"), Source(NAME, error="TimeoutException"))) == ()
    gone = (Source("rate"), Source(NAME, {"t": Topic({})}))
    assert stand_sources(DUE, gone) == (), "the partition may be younger than the answer"


def test_an_answer_of_before_the_newest_batches_is_no_loss() -> None:
    assert stand((20, 40)) == stand((20, 100))
