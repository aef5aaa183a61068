"""Dataflows: the operators of a query, and how records spread over their instances.

Sources: Siachamis et al. (ICDE 2024), section VI, for the queries; their costs are this project's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

SOURCE_SHARE = 1.0


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator; it has an instance on every worker.

    `inputs`: the operators that it reads. `keyed`: from each instance of these, or from the one on its own worker.
    `us`: microseconds of work for a record. `out`: records that it answers for one. `kept_bytes`: by how much a record
    makes its state grow, as long as that is below `most_bytes` on a worker. `share`: of all records, those that a
    source gives.
    """

    name: str
    inputs: tuple[str, ...] = ()
    keyed: bool = False
    us: float = 1.0
    out: float = 1.0
    kept_bytes: float = 0.0
    most_bytes: float = float("inf")
    share: float = SOURCE_SHARE


@dataclass(frozen=True, slots=True)
class Dataflow:
    """A query. `hops`: how often a record may go around a cycle; 0 where there is none."""

    name: str
    operators: tuple[Operator, ...]
    hops: int = 0

    @property
    def by_name(self) -> Mapping[str, Operator]:
        """The operators."""
        return {each.name: each for each in self.operators}

    def readers(self, name: str) -> list[Operator]:
        """Who reads an operator's records."""
        return [each for each in self.operators if name in each.inputs]

    @property
    def sinks(self) -> frozenset[str]:
        """The operators that nobody reads."""
        return frozenset(each.name for each in self.operators if not self.readers(each.name))


def part_of(instance: int, workers: int, skew: float) -> float:
    """The share of keyed records that one of `workers` instances gets; `skew` of all are for the first one alone."""
    return (1 - skew) / workers + (skew if instance == 0 else 0.0)


QUERIES: Mapping[str, Dataflow] = {
    each.name: each
    for each in (
        Dataflow("q1", (Operator("bids"), Operator("euros", ("bids",), us=2.0), Operator("sink", ("euros",), us=0.5))),
        Dataflow(
            "q3",
            (
                Operator("persons", share=0.25),
                Operator("auctions", share=0.75),
                Operator("here", ("persons",), us=1.0, out=0.5),
                Operator("of_category", ("auctions",), us=1.0, out=0.5),
                Operator("join", ("here", "of_category"), keyed=True, us=6.0, out=0.5, kept_bytes=120.0),
                Operator("sink", ("join",), us=0.5),
            ),
        ),
        Dataflow(
            "q8",
            (
                Operator("persons", share=0.25),
                Operator("auctions", share=0.75),
                Operator("join", ("persons", "auctions"), keyed=True, us=5.0, out=0.5, kept_bytes=60.0, most_bytes=4e6),
                Operator("sink", ("join",), us=0.5),
            ),
        ),
        Dataflow(
            "q12",
            (
                Operator("bids"),
                Operator("count", ("bids",), keyed=True, us=3.0, kept_bytes=8.0, most_bytes=1e6),
                Operator("sink", ("count",), us=0.5),
            ),
        ),
        Dataflow(
            "reachability",
            (
                Operator("links", share=0.8),
                Operator("sources", share=0.2),
                Operator("join", ("links", "sources", "project"), keyed=True, us=5.0, out=0.6, kept_bytes=80.0),
                Operator("project", ("join",), us=2.0, out=0.8),
                Operator("sink", ("project",), us=0.5),
            ),
            hops=6,
        ),
    )
}
"""The queries of the paper."""


class UnknownQuery(ValueError):
    """No query has that name: the message has the nearest one, or all."""

    def __init__(self, name: str) -> None:
        near = difflib.get_close_matches(name, QUERIES, 1)
        super().__init__(f"there is no query {name!r}: " + (f"did you mean {near[0]}?" if near else ", ".join(QUERIES)))


def dataflow_of(name: str) -> Dataflow:
    """The query of that name. Raises `UnknownQuery`."""
    try:
        return QUERIES[name]
    except KeyError:
        raise UnknownQuery(name) from None
