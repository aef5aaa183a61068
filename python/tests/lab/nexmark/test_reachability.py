"""The cyclic query's changes and rows, against another program."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest

from spark_cec_lab.nexmark.reachability import LINK, SOURCE, Change, changes, rows_of

NODES, LONGEST = 8, 5


def left_of(given: list[Change]) -> tuple[set[tuple[int, int]], set[int]]:
    """The links and the sources that are there in the end."""
    weights = Counter[tuple[str, int, int]]()
    for kind, a, b, weight in given:
        weights[kind, a, b] += weight
    assert set(weights.values()) <= {0, 1}
    there = [each for each, weight in weights.items() if weight]
    return {(a, b) for kind, a, b in there if kind == LINK}, {a for kind, a, _ in there if kind == SOURCE}


@pytest.mark.parametrize("seed", range(30))
def test_what_is_left_are_the_paths_of_the_graph_that_is_left(seed: int) -> None:
    print(f"seed {seed}")
    given = list(changes(seed, 40, NODES))
    weights = Counter[tuple[int, ...]]()
    for source, node, path, weight in rows_of(given, LONGEST):
        assert (path[0], path[-1]) == (source, node)
        weights[path] += weight
    links, sources = left_of(given)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(NODES))
    graph.add_edges_from(links)
    found = {(source,) for source in sources}
    for source in sources:
        for node in set(graph) - {source}:
            found |= {tuple(path) for path in nx.all_simple_paths(graph, source, node, cutoff=LONGEST - 1)}
    assert {path: weight for path, weight in weights.items() if weight} == dict.fromkeys(found, 1)


def test_changes_have_the_papers_proportions() -> None:
    """Nearly: a link that is there cannot come, and one that is not cannot go."""
    given = list(changes(1, 20_000, 1_000_000))
    share = Counter((kind, weight) for kind, _, _, weight in given)
    for change, wanted in {(LINK, 1): 0.60, (SOURCE, 1): 0.15, (LINK, -1): 0.20, (SOURCE, -1): 0.05}.items():
        assert share[change] / len(given) == pytest.approx(wanted, abs=0.03)


def test_the_same_seed_gives_the_same_changes() -> None:
    assert list(changes(5, 100, NODES)) == list(changes(5, 100, NODES)) != list(changes(6, 100, NODES))
