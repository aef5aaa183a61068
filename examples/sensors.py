"""Three sensors, of which one is cut off for a while: answers within X, marked as tentative, and the right ones later.

`python examples/sensors.py` runs it; `make demo-availability` does the same after the set-up. It takes a minute and a
half, and longer if the machine has much else to do: each part waits for the answers that it is to show. The table of
the answers is a file of SQLite, which corrects itself.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_cec
from spark_cec.pipeline import Pipeline, apply_changes

SITES = ("north", "south", "east")
CUT = "east"
WINDOW_S = 5
EVERY_S, ROWS = 0.5, 20
QUIET_S, CUT_S, AFTER_S = 20.0, 20.0, 25.0
USUAL_WINDOWS, PATIENCE_S = 3, 60.0

Answer = tuple[int, int]
"""The number of the readings in a window, and their sum."""

Board = dict[int, tuple[Answer, bool]]
"""By the second at which a window begins, its answer, and whether that is tentative."""


class Sensors(threading.Thread):
    """Writes a file of readings for each site, twice a second. A site that is cut off keeps its readings until later.

    `expected`: the right answers, by the second at which a window begins. `last_s`: the time of the last readings.
    """

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(name="sensors", daemon=True)
        self.expected = dict[int, Answer]()
        self.is_cut = False
        self.last_s = 0.0
        self.ending = threading.Event()
        self._root = root
        self._chance = random.Random(seed)

    def run(self) -> None:
        """Writes until `ending` is set."""
        kept, number = list[str](), 0
        while not self.ending.wait(EVERY_S):
            number += 1
            now = time.time()
            for site in SITES:
                readings = [self._chance.randrange(100) for _ in range(ROWS)]
                begin = int(now // WINDOW_S * WINDOW_S)
                count, total = self.expected.get(begin, (0, 0))
                self.expected[begin] = count + ROWS, total + sum(readings)
                lines = [json.dumps({"time": datetime.fromtimestamp(now, UTC).isoformat(), "v": v}) for v in readings]
                if site == CUT:
                    kept += lines
                    if self.is_cut:
                        continue
                    lines, kept = kept, []
                self._put(site, number, lines)
            self.last_s = now

    def _put(self, site: str, number: int, lines: list[str]) -> None:
        made = self._root / f".{site}-{number}"
        made.write_text("\n".join(lines))
        made.rename(self._root / site / f"{number:05d}.json")


def declare(root: Path, within: str, shown: dict[int, float]) -> Pipeline:
    """The readings of all sites -> their number and sum in windows of five seconds -> a table."""
    made = Pipeline("sensors", f"{root}/home")

    def read(site: str) -> None:
        @made.flow(name=site)
        def readings(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema("time TIMESTAMP, v INT").json(f"{root}/{site}")

    for site in SITES:
        read(site)

    watermarks = dict.fromkeys(SITES, ("time", "1 second"))

    # Kept, because the demo reads all of it at the end. A quarter of X is for the start of the fork.
    @made.flow(kept=True, partitions=1, within=within, alpha=0.75, watermarks=watermarks)
    def totals(north: DataFrame, south: DataFrame, east: DataFrame) -> DataFrame:
        rows = north.unionByName(south).unionByName(east)
        found = rows.groupBy(f.window("time", f"{WINDOW_S} seconds").alias("w"))
        sums = found.agg(f.count("*").alias("readings"), f.sum("v").alias("total"))
        return sums.select(f.unix_timestamp("w.start").alias("second"), "readings", "total")

    @made.sink(tentative=True)
    def board(totals: DataFrame) -> DataStreamWriter:
        apply = apply_changes(f"{root}/board.db", "board", keys=["second"])

        def take(rows: DataFrame, batch: int) -> None:
            rows.persist()
            apply(rows, batch)
            for row in rows.select("second").where("second IS NOT NULL").collect():
                shown.setdefault(row.second, time.time())
            rows.unpersist()

        return totals.writeStream.foreachBatch(take)

    return made


def read_board(root: Path) -> Board:
    """The newest answers of all windows."""
    board = sqlite3.connect(root / "board.db")
    try:
        found = board.execute("SELECT second, readings, total, tentative FROM board").fetchall()
    except sqlite3.OperationalError:  # there is no row yet
        return {}
    finally:
        board.close()
    return {second: ((readings, total), bool(tentative)) for second, readings, total, tentative in found}


def show(root: Path, known: Board, seconds: float, is_over: Callable[[Board], object]) -> None:
    """Prints each new and each corrected answer, for so many seconds, and until `is_over`; a minute longer at most."""
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds or (passed < seconds + PATIENCE_S and not is_over(known)):
        for second, (answer, tentative) in sorted(read_board(root).items()):
            if known.get(second) != (answer, tentative):
                is_as_before = known.get(second, (answer,))[0] == answer
                what = "tentative" if tentative else "stable" if is_as_before else "corrected"
                window = datetime.fromtimestamp(second, UTC).strftime("%H:%M:%S")
                print(f"  {window}  {answer[0]:4} readings, sum {answer[1]:6}  {what}", flush=True)
                known[second] = answer, tentative
        time.sleep(0.2)


def is_stable(board: Board, until_s: float) -> bool:
    """Whether some answer of a window from `until_s` on is there, and no answer is tentative."""
    return max(board, default=0) >= until_s - WINDOW_S and not any(tentative for _, tentative in board.values())


def main(
    seed: Annotated[int, typer.Option(help="Seed of the readings.")] = 7,
    within: Annotated[int, typer.Option(min=3, help="X: how many seconds a reading may wait for a sensor.")] = 6,
    output: Annotated[Path, typer.Option(help="Directory for everything.")] = Path("demo-availability-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory also when all is well.")] = False,
) -> None:
    """Run the demo: all sensors, one cut off, all again; compare every window."""
    root = output.absolute()
    if root.exists():
        print(f"demo: {root} is there already: remove it, or give another --output")
        raise typer.Exit(2)
    for site in SITES:
        (root / site).mkdir(parents=True)
    builder = spark_cec.configure(SparkSession.builder.master("local[2]").appName("sensors"))
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # this ends soon
    spark = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # Spark calls it an error when a query is stopped in a batch
    shown, known = dict[int, float](), Board()
    running = declare(root, f"{within}s", shown).start(spark)
    sensors = Sensors(root, seed)
    sensors.start()
    print(f"three sensors; each window of {WINDOW_S} s has {len(SITES) * ROWS * int(WINDOW_S / EVERY_S)} readings")
    show(root, known, QUIET_S, lambda board: len(board) >= USUAL_WINDOWS)
    cut_s = time.time()
    sensors.is_cut = True
    print(f"{CUT} is cut off", flush=True)
    show(root, known, CUT_S, lambda board: any(tentative for _, tentative in board.values()))
    back_s = time.time()
    sensors.is_cut = False
    print(f"{CUT} is back, with the readings that it kept", flush=True)
    show(root, known, AFTER_S, lambda board: is_stable(board, back_s))
    sensors.ending.set()
    sensors.join()
    last = sensors.last_s - 2 * WINDOW_S  # no window closes after the last reading
    show(root, known, 6.0, lambda board: is_stable(board, last - WINDOW_S))
    rows = spark.read.format("cec").load(f"{root}/home/flows/totals").collect()
    running.stop()
    spark.stop()
    is_right = compare(root, sensors.expected, Counter(row.second for row in rows), shown, cut_s, last, within)
    if is_right and not keep:
        shutil.rmtree(root)
    raise typer.Exit(0 if is_right else 1)


def compare(
    root: Path, expected: dict[int, Answer], rows: Counter[int], shown: dict[int, float], cut_s: float,
    last_s: float, within: int,
) -> bool:  # fmt: skip
    """Compares the windows up to `last_s`, prints the result, and answers whether all is right.

    The delay of a window is the time from its end to its first answer. `max_delay` is the most that the cut added to
    the usual delay, which is the median before the cut.
    """
    board, windows = read_board(root), [second for second in sorted(expected) if second + WINDOW_S <= last_s]
    wrong = [second for second in windows if board.get(second) != (expected[second], False)]
    duplicate = [second for second, times in rows.items() if times > 1]
    delays = {second: shown[second] - second - WINDOW_S for second in windows if second in shown}
    usual = statistics.median([delay for second, delay in delays.items() if second + 2 * WINDOW_S < cut_s] or [0.0])
    most = max(delays.values(), default=0.0) - usual
    is_right = bool(windows) and not wrong and not duplicate and most <= within
    print(
        f"demo: {'OK' if is_right else 'FAILED'} stable={len(windows) - len(wrong)} wrong={len(wrong)} "
        f"duplicate={len(duplicate)} max_delay={most:.1f}s X={within}s"
    )
    return is_right


if __name__ == "__main__":
    typer.run(main)
