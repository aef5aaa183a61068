"""Callers wait for their turn."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from spark_cec.agent import turns
from spark_cec.agent.turns import Turns, machine_memory


@pytest.mark.parametrize("seed", range(5))
def test_those_inside_never_take_more_than_the_bound_but_for_one_alone(seed: int) -> None:
    dice = random.Random(seed)
    bound, inside, lock = Turns(100), list[int](), threading.Lock()
    seen: list[list[int]] = []

    def call(amount: int) -> None:
        with bound.taking(amount, 60):
            with lock:
                inside.append(amount)
                seen.append(list(inside))
            time.sleep(0.001)  # so that others come meanwhile
            with lock:
                inside.remove(amount)

    amounts = [dice.choice([10, 40, 60, 250]) for _ in range(200)]
    threads = [threading.Thread(target=call, args=(amount,)) for amount in amounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == len(amounts), f"seed {seed}: somebody still waits"
    assert all(sum(each) <= 100 or len(each) == 1 for each in seen), f"seed {seed}"
    assert any(len(each) > 1 for each in seen)


def test_a_caller_waits_until_another_is_done_even_if_that_one_fails() -> None:
    bound, let_in = Turns(100), threading.Event()

    def second() -> None:
        with bound.taking(50, 60):
            let_in.set()

    with pytest.raises(KeyError), bound.taking(80, 60):
        waiting = threading.Thread(target=second)
        waiting.start()
        with bound.taking(20, 0):  # this one fits, and does not come before its turn
            assert not let_in.is_set()
        raise KeyError
    waiting.join(60)
    assert let_in.is_set()


def test_nobody_waits_for_longer_than_the_shim_does() -> None:
    bound = Turns(100)
    with bound.taking(100, 60), bound.taking(50, 0.05), bound.taking(10, 0.05):
        assert bound._taken == 160
    assert bound._taken == 0 and not bound._waiting


def test_callers_come_in_their_order() -> None:
    """A small one that would fit does not overtake a large one."""
    bound, order, threads = Turns(100), list[int](), list[threading.Thread]()

    def call(amount: int) -> None:
        with bound.taking(amount, 60):
            order.append(amount)

    with bound.taking(60, 60):
        for number, amount in enumerate((90, 10, 20)):
            threads.append(threading.Thread(target=call, args=(amount,)))
            threads[-1].start()
            while len(bound._waiting) <= number:
                time.sleep(0.001)
        assert not order
    for thread in threads:
        thread.join(60)
    assert order[0] == 90 and sorted(order) == [10, 20, 90]


def test_a_container_may_use_less_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"
    monkeypatch.setattr(turns, "_LIMIT_FILES", (new, old))
    all_of_it = machine_memory()
    assert all_of_it > 1 << 28
    new.write_text("max\n")
    assert machine_memory() == all_of_it
    new.write_text("134217728\n")
    assert machine_memory() == 134217728
    new.write_text("max\n")
    old.write_text("67108864\n")
    assert machine_memory() == 67108864
