"""The pipeline of `fed_pages` in two replicas, each in a process of its own, and what its sink has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cec_it import fed_driver
from cec_it.boundaries import Boundaries
from cec_it.fed_pages import INPUTS, Shown, shown
from cec_it.feed import NOON, Feed
from cec_it.local import eventually
from cec_it.replica_process import Driver
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.boundary import read_boundary

WINDOW_S = 10


class Answers:
    """What the sink has: the stable rows, and those of the epochs that it has not taken back."""

    def __init__(self, root: Path) -> None:
        self.stable: Shown = Counter()
        self.tentative: dict[str, Shown] = {}
        self.undone: list[str] = []
        for path in sorted((root / "out").glob("[0-9]*.json")):
            rows: list[list[Any]] = json.loads(path.read_text())
            for kind, epoch, *row in rows:
                if kind == "tentative":
                    self.tentative.setdefault(epoch, Counter())[tuple(row)] += 1
                elif kind == fed_driver.STABLE:
                    self.stable[tuple(row)] += 1
            for epoch in [epoch for kind, epoch, *_ in rows if kind == "undo"]:
                self.undone.append(epoch)
                self.tentative.pop(epoch, None)

    @property
    def newest_s(self) -> int:
        """The end of the newest window, stable or tentative."""
        return max([end for rows in (self.stable, *self.tentative.values()) for end, *_ in rows], default=0)


class Windows:
    """The right windows, in plain Python."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, str, float]] = []

    def add(self, *rows: tuple[float, str, float]) -> tuple[tuple[float, str, float], ...]:
        self._rows += rows
        return rows

    def up_to(self, end_s: int) -> Shown:
        found: dict[tuple[int, str], tuple[int, float]] = {}
        for second, page, price in self._rows:
            key = int(second) // WINDOW_S * WINDOW_S + WINDOW_S, page
            count, total = found.get(key, (0, 0.0))
            found[key] = count + 1, total + price
        return Counter({(end, page, *found[end, page]): 1 for end, page in found if end <= end_s})


class Shop:
    """Both replicas, and the inputs up to a moment."""

    def __init__(self, root: Path, master: str, feed: Feed, conf: Mapping[str, str] | None = None) -> None:
        """`conf`: more settings of both drivers; `cec.test.home` is the home of the pipeline."""
        self.root, self._master, self._feed, self._conf = root, master, feed, conf or {}
        self.right, self.living, self.now_s = Windows(), dict[str, Driver](), 5
        self._boundaries = Boundaries(root / "home/replicas" / each for each in "ab")

    def __enter__(self) -> Shop:
        (self.root / "out").mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.living.values():
            each.kill()

    def start(self, replica: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> None:
        """Starts a replica. `master` and `conf`: None for those of both."""
        own = self._conf if conf is None else conf
        self.living[replica] = Driver(fed_driver, replica, self.root, master or self._master, conf=own)

    def put(self, begin_s: int, end_s: int, *inputs: str) -> None:
        """Two rows a second of these inputs."""
        for name in inputs:
            rows = [(begin_s + i / 2, "ab"[i % 2], i + 0.5) for i in range(2 * (end_s - begin_s))]
            self._feed.put(name, *self.right.add(*rows))
        self.now_s = end_s

    def await_sinks(self, replica: str) -> None:
        """Waits until a replica runs the sink, by the status that it prints."""

        def runs() -> bool | None:
            lines = (self.root / f"stdout-{replica}").read_text().splitlines()
            flows = json.loads(lines[-1])["flows"] if lines else []
            return any(each["name"] == "board" and each["state"] == "running" for each in flows) or None

        eventually(runs, f"replica {replica} runs the sink", 120.0)

    def await_answers(self, what: str, are_there: Callable[[Answers], bool]) -> None:
        """Waits for what the sink has. No driver may end meanwhile."""

        def look() -> bool | None:
            dead = [name for name, each in self.living.items() if each.process.poll() is not None]
            assert not dead, (self.root / f"stderr-{dead[0]}").read_text()[-3000:]
            self._boundaries.look()
            return are_there(Answers(self.root)) or None

        eventually(look, lambda: f"{what}: {vars(Answers(self.root))}", 240.0)

    def await_tentative(self) -> None:
        """Waits for an answer up to the newest window that rows of one input have closed."""
        end_s = self.now_s // WINDOW_S * WINDOW_S - WINDOW_S
        self.await_answers(f"answers up to {end_s}", lambda found: bool(found.tentative) and found.newest_s >= end_s)

    def await_stable(self) -> int:
        """Waits until all windows are stable; the end of the newest one."""
        end_s = (self.now_s - 3) // WINDOW_S * WINDOW_S
        right = self.right.up_to(end_s)
        self.await_answers(f"{right}", lambda found: found.stable >= right and not found.tentative)
        return end_s

    def kill_while_away(self, victim: str) -> int:
        """One input goes away, a replica is killed and started again, and the input comes back.

        Answers go on meanwhile. Answers the end of the newest window that is stable then.
        """
        begin_s = self.now_s
        self.put(begin_s, begin_s + 20, "web")
        self.await_tentative()
        self.living.pop(victim).kill()
        self.put(begin_s + 20, begin_s + 50, "web")
        self.await_tentative()
        self.start(victim)
        self.put(begin_s, begin_s + 50, "app")
        return self.await_stable()

    def kill_in_turn(self, victims: str) -> int:
        """Starts both replicas, and kills these in turn as `kill_while_away` does; its last answer."""
        for name in "ab":
            self.start(name)
        self.put(5, 25, *INPUTS)
        end_s = self.await_stable()
        for victim in victims:
            end_s = self.kill_while_away(victim)
        return end_s

    def stop(self) -> None:
        """Stops both drivers in good order."""
        ends = [each.end() for each in self.living.values()]
        assert not any(ends), (self.root / "stderr-a").read_text()[-3000:]

    def check(self, end_s: int) -> None:
        """All windows up to a time are there once, and right. No tentative row is left."""
        found = Answers(self.root)
        assert found.stable == self.right.up_to(end_s), "each window once"
        assert not found.tentative
        assert not list((self.root / "out").glob("differs-*")), "a repeat has the same rows"

    def check_channels(self, spark: SparkSession, end_s: int) -> None:
        """Both replicas have the same rows, all of which are right. A channel lets old rows go. The home is local.

        No boundary went back in either, and no later row is below one.
        """
        found = {name: self._read_channel(spark, name) for name in "ab"}
        begin_s = max(min(end for end, *_ in rows) for rows in found.values())
        right = Counter({row: n for row, n in self.right.up_to(end_s).items() if row[0] >= begin_s})
        assert right, "both channels have a window"
        for name, rows in found.items():
            assert Counter({row: n for row, n in rows.items() if begin_s <= row[0] <= end_s}) == right, name
        self._boundaries.check()

    def have_both(self, end_s: int) -> bool:
        """Whether both replicas have given out all windows up to a time."""
        end_ms = (NOON.timestamp() + end_s) * 1000
        logs = (open_storage(f"{self.root}/home/replicas/{name}/flows/totals/cec/log") for name in "ab")
        known = [read_boundary(each) for each in logs]
        return all(each is not None and each.columns.get("time", 0) >= end_ms for each in known)

    def _read_channel(self, spark: SparkSession, replica: str) -> Shown:
        rows = spark.read.format("cec").load(f"{self.root}/home/replicas/{replica}/flows/totals").collect()
        return Counter(shown(row) for row in rows)

