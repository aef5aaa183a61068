"""Reads of channels by buckets, with random rows, random batches of the channels, and random moments of the reader."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from spark_cec.availability.bucket_rows import find_times, sort_by_time, take_range
from spark_cec.availability.buckets import (
    Backlog,
    BatchTimes,
    ChannelFacts,
    Position,
    Stand,
    advance,
    as_of,
    find_boundary,
    find_holders,
    find_silent,
    note_stands,
    plan_end,
)
from spark_cec.log.times import TimeRange, merge_ranges

BUCKET_MS = 1_000
START = Position(1, -1, 0)


def rows_of(*times: int | None, begin: int = 0) -> pa.Table:
    micros = [None if each is None else each * 1000 for each in times]
    numbers = pa.array(range(begin, begin + len(times)), pa.int64())
    return pa.table({"time": pa.array(micros, pa.timestamp("us", "UTC")), "n": numbers})


@dataclass
class Channel:
    """A channel in memory, and how far its reader is."""

    name: str
    delay_ms: int = 0
    batches: list[pa.Table] = field(default_factory=list)
    position: Position = START
    said_ms: int | None = None
    came_ms: list[int] = field(default_factory=list)

    def facts(self) -> ChannelFacts:
        known = [
            BatchTimes(batch, rows.num_rows, find_times(rows, "time"), *self.came_ms[batch : batch + 1])
            for batch, rows in enumerate(self.batches)
            if batch >= self.position.first and rows.num_rows
        ]
        return ChannelFacts(
            self.name, self.position, Backlog.of(known), len(self.batches) - 1, self.delay_ms, self.said_ms
        )

    def read(self, end_ms: int, facts: ChannelFacts | None = None) -> tuple[list[int], list[int]]:
        """Reads up to there: the numbers of the rows that are given out, and of late ones."""
        before, after = self.position, advance(facts or self.facts(), end_ms)
        given, late = [], []
        for batch in range(before.first, after.batch + 1):
            due, behind = take_range(
                self.batches[batch], "time", before.until_ms, after.until_ms, fresh=batch > before.batch
            )
            given += due["n"].to_pylist()
            late += behind["n"].to_pylist()
        self.position = after
        return given, late


def plan(channels: list[Channel], max_rows: int | None = None, *, may_be_empty: bool = False) -> int | None:
    return plan_end([each.facts() for each in channels], BUCKET_MS, max_rows, may_be_empty=may_be_empty)


def test_no_bucket_is_stable_before_every_channel_has_passed_it() -> None:
    web, app = Channel("web", batches=[rows_of(100, 3_700)]), Channel("app")
    assert plan([web, app]) is None
    assert find_holders([web.facts(), app.facts()], BUCKET_MS) == {"app": 0}
    assert find_boundary(app.facts()) == 1, "nothing is known of it"
    app.batches.append(rows_of(2_100))
    assert plan([web, app]) == 2_000
    assert web.read(2_000) == ([0], [])
    assert app.read(2_000) == ([], [])
    assert (web.position, app.position) == (Position(2_000, 0, 0), Position(2_000, 0, 0))
    assert plan([web, app]) is None, "nothing new"
    app.batches.append(rows_of(3_650, begin=1))
    assert find_holders([web.facts(), app.facts()], BUCKET_MS) == {}, "both are in one bucket"
    assert find_holders([web.facts()], BUCKET_MS) == {}, "nobody else"


def test_each_channel_that_holds_rows_back_is_named() -> None:
    """Not the slowest one alone: if two inputs go away, an answer without both must not wait for one more."""
    web, app = Channel("web", batches=[rows_of(100, 9_700)]), Channel("app", batches=[rows_of(4_200)])
    tel = Channel("tel", batches=[rows_of(2_100)])
    assert find_holders([each.facts() for each in (web, app, tel)], BUCKET_MS) == {"tel": 2_000, "app": 4_000}
    few = Channel("web", batches=[rows_of(3_100), rows_of(9_700)])
    assert list(find_holders([each.facts() for each in (few, app, tel)], BUCKET_MS)) == ["tel"], "no row waits for app"


def test_rows_of_an_input_that_is_back_wait_for_one_that_went_away_meanwhile() -> None:
    """Nobody waits for web any more. Its rows do wait, so tel must be given up, too."""
    web, app = Channel("web", batches=[rows_of(100, 9_700)]), Channel("app", batches=[rows_of(4_200)])
    tel = Channel("tel", batches=[rows_of(2_100)])
    channels = [each.facts() for each in (web, app, tel)]
    assert find_holders(channels, BUCKET_MS, ["web"]) == {"tel": 2_000, "app": 4_000}
    assert find_holders(channels, BUCKET_MS, ["tel", "web"]) == {"app": 4_000}
    assert find_holders(channels, BUCKET_MS, ["app", "tel"]) == {}


def test_a_channel_that_stands_still_holds_back_what_was_read() -> None:
    """If the writer of another one says that it has gone on. Rows alone say nothing of a channel without rows."""
    web, app, tel = (Channel(name, said_ms=4_000) for name in ("web", "app", "tel"))
    stands = dict[str, Stand]()

    def find(now: float, least_s: float = 3.0, absent: tuple[str, ...] = ()) -> dict[str, float]:
        nonlocal stands
        channels = [each.facts() for each in (web, app, tel)]
        stands = note_stands(stands, channels, BUCKET_MS, now)
        return find_silent(stands, now - least_s, absent)

    assert find(10.0) == {} == find(15.0), "all stand still"
    web.said_ms = tel.said_ms = 4_900
    assert find(16.0) == {}, "they are in one bucket"
    web.said_ms, tel.said_ms = 6_000, 5_000
    assert find(17.0) == {}, "web has only just gone on"
    assert find(19.9) == {}
    assert find(20.0) == {"app": 17.0, "tel": 17.0}, "for three seconds now"
    assert find(20.0, absent=("app",)) == {"tel": 17.0}
    app.said_ms = 4_001
    assert find(20.5) == {"tel": 17.0}, "it is slow, and goes on"
    assert find(23.5) == {"app": 20.5, "tel": 17.0}
    web.said_ms, web.batches = None, [rows_of(60_000)]
    assert find(24.0) == {"app": 20.5}, "web tells nothing but its rows"


def test_a_channel_that_follows_after_a_long_pause_holds_nobody_back() -> None:
    """All had no rows for minutes. One goes on, and the other one follows a batch later."""
    web, app = Channel("web", said_ms=4_000), Channel("app", said_ms=4_000)
    stands = dict[str, Stand]()
    course = (0.0, 4_000, 4_000), (300.0, 4_000, 4_000), (301.0, 304_000, 4_000), (302.0, 305_000, 304_000)
    for now, web_ms, app_ms in course:
        web.said_ms, app.said_ms = web_ms, app_ms
        stands = note_stands(stands, [web.facts(), app.facts()], BUCKET_MS, now)
        assert find_silent(stands, now - 1.5) == {}, now
    for now in (302.5, 304.0):
        stands = note_stands(stands, [web.facts(), app.facts()], BUCKET_MS, now)
    assert find_silent(stands, 302.5) == {"app": 302.0}


def test_the_delay_and_what_the_writer_says_move_the_boundary() -> None:
    web = Channel("web", delay_ms=2_000, batches=[rows_of(5_500)])
    assert find_boundary(web.facts()) == 3_500
    web.said_ms = 9_100
    assert find_boundary(web.facts()) == 9_100
    assert plan([web]) == 9_000
    web.read(9_000)
    web.said_ms = None
    assert find_boundary(web.facts()) == 9_000, "it does not go back"


def test_late_rows_and_rows_without_a_time() -> None:
    web = Channel("web", batches=[rows_of(100, 5_000)])
    assert plan([web]) == 5_000
    assert web.read(5_000) == ([0], [])
    web.batches.append(rows_of(4_999, 5_001, None, 8_000, begin=2))
    assert plan([web]) == 8_000
    given, late = web.read(8_000)
    assert (sorted(given), late) == ([1, 3, 4], [2]), "a row without a time belongs to the batch that sees it first"
    assert web.position == Position(8_000, 1, 1)


def test_stable_buckets_without_a_row_wait() -> None:
    web = Channel("web", batches=[rows_of(100, 5_000)])
    web.read(5_000)
    web.said_ms = 60_000
    assert plan([web]) == 60_000, "it has a row at 5,000"
    web.read(60_000)
    web.said_ms = 70_000
    assert plan([web]) is None
    assert plan([web], may_be_empty=True) == 70_000
    web.batches.append(rows_of(59_000, begin=2))
    assert plan([web]) == 70_000, "a late row is put aside at once"


def test_a_batch_is_bounded_but_has_a_bucket_with_rows() -> None:
    web = Channel("web", batches=[rows_of(*range(0, 60_000, 10))])
    assert plan([web], 510) == 5_000
    assert plan([web], 1) == 1_000
    later = Channel("web", batches=[rows_of(*range(1_000_000, 1_060_000, 10))])
    assert plan([later], 1) == 1_001_000, "empty buckets before it come along"


def test_a_new_length_of_buckets_goes_on_where_the_old_one_was() -> None:
    web = Channel("web", batches=[rows_of(100, 5_300)])
    web.read(5_000)
    web.batches.append(rows_of(12_000, begin=2))
    assert plan_end([web.facts()], 7_000, None, may_be_empty=False) == 7_000
    assert web.read(7_000) == ([1], [])


def test_rows_up_to_1970_are_late() -> None:
    """Spark's watermark begins there, and its operators would drop them without a word."""
    web = Channel("web", batches=[rows_of(-5_000, 0, 1, 9_000)])
    assert plan([web]) == 9_000
    assert web.read(9_000) == ([2], [0, 1])


def test_times_before_1970_and_far_ahead_are_rounded_down() -> None:
    micros = pa.table({"time": pa.array([-1_500_001, 253_402_300_799_999_999], pa.timestamp("us", "UTC"))})
    assert find_times(micros, "time") == TimeRange(-1_501, 253_402_300_799_999)
    assert find_times(micros, None) == TimeRange(None, None, 2)
    assert find_times(micros.slice(0, 0), "time") == TimeRange(None, None, 0)
    assert merge_ranges([TimeRange(None, None, 2), TimeRange(3, 4, 1), TimeRange(1, 2)]) == TimeRange(1, 4, 3)


def test_rows_are_ordered_by_time_and_equal_ones_stay_in_order() -> None:
    ordered = sort_by_time(rows_of(5, None, 3, 5, 3), "time")
    assert ordered["n"].to_pylist() == [1, 2, 4, 0, 3]


def feed(chance: random.Random, late_ms: int) -> dict[str, list[tuple[int, int | None]]]:
    """For each channel its rows in the order of arrival: number and time."""
    fed, number = {}, 0
    for name in ("web", "app", "shop")[: chance.randint(1, 3)]:
        now, rows = 10_000 + chance.randrange(5_000), []
        for _ in range(chance.randint(5, 80)):
            now += chance.choice((0, 10, 300, 2_500))
            time = now - chance.randrange(late_ms + 1)
            rows.append((number, None if chance.random() < 0.03 else time))
            number += 1
        fed[name] = rows
    return fed


def run(
    fed: dict[str, list[tuple[int, int | None]]], chance: random.Random, delay_ms: int
) -> tuple[dict[int, Counter[int]], Counter[int], list[int]]:
    """Reads random batches at random moments: rows by bucket, late rows, and all that was read."""
    channels = [Channel(name, delay_ms) for name in fed]
    left = {name: list(rows) for name, rows in fed.items()}
    times = {number: time for rows in fed.values() for number, time in rows}
    buckets: dict[int, Counter[int]] = defaultdict(Counter)
    late: Counter[int] = Counter()
    seen: list[int] = []
    before: dict[str, int] = {}
    while any(left.values()) or plan(channels) is not None:
        for channel in channels:
            if left[channel.name] and chance.random() < 0.6:
                count = chance.randint(0, 12)
                taken, left[channel.name] = left[channel.name][:count], left[channel.name][count:]
                rows = rows_of(*(time for _, time in taken))
                channel.batches.append(rows.set_column(1, "n", pa.array([n for n, _ in taken], pa.int64())))
        end_ms = plan(channels, chance.choice((None, 1, 20)), may_be_empty=chance.random() < 0.1)
        if end_ms is None or chance.random() < 0.3:
            continue
        for channel in channels:
            begin_ms = channel.position.until_ms
            given, behind = channel.read(end_ms)
            for number in given:
                time = times[number]
                assert time is None or begin_ms <= time < end_ms
                buckets[-1 if time is None else time // BUCKET_MS][number] += 1
            late.update(behind)
            seen += given + behind
            boundary = find_boundary(channel.facts())
            assert boundary >= before.get(channel.name, boundary), "it never goes back"
            before[channel.name] = boundary
    for channel in channels:
        until_ms = channel.position.until_ms
        for rows in channel.batches[: channel.position.batch + 1]:
            due = {n for n in rows["n"].to_pylist() if (time := times[n]) is None or until_ms > time}
            assert due <= set(seen), "a row below the end of the last batch is missing"
    return buckets, late, seen


@pytest.mark.parametrize("seed", range(60))
def test_every_row_comes_once_in_its_bucket(seed: int) -> None:
    chance = random.Random(seed)
    fed = feed(chance, late_ms=4_000)
    _, _, seen = run(fed, chance, delay_ms=1_000)
    assert len(seen) == len(set(seen)), "no row comes twice, in time or late"


def test_some_of_these_rows_are_late() -> None:
    def count(seed: int) -> int:
        chance = random.Random(seed)
        return run(feed(chance, late_ms=4_000), chance, delay_ms=1_000)[1].total()

    assert sum(map(count, range(20))) > 10


@pytest.mark.parametrize("seed", range(60))
def test_buckets_do_not_depend_on_batches(seed: int) -> None:
    """Of rows that are no further behind than the delay, each bucket has the same ones, however batches were cut."""
    chance = random.Random(seed)
    fed = feed(chance, late_ms=1_000)
    once, late, _ = run(fed, random.Random(seed + 1_000), delay_ms=1_000)
    again, later, _ = run(fed, random.Random(seed + 2_000), delay_ms=1_000)
    assert not late and not later
    assert {bucket: rows for bucket, rows in once.items() if bucket >= 0} == {
        bucket: rows for bucket, rows in again.items() if bucket >= 0
    }


@pytest.mark.parametrize("sets_back", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_rows_that_wait_come_once_in_time_and_none_before_it_has_waited(seed: int, sets_back: bool) -> None:
    """Also if the writer says how far it is, and with a clock that is set back now and then."""
    dice, pause_ms, now, number, newest = random.Random(seed), 3_000, 100_000, 0, 100_000
    channels = [Channel("web", delay_ms=1_000), Channel("app", delay_ms=1_000)]
    came: dict[int, int] = {}
    seen: list[int] = []
    for step in range(400):
        now += dice.randrange(400)
        newest = max(newest, now)
        if sets_back and dice.random() < 0.05:
            now -= dice.randrange(3_000)
        fed = dice.choice(channels)
        if step < 200 and dice.random() < 0.6:
            many = dice.choice([1, 2, 3, 30])  # some batches have the rows of a long time
            times = [newest - dice.randrange(1_000 if many < 4 else 900) for _ in range(many)]
            fed.batches.append(rows_of(*times, begin=number))
            fed.came_ms.append(now)
            came |= dict.fromkeys(range(number, number + len(times)), now)
            number += len(times)
        if step > 200 or dice.random() < 0.3:
            for each in channels:
                each.said_ms = newest - 1_000
        facts = [as_of(each.facts(), now - pause_ms) for each in channels]
        end = plan_end(facts, BUCKET_MS, None, may_be_empty=step > 380)
        if end is not None:
            for each, known in zip(channels, facts, strict=True):
                given, late = each.read(end, known)
                assert not late, f"seed {seed}: a row came too late for its bucket"
                seen += given
                assert sets_back or all(came[row] <= now - pause_ms for row in given), f"seed {seed}"
    assert len(seen) == len(set(seen)), f"seed {seed}: a row came twice"
    assert set(seen) == set(came), f"seed {seed}: {len(came) - len(seen)} rows are lost"


def test_what_a_writer_says_counts_up_to_the_rows_that_still_wait() -> None:
    web = Channel("web", batches=[rows_of(1_000), rows_of(2_000, 8_000, begin=1)], said_ms=9_000, came_ms=[0, 9_000])
    assert find_boundary(as_of(web.facts(), 5_000)) == 2_000
    assert find_boundary(as_of(web.facts(), 9_000)) == 9_000
    idle = Channel("web", batches=[rows_of(1_000)], said_ms=100_000, came_ms=[0])
    assert find_boundary(as_of(idle.facts(), 5_000)) == 100_000, "no row waits"
