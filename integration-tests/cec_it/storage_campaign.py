"""Damages and faults on logs in an object store: `python -m cec_it.storage_campaign [--seed N] [--runs N] [--wire N]`.

Each run takes a log of several stores and batches, has one damage or fault befall it, and lets a fresh agent load every
store. The state must equal a model beside the log, or an error must name what is wrong. Store and index are in this
process's memory; in `--wire` runs the store is an S3 server on loopback, behind a proxy. Prints a table; the exit code
is 1 if a state was wrong or an error was of another kind, but for stale listings, which no supported store has.
`--run N` repeats one run of a seed in memory.
"""

from __future__ import annotations

import argparse
import builtins
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

from cec_it.damages.kinds import KINDS, MUST_BE_EXACT, OUTSIDE_CONTRACT, Case
from cec_it.damages.objects import InMemoryS3, Objects, in_memory
from cec_it.damages.wire import WIRE_KINDS, on_wire, run_on_wire
from cec_it.damages.world import Mismatch, World, build, check_stores
from spark_cec.adapters import hadoop_settings, retries
from spark_cec.adapters.retries import pauses
from spark_cec.agent import logs
from spark_cec.errors import CecError, NoAnswer
from spark_cec.log.index import MemoryIndex
from tests.agent.support import Refused

LOGS = 40
"""The different logs of a campaign."""

_RETRY = {"spark.sql.streaming.stateStore.cec.storage.retry": "100ms"}
_PASSING_RETRY = {"spark.sql.streaming.stateStore.cec.storage.retry": "10s"}


@dataclass(slots=True)
class Row:
    """The results of the runs of one kind. `examples`: the runs with wrong state."""

    exact: int = 0
    named: int = 0
    wrong: int = 0
    unnamed: int = 0
    examples: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return not self.wrong and not self.unnamed


class Campaign:
    """The logs of a seed, and the runs on them."""

    def __init__(self, store: type[InMemoryS3], seed: int, scratch: Path) -> None:
        self._store = store
        self._seed = seed
        self._scratch = scratch
        self._logs: dict[int, tuple[World, Objects]] = {}

    def run(self, number: int, row: Row, kind: str) -> None:
        """One run: a damage or a fault, then a load of each store."""
        dice = random.Random(f"run {number} of {self._seed}")
        (world, objects), (_, other) = self._log(dice.randrange(LOGS)), self._log(dice.randrange(LOGS))
        self._store.reset(objects.copy())
        hadoop_settings.use_settings(_PASSING_RETRY if kind in MUST_BE_EXACT else _RETRY)
        with tempfile.TemporaryDirectory(prefix="run-", dir=self._scratch) as scratch:
            case = Case(self._store, world.copy(), other, dice, Path(scratch))

            def befall() -> list[Refused]:
                KINDS[kind](case)
                return check_stores(case.world, dice, Path(scratch, "reader"))

            judge(row, f"run {number} of seed {self._seed} ({kind})", befall, must_be_exact=kind in MUST_BE_EXACT)

    def _log(self, number: int) -> tuple[World, Objects]:
        if number not in self._logs:
            dice = random.Random(f"log {number} of {self._seed}")
            world = World(f"s3a://bucket/query-{number}", has_ids=dice.random() < 0.5)
            self._store.reset(Objects())
            hadoop_settings.use_settings(_RETRY)
            build(world, dice.randrange(3, 12), dice, self._scratch / f"log-{number}")
            self._logs[number] = world, self._store.world
        return self._logs[number]


@contextmanager
def _in_haste() -> Iterator[None]:
    """An index in memory, and short pauses between requests: else they take most of the time of a run."""
    with (
        mock.patch.object(logs, "open_index", lambda _, log_id: MemoryIndex(log_id)),
        mock.patch.object(retries, "pauses", lambda total_s: (each / 20 for each in pauses(total_s))),
    ):
        yield


def _run_on_wire(seed: int, runs: int) -> dict[str, Row]:
    rows = {name: Row() for name in WIRE_KINDS}
    with on_wire() as server, tempfile.TemporaryDirectory(prefix="storage-campaign-") as scratch:
        for number in range(runs):
            name = list(WIRE_KINDS)[number % len(WIRE_KINDS)]
            dice = random.Random(f"wire run {number} of {seed}")
            befall = partial(run_on_wire, server, name, number, dice, Path(scratch, str(number)))
            where = f"wire run {number} of seed {seed} ({name})"
            judge(rows[name], where, befall, must_be_exact=WIRE_KINDS[name].passes)
    return rows


def judge(row: Row, where: str, befall: Callable[[], list[Refused]], *, must_be_exact: bool) -> None:
    """Carries one run out, and notes what it came to."""
    try:
        refused = befall()
    except Mismatch as mismatch:
        row.wrong += 1
        row.examples.append(f"{where}: {mismatch}")
        return
    except Refused as error:
        refused = [error]
    except (OSError, CecError) as error:  # of the test's own requests
        refused = [Refused(type(error).__name__, str(error))]
    except Exception as error:  # the agent answers every error
        row.unnamed += 1
        row.examples.append(f"{where}: {type(error).__name__}: {error}")
        return
    _note(row, where, refused, must_be_exact=must_be_exact)


def _note(row: Row, where: str, refused: Sequence[Refused], *, must_be_exact: bool) -> None:
    if not refused:
        row.exact += 1
        return
    strange = [error for error in refused if must_be_exact or not is_named(error)]
    if strange:
        row.unnamed += 1
        row.examples.append(f"{where}: {strange[0].kind}: {str(strange[0])[-1500:]}")
        return
    row.named += 1
    row.errors.update({error.kind for error in refused})


def is_named(error: Refused) -> bool:
    """Whether an error is one of ours, or the operating system's with the URL of an object."""
    if error.kind in CecError._by_name:
        return "Traceback" not in str(error)
    if error.kind == NoAnswer.__name__:
        return "Traceback" not in str(error) and "s3a://" in str(error)
    known = getattr(builtins, error.kind, None)
    return isinstance(known, type) and issubclass(known, OSError) and "s3a://" in str(error)


def table(rows: dict[str, Row]) -> str:
    """The rows as a table in Markdown."""
    titles = ("damage or fault", "runs", "exact", "named error", "wrong state", "other error")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    total = Counter[str]()
    for kind, row in rows.items():
        told = {"exact": row.exact, "named": row.named, "wrong": row.wrong, "unnamed": row.unnamed}
        total.update(told)
        lines.append(f"| {kind} | {sum(told.values())} | " + " | ".join(str(each) for each in told.values()) + " |")
    sums = [total[name] for name in ("exact", "named", "wrong", "unnamed")]
    lines.append(f"| all | {sum(sums)} | " + " | ".join(str(each) for each in sums) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Runs the campaign; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cec_it.storage_campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--wire", type=int, default=30, help="runs on a server")
    parser.add_argument("--run", type=int, help="repeat this run only")
    asked = parser.parse_args(arguments)
    names = list(KINDS)
    rows: dict[str, Row] = {name: Row() for name in names}
    began = time.monotonic()
    numbers = range(asked.runs) if asked.run is None else [asked.run]
    with _in_haste(), in_memory() as store, tempfile.TemporaryDirectory(prefix="storage-campaign-") as scratch:
        campaign = Campaign(store, asked.seed, Path(scratch))
        for number in numbers:
            kind = names[number % len(names)]
            campaign.run(number, rows[kind], kind)
    hadoop_settings.use_settings({})
    if asked.run is None:
        rows |= _run_on_wire(asked.seed, asked.wire)
    print(table({name: row for name, row in rows.items() if row != Row()}))
    for row in rows.values():
        for example in row.examples[:5]:
            print(f"\n{example}")
    kinds = Counter[str]()
    for row in rows.values():
        kinds.update(row.errors)
    print(f"\nnamed errors: {dict(kinds)}; seed {asked.seed}, {time.monotonic() - began:.0f} s")
    return 0 if all(row.is_good for name, row in rows.items() if name not in OUTSIDE_CONTRACT) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
