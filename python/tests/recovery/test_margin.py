"""What a replay needs against what the source still has."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.recovery.margin import Needed, Topic, initial_offsets, kafka_margin, needed_partitions, parse_available


def at(**partitions: int) -> str:
    """A batch's end, as Spark writes it: `at(t_0=5)`."""
    topics: dict[str, dict[str, int]] = {}
    for name, offset in partitions.items():
        topic, partition = name.split("_")
        topics.setdefault(topic, {})[partition] = offset
    return json.dumps(topics)


def test_nothing_gone() -> None:
    margin = kafka_margin({"t": Topic({0: (10, 60), 1: (0, 50)})}, at(t_0=35, t_1=20), at(t_0=60, t_1=50))
    assert margin.recoverable
    assert [each.spare for each in margin.partitions] == [25, 20]
    assert margin.share == 0.4
    assert "t-1 is needed from offset 20 on" in str(margin)


def test_one_record_too_few() -> None:
    exact = kafka_margin({"t": Topic({0: (35, 60)})}, at(t_0=35), at(t_0=60))
    assert (exact.recoverable, exact.share) == (True, 0.0)
    gone = kafka_margin({"t": Topic({0: (36, 60)})}, at(t_0=35), at(t_0=60))
    assert (gone.recoverable, gone.share) == (False, 0.0)
    assert "t-0 begins at offset 36, and is needed from 35 on: 1 of 25 offsets are gone" in str(gone)


def test_all_that_was_needed_is_gone() -> None:
    assert "5 of 5 offsets are gone" in str(kafka_margin({"t": Topic({0: (90, 95)})}, at(t_0=5), at(t_0=10)))


def test_what_is_read_of_each_partition() -> None:
    needed = needed_partitions(at(t_1=4, t_10=7), at(t_10=7, t_1=9, a_0=3))
    assert needed == (Needed("a", 0, 0, 3), Needed("t", 1, 4, 9), Needed("t", 10, 7, 7))


def test_a_query_without_a_replay_needs_what_it_has_not_read() -> None:
    available = {"t": Topic({0: (50, 150), 1: (0, 900), 2: (70, 80)})}
    margin = kafka_margin(available, at(t_0=60, t_1=1, t_2=60), at(t_0=60, t_1=1, t_2=60))
    assert (margin.share, margin.unread.share) == (1.0, 0.0)
    assert [each.partition for each in margin.unread.lost] == [2]
    assert kafka_margin({"t": Topic({0: (50, 150)})}, at(t_0=60), at(t_0=60)).unread.share == 0.1
    assert kafka_margin({}, at(t_0=60), at(t_0=60)).unread.share == 1.0


def test_a_partition_from_which_nothing_is_needed_loses_nothing() -> None:
    margin = kafka_margin({"t": Topic({0: (70, 90), 1: (0, 9)})}, at(t_0=60, t_1=5), at(t_0=60, t_1=9))
    assert margin.recoverable
    assert margin.share == 5 / 9


def test_a_partition_that_joined_in_between_is_needed_from_its_beginning() -> None:
    margin = kafka_margin({"t": Topic({0: (0, 9), 1: (1, 9)})}, at(t_0=9), at(t_0=9, t_1=9))
    assert [(each.topic, each.partition) for each in margin.lost] == [("t", 1)]


def test_the_first_batch_of_all_begins_where_the_source_did() -> None:
    noted = initial_offsets(b'\0v1\n{"t":{"0":4}}')
    assert kafka_margin({"t": Topic({0: (4, 9)})}, noted, at(t_0=9)).recoverable
    assert not kafka_margin({"t": Topic({0: (5, 9)})}, noted, at(t_0=9)).recoverable
    with pytest.raises(ValueError, match="unknown version"):
        initial_offsets(b'\0v2\n{"t":{"0":4}}')


@pytest.mark.parametrize("available", [{}, {"t": Topic({1: (0, 99)})}], ids=["topic", "partition"])
def test_what_was_deleted_is_named(available: dict[str, Topic]) -> None:
    margin = kafka_margin(available, at(t_0=5), at(t_0=9))
    assert not margin.recoverable
    assert "t-0 does not exist any more" in str(margin)


def test_a_topic_that_was_deleted_and_made_again_is_known_by_its_end() -> None:
    margin = kafka_margin({"t": Topic({0: (0, 3)})}, at(t_0=5), at(t_0=9))
    assert "made again" in str(margin)
    assert margin.share == 0.0


def test_a_partition_that_the_query_went_on_without_stops_a_replay() -> None:
    """As with `failOnDataLoss=false`. The state has all its rows, but Spark does not run those batches again."""
    margin = kafka_margin({"day2": Topic({0: (0, 9)})}, at(day1_0=60, day2_0=2), at(day2_0=9))
    assert (margin.recoverable, margin.share, margin.needed) == (False, 0.0, 7)
    assert "day1-0 was deleted, and the query went on without it" in str(margin)
    written = kafka_margin({"day2": Topic({0: (0, 9)})}, at(day2_0=2), at(day2_0=9))
    assert written.recoverable, "after a batch without it"


def test_a_topic_that_was_made_again_while_the_query_ran_has_lost_what_was_read() -> None:
    margin = kafka_margin({"t": Topic({0: (0, 80)})}, at(t_0=900), at(t_0=80))
    assert (margin.recoverable, margin.share) == (False, 0.0)
    assert "was made again: it was read up to offset 900 before, and up to 80 since" in str(margin)


def test_several_topics() -> None:
    available = {"a": Topic({0: (0, 9)}), "b": Topic({0: (8, 9)})}
    margin = kafka_margin(available, at(a_0=5, b_0=7), at(a_0=9, b_0=9))
    assert [each.topic for each in margin.lost] == ["b"]


def test_nothing_to_replay() -> None:
    margin = kafka_margin({"t": Topic({0: (9, 9)})}, at(t_0=9), at(t_0=9))
    assert (margin.recoverable, margin.share, str(margin)) == (True, 1.0, "no input is needed")
    assert kafka_margin({}, "{}", "{}").share == 1.0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_share_is_a_share_and_zero_if_anything_is_gone(earliest: int, start: int, more: int) -> None:
    end = start + more
    margin = kafka_margin({"t": Topic({0: (earliest, max(end, earliest))})}, at(t_0=start), at(t_0=end))
    assert 0.0 <= margin.share <= 1.0
    assert margin.recoverable == (earliest <= start or more == 0)
    assert margin.recoverable or margin.share == 0.0


def test_the_answer_of_the_shim() -> None:
    answer = {"t": {"retention_ms": "5000", "partitions": {"0": [3, 9]}}, "u": {"retention_ms": None, "partitions": {}}}
    assert parse_available(json.dumps(answer)) == {"t": Topic({0: (3, 9)}, 5000), "u": Topic({})}


@pytest.mark.parametrize("text", ["[]", "17", '{"t": 3}', '{"t": {"0": null}}', "nonsense", '"17"'])
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        kafka_margin({}, "{}", text)
    with pytest.raises(ValueError):
        parse_available(text)
