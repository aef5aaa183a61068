"""Input of a run, in files that say which events are theirs: as fast as they come out, or by the clock."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cec_lab.nexmark.reachability import changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODES = 5_000
"""Of the graph in which links and sources come and go."""

MOST_PIECES = 20
"""That a batch of a source takes."""

_MANY = 10_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """So many `events`, given at once, at `given_s`."""

    given_s: float
    events: int


class Feed:
    """Writes pieces into `places`, the same into each of them."""

    def __init__(self, places: Sequence[Path]) -> None:
        """The places are made."""
        self.pieces: list[Piece] = []
        self._places = places
        for place in places:
            place.mkdir(parents=True)

    def give(self, events: int, at_s: float) -> None:
        """One more piece. A source takes them in the order in which they were given."""
        number = len(self.pieces)
        text = self._text(sum(each.events for each in self.pieces), events)
        for place in self._places:
            hidden, file = place / f".{number:08d}.json", place / f"{number:08d}.json"
            hidden.write_text(text)
            os.utime(hidden, (number + 1, number + 1))
            hidden.rename(file)
        self.pieces.append(Piece(at_s, events))

    def _text(self, first: int, events: int) -> str:
        return json.dumps({"first": first, "events": events}) + "\n"


def numbers(spark: SparkSession, place: str) -> DataFrame:
    """The numbers of the events in such files: column `n`."""
    files = spark.readStream.schema("first BIGINT, events BIGINT").option("maxFilesPerTrigger", MOST_PIECES).json(place)
    # In as many tasks as there are cores: one would make the rows of a piece alone.
    parts = files.selectExpr("first", "events", "explode(sequence(0, 3)) AS part").repartition(2, "part")
    return parts.selectExpr("explode(sequence(first + part, first + events - 1, 4)) AS n")


class ChangesFeed(Feed):
    """Links and sources of a graph that come and go, in the paper's shares."""

    def __init__(self, place: Path, seed: int) -> None:
        super().__init__([place])
        self._left: Iterator[tuple[str, int, int, int]] = changes(random.Random(seed).randrange(1 << 30), _MANY, NODES)

    def _text(self, first: int, events: int) -> str:
        found = islice(self._left, events)
        return "".join(
            json.dumps({"kind": kind, "a": a, "b": b, "weight": weight}) + "\n" for kind, a, b, weight in found
        )
