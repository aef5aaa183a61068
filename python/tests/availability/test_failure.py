"""When a flow answers tentatively: the decisions, one by one and in random lives of a flow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spark_cec.availability.failure import EpochLook, FailureState, FlowLook, Orders, Progress, decide

X_S = 2.7


def at(until_ms: int, answered_ms: int | None = None) -> Progress:
    return Progress(until_ms, until_ms if answered_ms is None else answered_ms)


WAITING = FlowLook(at(10_000), {"app": X_S}, X_S)
BACK = FlowLook(at(11_000))
EPOCH = EpochLook(frozenset({"app"}), at(10_000), at(20_000))
UP_FAILURE, STABLE, STABILIZATION = FailureState.UP_FAILURE, FailureState.STABLE, FailureState.STABILIZATION


@pytest.mark.parametrize("held_s", [0.0, X_S - 0.1])
def test_a_flow_that_waits_for_less_than_its_bound_is_left_alone(held_s: float) -> None:
    expected = Orders(STABLE, prepares=held_s > X_S / 2, forks=frozenset({"app"}) if held_s > X_S * 0.75 else None)
    assert decide(replace(WAITING, held_s={"app": held_s}), None, X_S) == expected


@pytest.mark.parametrize(
    ("wait_s", "held_s", "written", "forks"),
    [
        (5, 2.9, True, False), (5, 3, True, True), (4, 2.9, False, False), (4, 3, False, True), (60, 56.9, True, False),
        (60, 57, False, True),
    ],
)
def test_a_fork_is_ready_a_little_before_it_is_needed(
    wait_s: float, held_s: float, written: bool, forks: bool
) -> None:
    """It does the work of the flow a second time. So it must not be there long before. If the flow has not written its
    stores, the fork comes later, because it replays what they lack.
    """
    waiting = replace(WAITING, held_s={"app": held_s, "web": wait_s * 0.4}, still_s=held_s / 2, is_written=written)
    assert decide(waiting, None, wait_s).forks == (frozenset({"app"}) if forks else None)
    assert decide(replace(waiting, still_s=held_s / 4), None, wait_s).forks is None, "the input is slow, and comes"
    assert decide(replace(WAITING, held_s={"app": held_s}), EPOCH, wait_s).forks is None


def test_a_flow_that_has_waited_for_long_answers_without_the_input() -> None:
    assert decide(WAITING, None, X_S) == Orders(UP_FAILURE, opens=frozenset({"app"}))
    assert decide(WAITING, EPOCH, X_S) == Orders(UP_FAILURE), "one epoch at a time"


def test_an_epoch_ends_when_the_flow_has_passed_it() -> None:
    assert decide(BACK, EPOCH, X_S) == Orders(STABILIZATION)
    passed, stopped = replace(BACK, progress=at(20_000)), replace(EPOCH, is_suspended=True)
    assert decide(passed, EPOCH, X_S) == Orders(STABILIZATION, suspends=True), "it may have given out more meanwhile"
    assert decide(passed, stopped, X_S) == Orders(STABLE, closes=True)
    assert decide(BACK, replace(stopped, progress=Progress()), X_S).closes, "it has no row"
    shown = replace(stopped, progress=Progress(), before=at(19_000))
    assert not decide(BACK, shown, X_S).closes, "readers show the rows of the epoch before it"
    assert decide(passed, shown, X_S).closes


def test_an_epoch_that_lets_rows_wait_is_not_as_near_as_it_looks() -> None:
    """It stands still while the flow catches up, and rows come. Not for twice alpha X: then no rows are there."""
    flow = replace(BACK, progress=at(18_000))
    assert decide(flow, EPOCH, X_S).suspends, "2 s are less than alpha X"
    assert not decide(flow, replace(EPOCH, still_s=1.0), X_S).suspends
    assert decide(flow, replace(EPOCH, still_s=0.5), X_S).suspends
    assert not decide(flow, replace(EPOCH, still_s=1.9 * X_S), X_S).suspends, "its batch has all that waited"
    assert decide(flow, replace(EPOCH, still_s=2 * X_S), X_S).suspends
    assert decide(replace(flow, progress=at(20_100)), replace(EPOCH, still_s=2.6), X_S).suspends, "it is passed"


def test_an_epoch_stays_until_the_flow_has_given_out_its_windows() -> None:
    """They come one batch after their last bucket. Until then the rows that replace them are not there."""
    epoch = replace(EPOCH, progress=at(20_000, 19_999), is_suspended=True)
    assert not decide(replace(BACK, progress=at(20_000, 11_999)), epoch, X_S).closes
    assert decide(replace(BACK, progress=at(20_000, 19_999)), epoch, X_S).closes


def test_an_epoch_stops_when_the_flow_is_in_time_again() -> None:
    """One input may always be a second behind the other, and the flow then never passes an epoch that goes on."""
    back = FlowLook(at(18_000), {"app": 0.4})
    assert decide(back, EPOCH, X_S) == Orders(STABILIZATION, suspends=True)
    assert decide(back, replace(EPOCH, is_suspended=True), X_S) == Orders(STABILIZATION)


def test_a_flow_that_stands_still_again_has_another_epoch() -> None:
    """The inputs that were away, and are behind, are not waited for once more: that would take too long."""
    again = FlowLook(at(17_000), {"web": X_S, "app": 0.1}, X_S)
    assert decide(again, EPOCH, X_S) == Orders(UP_FAILURE, closes=True, opens=frozenset({"app", "web"}))


def test_an_epoch_that_is_far_ahead_goes_on_when_the_flow_stands_still_again() -> None:
    """Another one would have all rows since the flow's last batch to process, and would come later than the bound."""
    again = FlowLook(at(12_000), {"web": X_S, "app": 0.1}, X_S)
    assert decide(again, EPOCH, X_S) == Orders(UP_FAILURE)
    stopped = replace(EPOCH, is_suspended=True)
    assert decide(again, stopped, X_S) == Orders(UP_FAILURE, closes=True, opens=frozenset({"app", "web"})), "no answer"
    assert decide(again, replace(EPOCH, progress=Progress()), X_S) == Orders(UP_FAILURE), "it has just begun"
    paused = replace(EPOCH, progress=at(17_000), pause_s=2.0)
    assert decide(again, paused, X_S) == Orders(UP_FAILURE), "its rows wait, so it is further ahead than it seems"


def test_an_input_that_is_back_is_waited_for_when_others_go_away() -> None:
    """Else an epoch after failures of all inputs, one after another, would wait for none, and would have no batch."""
    again = FlowLook(at(17_000), {"web": X_S, "tel": X_S}, X_S)
    assert decide(again, EPOCH, X_S) == Orders(UP_FAILURE, closes=True, opens=frozenset({"web", "tel"}))
    stuck = replace(EPOCH, held_s={"web": X_S, "tel": X_S}, back=frozenset({"app"}))
    assert decide(replace(again, progress=at(12_000)), stuck, X_S).leaves_out == frozenset({"web", "tel"})


@pytest.mark.parametrize("flow", [WAITING, BACK])
def test_an_input_that_is_back_is_waited_for_again_in_the_open_epoch(flow: FlowLook) -> None:
    """Else each of its rows would be late there whose bucket another input closes first."""
    back = replace(EPOCH, absent=frozenset({"app", "web"}), back=frozenset({"web"}))
    assert decide(flow, back, X_S).leaves_out == frozenset({"app"})
    assert decide(flow, replace(back, is_suspended=True), X_S).leaves_out is None, "no query runs"
    assert decide(flow, replace(back, back=frozenset()), X_S).leaves_out is None, "nothing has changed"


def test_an_input_that_is_slow_leaves_the_epoch_open() -> None:
    slow = FlowLook(at(12_000), {"app": 60.0}, 1.0)
    assert decide(slow, EPOCH, X_S) == Orders(UP_FAILURE)


def test_another_input_that_is_away_is_left_out_too() -> None:
    """The epoch goes on: another one would begin after the flow's last batch, and process all rows since again."""
    stuck = replace(EPOCH, held_s={"web": X_S})
    assert decide(WAITING, stuck, X_S) == Orders(UP_FAILURE, leaves_out=frozenset({"app", "web"}))
    assert decide(WAITING, replace(EPOCH, held_s={"web": X_S - 0.1}), X_S) == Orders(UP_FAILURE)
    two = replace(EPOCH, held_s={"web": X_S, "tel": 0.6 * X_S})
    assert decide(WAITING, two, X_S).leaves_out == frozenset({"app", "tel", "web"}), "of four inputs"
    frozen = replace(BACK, progress=at(10_000), held_s={"app": 0.1})
    assert decide(frozen, stuck, X_S).leaves_out, "the flow runs a long batch, so it says nothing new"
    reads = FlowLook(at(10_000), inputs=frozenset({("totals", 1)}))
    chained = replace(EPOCH, absent=frozenset(), inputs=reads.inputs, held_s={"totals": 9.0, "web": X_S})
    assert decide(reads, chained, X_S).leaves_out == frozenset({"web"}), "its flow stands at the same bucket"


@pytest.mark.parametrize(("held_s", "absent"), [(0.6 * X_S, {"app", "web"}), (0.4 * X_S, {"app"})])
def test_inputs_that_go_away_together_cost_one_epoch(held_s: float, absent: set[str]) -> None:
    """A second epoch would come alpha * X later, and be the start of another query."""
    assert decide(replace(WAITING, held_s={"app": X_S, "web": held_s}), None, X_S).opens == frozenset(absent)


def test_a_stopped_epoch_is_no_answer_when_rows_wait_again() -> None:
    """Also if the flow has passed it, and would close it next."""
    stopped = replace(EPOCH, progress=at(10_000), begun=at(5_000), is_suspended=True)
    again = Orders(UP_FAILURE, closes=True, opens=frozenset({"app"}))
    assert decide(WAITING, stopped, X_S) == again
    assert decide(replace(WAITING, progress=at(10_000, 9_000)), stopped, X_S) == again


def test_an_epoch_that_fails_is_closed() -> None:
    assert decide(WAITING, replace(EPOCH, has_ended=True), X_S) == Orders(UP_FAILURE, closes=True)


def test_a_flow_after_one_with_an_epoch_has_one_that_reads_it() -> None:
    one, two = frozenset({("totals", 1)}), frozenset({("totals", 2)})
    reads = replace(EPOCH, absent=frozenset(), inputs=one)
    assert decide(replace(BACK, inputs=one), None, X_S) == Orders(UP_FAILURE, opens=frozenset())
    assert decide(replace(BACK, inputs=one), reads, X_S) == Orders(UP_FAILURE)
    assert decide(replace(BACK, inputs=two), reads, X_S) == Orders(UP_FAILURE, closes=True, opens=frozenset())
    assert decide(BACK, reads, X_S) == Orders(STABILIZATION, suspends=True), "no more rows come to it"
    waits = FlowLook(at(10_000), {"totals": X_S, "tel": X_S}, X_S, one)
    assert decide(waits, None, X_S).opens == frozenset({"tel"}), "it waits for the epoch that it reads"


def test_an_input_that_is_away_is_answered_without_when_the_epoch_of_another_one_ends() -> None:
    waits = FlowLook(at(10_000), {"tel": X_S}, X_S)
    epoch = EpochLook(frozenset({"tel"}), at(10_000), at(14_000), inputs=frozenset({("totals", 1)}))
    assert decide(waits, epoch, X_S) == Orders(UP_FAILURE, closes=True, opens=frozenset({"tel"}))


def test_a_query_stops_that_reads_a_closed_epoch_while_the_flow_stands_still() -> None:
    """The files of the closed one go soon, and the query would fail. Its rows count meanwhile."""
    waits = FlowLook(at(10_000), {"tel": X_S / 2})
    epoch = EpochLook(frozenset(), at(10_000), at(14_000), inputs=frozenset({("totals", 1)}))
    assert decide(waits, epoch, X_S) == Orders(UP_FAILURE, suspends=True)
    assert decide(waits, replace(epoch, is_suspended=True), X_S) == Orders(UP_FAILURE)
    longer = replace(waits, held_s={"tel": X_S})
    again = Orders(UP_FAILURE, closes=True, opens=frozenset({"tel"}))
    assert decide(longer, replace(epoch, is_suspended=True), X_S) == again


class Life:
    """Three inputs that come, go and are slow, the flow, and the query of its epoch, step by step.

    `furthest`: at each step, the end of the stable buckets of the input that is furthest. `extended`: how often an
    epoch went on with other absent inputs. `start_ms`: how long a fork takes until its first plan.
    """

    names = ("app", "web", "tel")

    def __init__(self, seed: int, *, has_slow: bool) -> None:
        self.has_slow = has_slow
        self.chance = random.Random(seed)
        self.boundaries, self.away_until, self.slow_until = (dict.fromkeys(self.names, 0) for _ in range(3))
        self.lag = {name: self.chance.choice([0, 300, 1500]) for name in self.names}
        self.until, self.answered, self.moved_at, self.opened, self.extended = 0, 0, 0, 0, 0
        self.inputs = frozenset[tuple[str, int]]()
        self.held, self.epoch_held = dict[str, tuple[int, int]](), dict[str, tuple[int, int]]()
        self.epoch: EpochLook | None = None
        self.left = dict[str, int]()
        self.furthest, self.reached, self.begins_at = list[int](), 0, 0
        self.start_ms = self.chance.choice([0, 1_000, 2_000])

    def move_inputs(self, now: int) -> None:
        """In the end all of them are there."""
        for name in self.names:
            if now < 180_000 and now >= self.away_until[name] and self.chance.random() < 0.004:
                self.away_until[name] = now + self.chance.choice([1_000, 2_000, 8_000, 20_000])
                self.slow_until[name] = now + (self.chance.choice([0, 0, 40_000]) if self.has_slow else 0)
            if now >= self.away_until[name]:
                known, to = self.boundaries[name], now - self.lag[name]
                self.boundaries[name] = max(known, min(to, known + 50) if now < self.slow_until[name] else to)
        self.furthest.append(max(self.ends.values()))
        if now < 200_000 and self.chance.random() < 0.002:
            self.inputs = frozenset({("web", self.opened)}) if self.chance.random() < 0.6 else frozenset()
        elif now >= 200_000:
            self.inputs = frozenset()

    @property
    def ends(self) -> dict[str, int]:
        """The end of each input's stable buckets."""
        return {name: ms // 1000 * 1000 for name, ms in self.boundaries.items()}

    def look_at_flow(self, now: int) -> FlowLook:
        """What it has given out follows what it has read, one step later."""
        stable = min(self.ends.values())
        if stable > self.until:
            self.until, self.answered, self.moved_at = min(stable, self.until + 4_000), self.until, now
        else:
            self.answered = self.until
        self.held = self.note_wait(self.held, now, self.until)
        still_s = (now - self.moved_at) / 1000
        return FlowLook(at(self.until, self.answered), self.measure(self.held, now), still_s, self.inputs)

    def note_wait(
        self, held: dict[str, tuple[int, int]], now: int, until: int, absent: frozenset[str] = frozenset()
    ) -> dict[str, tuple[int, int]]:
        """Since when each input holds the rows of others back, and up to which time; all of them have rows always.

        `until`: rows below have been read. `absent`: the inputs for which nobody waits.
        """
        ends = self.ends
        ahead = max(ends.values())
        holders = [name for name, end in ends.items() if name not in absent and max(end, until) < ahead]
        return {name: held[name] if name in held and ends[name] < held[name][1] else (now, ahead) for name in holders}

    def measure(self, held: dict[str, tuple[int, int]], now: int) -> dict[str, float]:
        return {name: (now - since) / 1000 for name, (since, _) in held.items()}

    def move_epoch(self, now: int) -> None:
        """It reads the rows of the inputs for which it waits."""
        if self.epoch is None or self.epoch.is_suspended or now < self.begins_at:
            return
        if now - self.begins_at < 100:
            self.epoch_held = dict(self.held)
        ends = self.ends
        end = min(ms for name, ms in ends.items() if name not in self.epoch.absent)
        before = self.epoch.progress.until_ms or self.epoch.begun.until_ms or 0
        self.epoch_held = self.note_wait(self.epoch_held, now, before, self.epoch.absent)
        least = max(self.boundaries.values()) - X_S * 500
        self.left = {name: self.left.get(name, self.boundaries[name]) for name in self.epoch.absent}
        back = frozenset(name for name, left in self.left.items() if self.boundaries[name] > max(left, least))
        if end > before:
            self.epoch = replace(self.epoch, progress=at(end, before))
        self.epoch = replace(self.epoch, held_s=self.measure(self.epoch_held, now), back=back)

    def obey(self, orders: Orders, flow: FlowLook, now: int) -> None:
        """Orders that cannot be obeyed are wrong."""
        assert orders.opens is None or self.epoch is None or orders.closes, "one at a time"
        assert orders.opens is None or longest(flow) >= X_S or self.inputs, "a short failure has no tentative row"
        if orders.suspends:
            assert self.epoch is not None and longest(flow) < X_S
            self.epoch = replace(self.epoch, is_suspended=True)
        if orders.leaves_out is not None:
            assert self.epoch is not None and not self.epoch.is_suspended and orders.opens is None
            assert orders.leaves_out < set(self.names), "without a boundary there is no batch"
            self.epoch = replace(self.epoch, absent=orders.leaves_out)
            self.extended += 1
        if orders.closes:
            assert self.epoch is not None
            self.epoch = None
        if orders.opens is not None:
            assert orders.opens < set(self.names), "without a boundary there is no batch"
            self.epoch = EpochLook(orders.opens, flow.progress, Progress(), inputs=self.inputs)
            self.epoch_held, self.left, self.opened = {}, {}, self.opened + 1
            self.begins_at = now + self.start_ms

    def reach(self) -> int:
        """Up to where there has been an answer."""
        found = None if self.epoch is None else self.epoch.progress.until_ms
        self.reached = max(self.reached, self.until, found or 0)
        return self.reached


def longest(flow: FlowLook) -> float:
    return max(flow.held_s.values(), default=0.0)


@pytest.mark.parametrize("has_slow", [True, False], ids=["slow", "away"])
@pytest.mark.parametrize("seed", range(100))
def test_random_lives(seed: int, has_slow: bool) -> None:
    """While an input is away or slow, all rows are answered within the bound; when all are back, no epoch stays open.

    If an input is slow, a wait for it begins anew when the rows are stable that waited first. So later ones may wait
    for twice as long. With epochs of an input its rows wait for as long as it takes, which is not known here.
    """
    life, alone_since = Life(seed, has_slow=has_slow), 0
    late = (1 + has_slow) * X_S * 1000 + 500 + max(life.lag.values()) + life.start_ms
    for now in range(0, 300_000, 100):
        life.move_inputs(now)
        flow = life.look_at_flow(now)
        life.move_epoch(now)
        life.obey(decide(flow, life.epoch, X_S), flow, now)
        where = f"seed={seed}: {now} ms"
        answers = life.epoch is not None and not life.epoch.is_suspended
        assert longest(flow) < X_S or answers, f"{where}: nothing comes"
        alone_since = now if life.inputs else alone_since
        due = life.furthest[max(0, int(now - late) // 100)]
        assert life.reach() >= due or now - alone_since < late, f"{where}: {life.reached} is answered, and {due} is due"
        assert not life.inputs or (life.epoch is not None and life.epoch.inputs == life.inputs), f"{where}: another one"
    assert life.epoch is None, f"seed={seed}: all are back"
    assert life.opened and life.extended, f"seed={seed}: no input was away for long"
