"""Which inputs wait in a join for inputs that are away: a model by rows, and Spark's own names of joins."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cec.availability.joins import Channel, Join, Merge, Plan, find_blocked

NAMES = ("a", "b", "c", "d", "e")
ALL_JOINS = ((True, True), (True, False), (False, True), (False, False))
WEB, APP, PAY = Channel("web"), Channel("app"), Channel("pay")


def names_of(rows: list[frozenset[str]]) -> set[str]:
    return {name for row in rows for name in row}


def run(plan: Plan, absent: frozenset[str]) -> list[frozenset[str]]:
    """The rows that come out, each as the inputs that it has columns of: a join of all with all."""
    match plan:
        case Channel(name):
            return [] if name in absent else [frozenset((name,))]
        case Merge(()):
            return [frozenset()]
        case Merge(plans):
            return [row for each in plans for row in run(each, absent)]
        case Join(left, right, needs_left, needs_right):
            ours, theirs = run(left, absent), run(right, absent)
            found = [one | other for one in ours for other in theirs]
            if not theirs and not needs_right:
                found += ours
            if not ours and not needs_left:
                found += theirs
            return found


def draw_plan(chance: random.Random, names: list[str]) -> Plan:
    if len(names) == 1:
        return Channel(names[0]) if chance.random() < 0.9 else Join(Channel(names[0]), Merge(()), True, True)
    cut = chance.randrange(1, len(names))
    left, right = draw_plan(chance, names[:cut]), draw_plan(chance, names[cut:])
    if chance.random() < 0.4:
        return Merge((left, right))
    return Join(left, right, *chance.choice(ALL_JOINS))


@given(st.integers(0, 2**32), st.sets(st.sampled_from(NAMES)))
def test_an_input_is_blocked_if_no_row_of_it_comes_out(seed: int, absent: set[str]) -> None:
    chance = random.Random(seed)
    plan = draw_plan(chance, list(NAMES[: chance.randrange(1, len(NAMES) + 1)]))
    inputs = names_of(run(plan, frozenset())) | {name for name in NAMES if repr(f"{name}") in repr(plan)}
    wanted = inputs - absent - names_of(run(plan, frozenset(absent)))
    assert find_blocked(plan, absent) == tuple(sorted(wanted)), f"seed={seed} {plan}"


@pytest.mark.parametrize(
    ("plan", "absent", "blocked"),
    [
        (Join(WEB, APP, True, True), {"app"}, ("web",)),
        (Join(WEB, APP, True, True), set(), ()),
        (Join(WEB, APP, True, False), {"app"}, ()),
        (Join(WEB, APP, True, False), {"web"}, ("app",)),
        (Join(WEB, APP, False, False), {"web"}, ()),
        (Join(WEB, Merge((APP, PAY)), True, True), {"app"}, ()),
        (Join(WEB, Merge((APP, PAY)), True, True), {"app", "pay"}, ("web",)),
        (Merge((WEB, Join(WEB, APP, True, True))), {"app"}, ()),
        (Join(WEB, Merge(()), True, True), set(), ()),
        (Join(Join(WEB, APP, True, True), PAY, True, True), {"pay"}, ("app", "web")),
    ],
)
def test_blocked_inputs(plan: Plan, absent: set[str], blocked: tuple[str, ...]) -> None:
    assert find_blocked(plan, absent) == blocked
