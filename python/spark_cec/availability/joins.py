"""Which inputs of a flow have no use without others, because a join needs rows of both sides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Channel:
    """The rows of an input."""

    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """`needs_left`, `needs_right`: whether no row comes out while that side has none."""

    left: Plan
    right: Plan
    needs_left: bool
    needs_right: bool


@dataclass(frozen=True, slots=True)
class Merge:
    """Rows come out if one of the plans has some. With no plans: a table, which always has some."""

    plans: tuple[Plan, ...]


Plan = Channel | Join | Merge
"""The joins and unions of a flow; operators with one input are left out."""


def find_blocked(plan: Plan, absent: Collection[str]) -> tuple[str, ...]:
    """The inputs that are there, and of which no row comes out without the inputs `absent`."""
    inputs = _list_inputs(plan)
    return tuple(sorted(inputs - _list_useful(plan, frozenset(absent)) - set(absent)))


def _list_inputs(plan: Plan) -> frozenset[str]:
    match plan:
        case Channel(name):
            return frozenset((name,))
        case Join(left, right):
            return _list_inputs(left) | _list_inputs(right)
        case Merge(plans):
            return frozenset().union(*map(_list_inputs, plans))


def _is_dry(plan: Plan, absent: frozenset[str]) -> bool:
    """Whether no row comes out."""
    match plan:
        case Channel(name):
            return name in absent
        case Join(left, right, needs_left, needs_right):
            dry_left, dry_right = _is_dry(left, absent), _is_dry(right, absent)
            return (dry_left and dry_right) or (dry_left and needs_left) or (dry_right and needs_right)
        case Merge(plans):
            return bool(plans) and all(_is_dry(each, absent) for each in plans)


def _list_useful(plan: Plan, absent: frozenset[str]) -> frozenset[str]:
    """The inputs whose rows come out by some path."""
    if _is_dry(plan, absent):
        return frozenset()
    match plan:
        case Channel(name):
            return frozenset((name,))
        case Join(left, right):
            return _list_useful(left, absent) | _list_useful(right, absent)
        case Merge(plans):
            return frozenset().union(*(_list_useful(each, absent) for each in plans))
