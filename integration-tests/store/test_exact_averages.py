"""An average of integers that may have been rounded is written, whatever the bounds say: no replay makes it again."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from store_it.jvm import Key, Stores

MOST_ROWS = 2**22
"""Rows of 2^31 each that a double adds up exactly, in any order."""

_stores = itertools.count()


def begin(jvm: Stores, home: Path, grouped: bool, memory: str) -> str:
    number = next(_stores)
    jvm.ask(
        "state", name=f"averages-{number}", home=str(home), operator=number, partition=0, generation=1, grouped=grouped,
        deferred=True, replay_to=0, retained=100, averages=True, conf=jvm.conf(CI="0ms", CP="10ms", memory=memory),
    )  # fmt: skip
    return f"averages-{number}"


@pytest.mark.parametrize("memory", ["4KiB", "50%"])
@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_only_windows_with_few_rows_stay_dirty(jvm: Stores, tmp_path: Path, grouped: bool, memory: str) -> None:
    dice = random.Random(20_261)
    name = begin(jvm, tmp_path / "log", grouped, memory)
    counts: dict[Key, int] = {}
    for version in range(12):
        touched = dice.sample(range(6), k=dice.randint(1, 6))
        steps = []
        for number in touched:
            key = (number % 3, number) if grouped else (number,)
            jump = dice.choice([1, MOST_ROWS, MOST_ROWS + 1]) if number % 3 else 1
            counts[key] = max(counts.get(key, 0) + 1, jump)
            steps.append(("put", key, (dice.randrange(2**31), counts[key])))
        jvm.do(name, ("begin", version, None), *steps, ("commit", len(steps), 0))
        for window, footprint, dirty in jvm.do(name, ("windows",))[0]:
            most = max(count for key, count in counts.items() if key[0] == window[0])
            is_touched = any((number % 3 if grouped else number) == window[0] for number in touched)
            if most > MOST_ROWS:
                assert dirty is None, (version, window, counts)
            elif is_touched:
                assert footprint == version + 1 or dirty is not None, (version, window, counts)
    assert any(dirty is not None for _, _, dirty in jvm.do(name, ("windows",))[0])
    assert max(counts.values()) > MOST_ROWS
