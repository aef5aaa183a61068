"""What waits for a flow is bounded: which flows it holds, and that all rows go in however inputs come and go."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_cec.availability.buckets import Backlog, BatchTimes, ChannelFacts, Position, advance, plan_end
from spark_cec.availability.keep import (
    LEAST_S,
    Blocking,
    Unread,
    choose_held,
    decide_blocking,
    measure_unread,
    measure_waits,
    settle_holds,
)
from spark_cec.log.times import TimeRange

BUCKET_MS = 1_000
KEEP = 1_000


def channel(name: str, *batches: tuple[int, int, int], until_ms: int = 1, delay_ms: int = 0) -> ChannelFacts:
    """A channel with batches of these first and last times, and sizes."""
    known = (
        BatchTimes(number, 1, TimeRange(first, last), size=size) for number, (first, last, size) in enumerate(batches)
    )
    return ChannelFacts(name, Position(until_ms, -1, 0), Backlog.of(known), len(batches) - 1, delay_ms)


def test_what_waits_is_told_from_what_is_due_and_from_open_buckets() -> None:
    web = channel("web", (100, 900, 1), (1_500, 3_500, 10), (4_100, 6_200, 100), (9_050, 9_100, 1_000))
    app = channel("app", (200, 2_300, 5))
    seen = measure_unread([web, app], BUCKET_MS)
    assert seen == (Unread("web", 1, 110), Unread("app", 5, 0)), "the newest bucket of web may get more rows of web"
    assert measure_waits([web, app], BUCKET_MS) == {"app": 110}
    assert measure_unread([web, app], BUCKET_MS, absent=["app"]) == (Unread("web", 111, 0), Unread("app", 5, 0))


def test_what_was_given_out_does_not_count() -> None:
    web = channel("web", (100, 900, 1), (1_500, 3_500, 10), (4_100, 6_200, 100), until_ms=2_000)
    app = channel("app", (200, 2_300, 5), until_ms=2_000)
    assert measure_unread([web, app], BUCKET_MS) == (Unread("web", 0, 110), Unread("app"))


def test_of_two_inputs_that_are_away_each_has_what_waits_for_it() -> None:
    """The one that is less far behind waits for the other one, too."""
    facts = [channel("web", (100, 9_000, 100)), channel("app", (200, 200, 5)), channel("tel", (300, 4_000, 10))]
    assert measure_waits(facts, BUCKET_MS) == {"app": 110, "tel": 100}
    assert measure_unread([], BUCKET_MS) == () and measure_unread(facts, BUCKET_MS, ["web", "app", "tel"])


def waits(**bytes_: int) -> list[Unread]:
    """web waits for app."""
    return [Unread("app", bytes_.get("app", 0)), Unread("web", bytes_.get("due", 0), bytes_.get("web", 0))]


def test_the_inputs_whose_rows_wait_are_held_until_less_waits() -> None:
    now = decide_blocking(Blocking(), waits(web=KEEP), KEEP)
    assert not now.inputs and now.unread_bytes == KEEP, "as much as may wait"
    now = decide_blocking(now, waits(web=KEEP + 1), KEEP)
    assert now == Blocking(frozenset(["web"]), KEEP + 1, spares=True)
    now = decide_blocking(now, waits(web=810), KEEP)
    assert now.inputs == {"web"}, "it is held until clearly less waits"
    now = decide_blocking(now, waits(web=790), KEEP)
    assert not now.inputs
    assert not decide_blocking(now, waits(web=990), KEEP).inputs


def test_a_flow_that_was_just_held_stays_so_for_a_while() -> None:
    held = settle_holds({}, {"totals": {"web"}, "bills": set()}, 1.0)
    assert held == {("totals", "web"): 1.0}
    held = settle_holds(held, {"bills": {"web"}}, 1.0 + LEAST_S - 0.1)
    assert held == {("totals", "web"): 1.0, ("bills", "web"): LEAST_S + 0.9}
    held = settle_holds(held, {"bills": {"web"}}, 1.0 + LEAST_S)
    assert held == {("bills", "web"): LEAST_S + 0.9}
    assert settle_holds(held, {"bills": {"web"}}, 100.0) == held, "it is held all the time"
    assert not settle_holds(held, {}, 100.0)


def test_of_two_slow_inputs_the_one_that_is_ahead_by_little_runs() -> None:
    """They are ahead of one another by turns, and each start of a query costs some."""
    seen = [Unread("app", 10), Unread("tel", 10, 20), Unread("web", 10, KEEP)]
    now = decide_blocking(Blocking(), seen, KEEP)
    assert now.inputs == {"web"}
    far = [Unread("app", 10), Unread("tel", 10, 50), Unread("web", 10, KEEP)]
    now = decide_blocking(now, far, KEEP)
    assert now.inputs == {"tel", "web"}
    assert decide_blocking(now, seen, KEEP).inputs == {"tel", "web"}, "until it is the slowest one"
    assert decide_blocking(now, [Unread("app", 9, 5), Unread("tel", 9), far[2]], KEEP).inputs == {"web"}


def test_a_flow_that_is_slow_itself_holds_all_its_inputs() -> None:
    """No input is away, or one was: then what is there is read before more comes."""
    now = decide_blocking(Blocking(), waits(app=600, due=500), KEEP)
    assert now.inputs == {"app", "web"} and not now.spares
    now = decide_blocking(now, waits(app=500, web=490), KEEP)
    assert now.inputs == {"app", "web"}, "less than half waits for app"
    now = decide_blocking(now, waits(app=400, web=510), KEEP)
    assert now.inputs == {"web"} and now.spares, "web cannot go in without app"
    now = decide_blocking(now, waits(app=600, web=300), KEEP)
    assert now.inputs == {"web"}, "it does not change at each look"
    now = decide_blocking(now, waits(app=700, web=200), KEEP)
    assert now.inputs == {"app", "web"}


def test_a_flow_that_does_not_look_holds_what_it_held() -> None:
    """Its query starts again, for example after an error."""
    held = decide_blocking(Blocking(), waits(web=2 * KEEP), KEEP)
    assert decide_blocking(held, None, KEEP) is held
    assert decide_blocking(Blocking(), None, KEEP) == Blocking()


def test_a_driver_that_starts_again_holds_at_the_first_look() -> None:
    assert decide_blocking(Blocking(), None, KEEP) == Blocking()
    assert decide_blocking(Blocking(), waits(web=2 * KEEP), KEEP).inputs == {"web"}


UPSTREAM = {
    "kafka": ["kafka"], "web": ["web", "kafka"], "app": ["app"], "tel": ["tel"], "hours": ["hours", "web", "kafka"],
}  # fmt: skip


def block(*inputs: str, spares: bool = True) -> Blocking:
    return Blocking(frozenset(inputs), 2 * KEEP, spares)


def test_what_feeds_a_held_flow_is_held_too() -> None:
    held = choose_held({"totals": block("web"), "idle": Blocking()}, {"totals": ["web", "app"]}, UPSTREAM)
    assert held == {"totals": {"web", "kafka"}}


def test_several_flows_hold_the_same_flow() -> None:
    inputs = {"totals": ["web", "app"], "bills": ["web", "tel"]}
    held = choose_held({"totals": block("web"), "bills": block("web")}, inputs, UPSTREAM)
    assert held == {"totals": {"web", "kafka"}, "bills": {"web", "kafka"}}


def test_no_flow_is_held_that_another_one_waits_for() -> None:
    """totals waits for app and holds web. bills waits for hours, which web feeds, and holds app."""
    inputs = {"totals": ["web", "app"], "bills": ["hours", "app"]}
    held = choose_held({"totals": block("web"), "bills": block("app")}, inputs, UPSTREAM)
    assert held == {"totals": frozenset(), "bills": frozenset()}
    slow = {"totals": block("web", "app", spares=False), "bills": block("hours", "app", spares=False)}
    assert choose_held(slow, inputs, UPSTREAM) == {
        "totals": {"web", "kafka", "app"}, "bills": {"hours", "web", "kafka", "app"},
    }  # fmt: skip


STEP_MS, SIZE = 700, 10


@dataclass
class Source:
    """Writes a batch at each step, unless it is held or away; `left_ms` is what it has not read of its own source."""

    delay_ms: int
    batches: list[BatchTimes] = field(default_factory=list)
    wrote_ms: int = 100

    def step(self, now_ms: int) -> None:
        """It catches up faster than rows come."""
        last = min(self.wrote_ms + 3 * STEP_MS, now_ms)
        if last > self.wrote_ms:
            times = TimeRange(self.wrote_ms, last)
            self.batches.append(BatchTimes(len(self.batches), 1, times, size=SIZE * (last - self.wrote_ms) // STEP_MS))
            self.wrote_ms = last


@dataclass
class Reader:
    """A flow by buckets. `pace_ms`: the event time of a batch at most."""

    inputs: tuple[str, ...]
    delays_ms: Mapping[str, int]
    pace_ms: int
    positions: dict[str, Position] = field(default_factory=dict)

    def facts(self, sources: Mapping[str, Source]) -> list[ChannelFacts]:
        found = []
        for name in self.inputs:
            at, batches = self.positions.get(name, Position(1, -1, 0)), sources[name].batches
            backlog = Backlog.of(batches[at.first :])
            found.append(ChannelFacts(name, at, backlog, len(batches) - 1, self.delays_ms[name]))
        return found

    def read(self, sources: Mapping[str, Source]) -> None:
        facts = self.facts(sources)
        end = plan_end(facts, BUCKET_MS, None, may_be_empty=True)
        if end is not None:
            begin = min(each.position.until_ms for each in facts)
            end = min(end, (begin + self.pace_ms) // BUCKET_MS * BUCKET_MS)
            self.positions = {each.name: advance(each, end) for each in facts}


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_and_goes_the_wait_is_bounded_and_ends(seed: int) -> None:
    """Two flows share their inputs. Inputs are away for long, readers are slow or restart, delays differ."""
    chance = random.Random(seed)
    sources = {name: Source(0) for name in ("web", "app", "tel")}
    delays = [{name: chance.choice([500, 2_000]) for name in sources} for _ in range(2)]
    readers = {
        "totals": Reader(("web", "app"), delays[0], chance.choice([1_000, 2_000, 9_000])),
        "bills": Reader(("web", "app", "tel")[chance.randrange(2) :], delays[1], chance.choice([2_000, 9_000])),
    }
    upstream = {name: [name] for name in sources}
    inputs = {name: each.inputs for name, each in readers.items()}
    blockings, excused = dict.fromkeys(readers, Blocking()), dict.fromkeys(readers, False)
    away_until, down_until, starts, holds = dict.fromkeys(sources, 0), dict.fromkeys(readers, 0), 0, dict[Any, float]()
    held, steps = frozenset[str](), 600
    for step in range(2 * steps):
        ends = step >= steps
        if not ends and chance.random() < 0.02:
            away_until[chance.choice(list(sources))] = step + chance.randrange(20, 300)
        if not ends and chance.random() < 0.02:
            down_until[chance.choice(list(readers))] = step + chance.randrange(1, 10)
        for name, source in sources.items():
            if name not in held and (ends or step >= away_until[name]):
                source.step(min(step, steps) * STEP_MS)
        for name, reader in readers.items():
            seen = None
            if ends or step >= down_until[name]:
                reader.read(sources)
                seen = measure_unread(reader.facts(sources), BUCKET_MS)
                unread = sum(each.due_bytes + each.waiting_bytes for each in seen)
                excused[name] = excused[name] and unread > KEEP
                # An input that is spared writes as much as waits for it. While the reader is down each writes ten
                # steps.
                most = 2 * KEEP + 10 * 3 * SIZE * len(reader.inputs)
                assert unread <= most or excused[name], f"{unread} at step {step}"
            blockings[name] = decide_blocking(blockings[name], seen, KEEP)
        wanted = choose_held(blockings, inputs, upstream)
        for name, each in blockings.items():  # the other flow needs what it would hold
            excused[name] |= bool(each.inputs - wanted.get(name, frozenset()))
        holds = settle_holds(holds, wanted, float(step))
        now = frozenset(one for _, one in holds)
        starts, held = starts + len(held - now), now
    for reader in readers.values():
        latest_ms = min(sources[name].wrote_ms - reader.delays_ms[name] for name in reader.inputs)
        reached = {each.until_ms for each in reader.positions.values()}
        assert reached == {latest_ms // BUCKET_MS * BUCKET_MS}, "all rows go in at last"
    assert all(source.wrote_ms == steps * STEP_MS for source in sources.values())
    assert not held
    assert starts < 2 * steps / 10, f"{starts} starts in {2 * steps} steps"
