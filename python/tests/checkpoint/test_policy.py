"""The policy: ledgers that count right, plans that ask for enough, and stores that obey them stay within Q and U."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from spark_cec.checkpoint.footprints import Footprints
from spark_cec.checkpoint.policy import FALLBACK_SHARE, MAX_STEPS, REPLAY_MARGIN, Plan, Step, plan_after
from spark_cec.settings import ExtentBound, Settings

FOREVER = 100


def ledger(
    history: list[tuple[int, int, int]], live: dict[int, int], dirty_from: int, dirty_windows: int = 1
) -> Footprints:
    return Footprints.restore(history, live, dirty_from, dirty_windows)


@pytest.mark.parametrize(
    ("history", "live", "dirty_from", "open_windows", "oldest", "extent", "replay"),
    [
        pytest.param([], {}, 0, 0, 0, 0, 0, id="nothing yet"),
        pytest.param([(1, 5, 10)], {1: 5}, 1, 5, 1, 5, 0, id="openings only: clean"),
        pytest.param([(1, 5, 10), (2, 0, 7)], {1: 5}, 1, 5, 1, 5, 7, id="batch 1 dirtied some"),
        pytest.param([(1, 5, 10), (2, 2, 7), (3, 4, 9)], {2: 1, 3: 2}, 2, 3, 2, 6, 9, id="older records do not count"),
        pytest.param([(1, 5, 10), (2, 5, 7)], {}, 2, 0, 2, 0, 0, id="all closed"),
        pytest.param([(3, 1, 1), (1, 5, 10), (2, 2, 7)], {1: 1}, 0, 1, 1, 8, 18, id="history in any order"),
    ],
)
def test_the_ledgers_numbers(
    history: list[tuple[int, int, int]],
    live: dict[int, int],
    dirty_from: int,
    open_windows: int,
    oldest: int,
    extent: int,
    replay: int,
) -> None:
    found = ledger(history, live, dirty_from)
    assert (found.open_windows, found.oldest_footprint, found.extent, found.replay) == (
        open_windows,
        oldest,
        extent,
        replay,
    )


def test_a_ledger_that_would_owe_windows_is_refused() -> None:
    footprints = ledger([(1, 2, 2)], {1: 2}, 1)
    with pytest.raises(ValueError, match="version 2: -1 open windows with footprint 1"):
        footprints.commit(2, records=1, inputs=0, live_changes={1: -3}, dirty_from=2, dirty_windows=0)


def test_a_ledger_forgets_what_neither_extent_nor_replay_needs() -> None:
    footprints = Footprints()
    for version in range(1, 1_000):
        footprints.commit(
            version,
            records=1,
            inputs=1,
            live_changes={version: 1, version - 1: -1} if version > 1 else {1: 1},
            dirty_from=version,
            dirty_windows=0,
        )
    assert len(footprints.records) == len(footprints.inputs) == 1


@pytest.mark.parametrize(
    ("live", "dirty_from", "replay_steps", "extent_steps"),
    [
        pytest.param({}, 3, [(3, 0), (4, 0)], [], id="no window"),
        pytest.param({3: 4}, 3, [(3, 0), (4, 0)], [(3, 4), (4, 4)], id="all fresh"),
        pytest.param({1: 2, 3: 4}, 1, [(1, 50), (2, 30), (3, 0), (4, 0)], [(1, 9), (3, 6), (4, 6)], id="old and dirty"),
    ],
)
def test_the_stairs(
    live: dict[int, int], dirty_from: int, replay_steps: list[tuple[int, int]], extent_steps: list[tuple[int, int]]
) -> None:
    """Commits of versions 1, 2, 3 with 2, 3, 4 records and 10, 20, 30 inputs."""
    plan = plan_after(ledger([(1, 2, 10), (2, 3, 20), (3, 4, 30)], live, dirty_from), Settings(), FOREVER)
    assert list(plan.replay_steps) == [Step(*step) for step in replay_steps]
    assert list(plan.extent_steps) == [Step(*step) for step in extent_steps]


@pytest.mark.parametrize("span", [1, MAX_STEPS - 2, MAX_STEPS - 1, MAX_STEPS, MAX_STEPS + 1, 10 * MAX_STEPS + 7])
def test_stairs_are_short_and_end_with_everything(span: int) -> None:
    versions = range(1, span + 1)
    plan = plan_after(ledger([(v, 1, 1) for v in versions], dict.fromkeys(versions, 1), 1), Settings(), FOREVER)
    for steps in (plan.replay_steps, plan.extent_steps):
        assert len(steps) <= MAX_STEPS + 1
        assert steps[-1].before == span + 1
        assert steps[0].before == 1, "nothing is written again that no bound asks for"
        assert list(steps) == sorted(steps, key=lambda step: step.before)
    costs = [step.cost for step in plan.replay_steps]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.parametrize(("retained", "forced"), [(100, -60), (12, 6), (6, 10), (5, 11), (4, 11), (1, 11)])
def test_what_must_be_checked_before_spark_forgets(retained: int, forced: int) -> None:
    plan = plan_after(ledger([(v, 1, 1) for v in range(1, 11)], {1: 1}, 1), Settings(), retained)
    assert plan.forced_before == forced


def test_the_plan_carries_the_settings() -> None:
    settings = Settings(ExtentBound(per_window=1.5), 77, 5.0, 50.0)
    plan = plan_after(Footprints(), settings, FOREVER)
    assert (plan.replay_bound, plan.extent_records, plan.extent_per_window, plan.share, plan.floor_ms) == (
        77,
        0,
        1.5,
        0.1,
        5.0,
    )


@dataclass
class Obedient:
    """A store of numbers only, which obeys the plan as the shim does; `footprint`, `dirty`: per open window."""

    settings: Settings
    retained: int
    footprint: dict[int, int] = field(default_factory=dict)
    dirty: dict[int, int] = field(default_factory=dict)
    ledger: Footprints = field(default_factory=Footprints)
    plan: Plan | None = None
    next_window: int = 0
    checked: int = 0

    def batch(self, touched: list[int], closed: list[int], opened: int, inputs: int) -> int:
        """One commit; the records that it had to write in any case."""
        version = self.ledger.version
        before = dict(self.footprint)
        for window in touched:
            self.dirty.setdefault(window, version)
        for window in closed:
            del self.footprint[window]
            self.dirty.pop(window, None)
        kept = list(self.footprint)
        self.footprint.update(dict.fromkeys(range(self.next_window, self.next_window + opened), version + 1))
        self.next_window += opened
        checks = self._checks(kept, opened + len(closed), inputs)
        for window in checks:
            self.footprint[window] = version + 1
            self.dirty.pop(window, None)
        self.checked += len(checks)
        changes: dict[int, int] = {}
        for window in before.keys() | self.footprint.keys():
            for where, sign in ((before.get(window), -1), (self.footprint.get(window), 1)):
                if where is not None:
                    changes[where] = changes.get(where, 0) + sign
        self.ledger.commit(
            version + 1, records=opened + len(closed) + len(checks), inputs=inputs, live_changes=changes,
            dirty_from=min(self.dirty.values(), default=version + 1), dirty_windows=len(self.dirty),
        )  # fmt: skip
        self.plan = plan_after(self.ledger, self.settings, self.retained)
        return opened + len(closed)

    def _checks(self, kept: list[int], records: int, inputs: int) -> set[int]:
        plan = self.plan
        if plan is None:
            return set()
        checks = {window for window in kept if self.dirty.get(window, FOREVER**3) < plan.forced_before}
        checks |= set(sorted(kept, key=lambda window: self.footprint[window])[: plan.rewrite_windows])
        if plan.share > 0:
            before = _look_up(plan.replay_steps, lambda step: step.cost + inputs <= plan.replay_bound)
            checks |= {window for window in kept if self.dirty.get(window, FOREVER**3) < before}
            open_windows = len(self.footprint)
            limit = max(plan.extent_records, int(plan.extent_per_window * open_windows), open_windows)
            before = _look_up(plan.extent_steps, lambda step: step.cost + records + len(checks) <= limit)
            checks |= {window for window in kept if self.footprint[window] < before}
        return checks


def _look_up(steps: tuple[Step, ...], enough: object) -> int:
    assert callable(enough)
    return next((step.before for step in steps if enough(step)), steps[-1].before if steps else -1)


def random_store(rng: random.Random, **settings: float) -> Obedient:
    bound = rng.choice(
        [ExtentBound(records=rng.randint(1, 60)), ExtentBound(per_window=rng.choice([1.0, 1.5, 2.0, 5.0]))]
    )
    replay = rng.choice([1, 7, 40, 1_000_000])
    return Obedient(Settings(bound, replay, settings.get("ci", 10.0), 10.0), rng.choice([5, 6, 10, FOREVER]))


def reach(retained: int) -> int:
    """How far D may lie back: an older version must be within Spark's memory too, should a frame be lost."""
    return max(retained - REPLAY_MARGIN - retained // FALLBACK_SHARE, 0)


def quiet_store(windows: int, age: int) -> Obedient:
    """All its windows were opened by one commit; nothing but their age asks for checks."""
    settings = Settings(ExtentBound(records=10**9), 10**9, 0.0, 10.0, footprint_age=age)
    store = Obedient(settings, FOREVER)
    store.batch([], [], windows, windows)
    return store


def random_batch(rng: random.Random, store: Obedient) -> tuple[int, int]:
    open_windows = sorted(store.footprint)
    chosen = rng.sample(open_windows, rng.randint(0, len(open_windows)))
    closed = chosen[: rng.choice([0, 0, 1, len(chosen) // 2, len(chosen)])]
    inputs = rng.choice([0, len(chosen), rng.randint(0, 30)])
    return store.batch(chosen[len(closed) :], closed, rng.choice([0, 0, 1, 5]), inputs), inputs


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_a_store_that_obeys_stays_within_both_bounds(first_seed: int) -> None:
    """With time enough (CI/CP = 1), at every commit; a record per window and the batch's own are the least."""
    for seed in range(first_seed, first_seed + 100):
        rng = random.Random(seed)
        store = random_store(rng)
        for _ in range(rng.randint(2, 150)):
            own, _ = random_batch(rng, store)
            if store.ledger.version == 1:
                continue
            least = len(store.footprint) + own
            limit = max(store.settings.extent_bound.limit(len(store.footprint)), least)
            assert store.ledger.extent <= limit, (
                f"seed {seed}: q = {store.ledger.extent} > {limit} at version {store.ledger.version}"
            )
            assert store.ledger.replay <= store.settings.replay_bound, f"seed {seed}: u = {store.ledger.replay}"
            behind = store.ledger.version - store.ledger.dirty_from
            assert behind <= reach(store.retained), f"seed {seed}: D is {behind} batches behind"


def test_without_time_a_store_writes_openings_and_what_is_forced() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        store = random_store(rng, ci=0.0)
        for _ in range(60):
            checked = store.checked
            random_batch(rng, store)
            assert store.checked == checked or store.retained != FOREVER, f"seed {seed}"
            assert store.ledger.version - store.ledger.dirty_from <= reach(store.retained), f"seed {seed}"


@pytest.mark.parametrize("age", [1, 2, 3, 10, 41])
def test_no_footprint_grows_old_whatever_the_budget_says(age: int) -> None:
    """With windows that are touched, closed and left alone at random, and no time for checks at all."""
    for seed in range(40):
        rng = random.Random(seed)
        store = random_store(rng, ci=rng.choice([0.0, 10.0]))
        store.settings = replace(store.settings, footprint_age=age)
        for _ in range(rng.randint(2, 4 * age + 20)):
            random_batch(rng, store)
            behind = store.ledger.version - store.ledger.oldest_footprint
            assert behind <= age, f"seed {seed}: a footprint {behind} versions back at version {store.ledger.version}"
            assert len(store.ledger.records) <= age + 1, f"seed {seed}: the ledger does not forget"


@pytest.mark.parametrize(("age", "windows"), [(100, 1_000), (100, 7), (1_000, 10)])
def test_a_quiet_store_is_written_again_a_little_at_a_time(age: int, windows: int) -> None:
    """Never touched: each window is written about every `age`/2 to `age` versions, and never many in one commit."""
    store = quiet_store(windows, age)
    per_commit = []
    for _ in range(6 * age):
        checked = store.checked
        store.batch([], [], 0, 0)
        per_commit.append(store.checked - checked)
    assert max(per_commit) <= -(-2 * windows // age) + 1
    assert 5 * windows <= store.checked <= 12 * windows
    assert store.ledger.version - store.ledger.oldest_footprint <= age


def test_a_store_whose_windows_are_young_rewrites_nothing_for_its_age() -> None:
    """Windows that live for less than half of the bound."""
    store = quiet_store(0, 100)
    for _ in range(300):
        store.batch([], [window for window, at in store.footprint.items() if store.ledger.version - at > 40], 3, 3)
    assert store.checked == 0


def test_loose_bounds_cost_nothing() -> None:
    """A policy that checks everything always would pass the tests above."""
    rng = random.Random(1)
    store = Obedient(Settings(ExtentBound(records=10**9), 10**9, 10.0, 10.0), FOREVER)
    for _ in range(80):
        random_batch(rng, store)
    assert store.checked == 0


def test_tight_bounds_cost_little_more_than_they_must() -> None:
    """All windows touched in every batch of 100 tuples: U of ten batches means a check of each about every eleven."""
    store = Obedient(Settings(ExtentBound(records=10**9), 1_000, 10.0, 10.0), FOREVER)
    store.batch([], [], 50, 50)
    for _ in range(200):
        store.batch(list(store.footprint), [], 0, 100)
    assert store.ledger.replay <= 1_000
    assert 200 * 50 / 12 <= store.checked <= 200 * 50 / 10


def test_the_ledger_rebuilt_from_history_plans_as_the_one_that_lived() -> None:
    rng = random.Random(9)
    store = random_store(rng)
    for _ in range(60):
        random_batch(rng, store)
        history = [
            (version, store.ledger.records[version], store.ledger.inputs[version]) for version in store.ledger.records
        ]
        again = Footprints.restore(history, store.ledger.live, store.ledger.dirty_from, store.ledger.dirty_windows)
        assert plan_after(again, store.settings, store.retained) == store.plan
