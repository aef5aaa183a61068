"""CheckMate's cyclic query: which nodes the sources reach, by which paths, while links and sources come and go.

Source: Siachamis et al. (ICDE 2024), section VI and Fig. 6, after Chandramouli et al. ("On-the-fly progress detection
in iterative stream queries"). What comes and goes are rows of weight 1 and -1; a path that is made of two of them has
their product, and a path is there where its weights add up to 1. So the order in which rows meet does not matter, and
what was deleted takes back all that came of it, around the cycle.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from spark_cec.pipeline.runnable import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CHANGE = "kind STRING, a BIGINT, b BIGINT, weight INT"
"""The columns of a change: `link` from a to b, or `source` a, and 1 where it comes, -1 where it goes."""

PATH = "source BIGINT, node BIGINT, path ARRAY<BIGINT>, weight INT"
"""The columns of a path: from `source` to `node`, by the nodes of `path`, both ends among them."""

LINK, SOURCE = "link", "source"


@dataclass(frozen=True, slots=True)
class Mix:
    """Chances of a new link, a new source, the end of a link and that of a source: the paper's 60, 15, 20 and 5 %."""

    new_link: float = 0.60
    new_source: float = 0.15
    end_of_link: float = 0.20
    end_of_source: float = 0.05


_Item = TypeVar("_Item")

Change = tuple[str, int, int, int]
"""One row of `CHANGE`."""

Path = tuple[int, int, tuple[int, ...], int]
"""One row of `PATH`."""


def changes(seed: int, number: int, nodes: int, mix: Mix | None = None) -> Iterator[Change]:
    """So many changes over `nodes` nodes: nothing comes that is there, and nothing goes that is not."""
    mix, chance = mix or Mix(), random.Random(seed)
    links: list[tuple[int, int]] = []
    sources: list[int] = []
    there: set[object] = set()
    done = 0
    while done < number:
        what = chance.choices(
            ("new_link", "new_source", "end_of_link", "end_of_source"),
            (mix.new_link, mix.new_source, mix.end_of_link, mix.end_of_source),
        )[0]
        a, b = chance.randrange(nodes), chance.randrange(nodes)
        if what == "new_link" and a != b and (a, b) not in there:
            links.append((a, b))
            there.add((a, b))
            yield LINK, a, b, 1
        elif what == "new_source" and a not in there:
            sources.append(a)
            there.add(a)
            yield SOURCE, a, a, 1
        elif what == "end_of_link" and links:
            link = _taken(links, chance)
            there.remove(link)
            yield LINK, *link, -1
        elif what == "end_of_source" and sources:
            a = _taken(sources, chance)
            there.remove(a)
            yield SOURCE, a, a, -1
        else:
            continue
        done += 1


def _taken(each: list[_Item], chance: random.Random) -> _Item:
    """Any of them, which is not in the list any more; their order is of no account."""
    at = chance.randrange(len(each))
    each[at], each[-1] = each[-1], each[at]
    return each.pop()


def rows_of(given: Iterable[Change], longest: int) -> Iterator[Path]:
    """What the pipeline makes of changes, in some order: a row for each way to put a source and links together."""
    rows = list(given)
    links: dict[int, list[tuple[int, int]]] = {}
    for kind, a, b, weight in rows:
        if kind == LINK:
            links.setdefault(a, []).append((b, weight))
    ways: list[Path] = [(a, a, (a,), weight) for kind, a, _, weight in rows if kind == SOURCE]
    while ways:
        source, node, path, weight = ways.pop()
        yield source, node, path, weight
        if len(path) < longest:
            ways += [(source, b, (*path, b), weight * w) for b, w in links.get(node, ()) if b not in path]


def reachability(home: str, root: str, longest: int, per_batch: int = 1, **how: Any) -> Pipeline:
    """A pipeline over files of changes in `<root>/in`, `per_batch` files at a time; its paths, of at most `longest`
    nodes, go to Parquet files in `<root>/out`, each with the weight by which it comes or goes. `how`: its protocol.
    """
    made = Pipeline("reachability", home, **how)

    @made.flow
    def changed(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(CHANGE).option("maxFilesPerTrigger", str(per_batch))
        return files.json(f"{root}/in")

    @made.flow(schema=PATH, partitions=2)
    def paths(changed: DataFrame, paths: DataFrame) -> DataFrame:
        begins = changed.where(f"kind = '{SOURCE}'").selectExpr(
            "a AS source", "a AS node", "array(a) AS path", "weight"
        )
        links = changed.where(f"kind = '{LINK}'").selectExpr("a", "b", "weight AS of_link")
        open_ended = paths.where(f"size(path) < {longest}")
        longer = open_ended.join(links, open_ended.node == links.a).where("NOT array_contains(path, b)")
        return begins.union(longer.selectExpr("source", "b", "array_append(path, b)", "weight * of_link"))

    @made.sink
    def out(paths: DataFrame) -> DataStreamWriter:
        return paths.writeStream.format("parquet").option("path", f"{root}/out")

    return made
