"""Lines are consistent and the newest there are; the paper's examples; what each protocol promises beside that."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from spark_cec.protocols import communication_induced, coordinated, eventual, none, uncoordinated
from spark_cec.protocols.communication_induced import BCS, HMNR
from spark_cec.protocols.coordinated import CoordinatedMachine, CycleRefused, refuse_cycles
from spark_cec.protocols.messages import (
    Block,
    Checkpoint,
    Machine,
    PassMarker,
    Piggyback,
    Process,
    TakeCheckpoint,
    Unblock,
    is_consistent,
    orphans,
)
from spark_cec.protocols.uncoordinated import UncoordinatedMachine, checkpoint_graph
from tests.protocols.history import History, Inputs, all_lines, newest_of, random_inputs
from tests.protocols.plain_hmnr import PlainHMNR

SEEDS = range(60)
Make = Callable[[Inputs], Callable[[Process], Machine]]

MACHINES: dict[str, Make] = {
    "uncoordinated": lambda _: lambda _: UncoordinatedMachine(),
    "hmnr": lambda inputs: lambda process: HMNR(process, inputs, [r for r, read in inputs.items() if process in read]),
    "bcs": lambda _: lambda _: BCS(),
}


def history(seed: int, make: Make, steps: int, cycles: bool, checkpoints: float = 0.15) -> History:
    """A random one; the seed is printed where a test fails."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    inputs = random_inputs(rng, rng.randint(2, 4), cycles)
    made = History(inputs, make(inputs), rng, is_json=seed % 2 == 1)
    for _ in range(steps):
        made.step(checkpoints)
    return made


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MACHINES)
def test_the_line_is_consistent_and_no_other_is_newer(name: str, seed: int) -> None:
    """Also where only one process has failed, and the others may go on as they are now."""
    made = history(seed, MACHINES[name], steps=40, cycles=True)
    known = made.checkpoints()
    assert uncoordinated.recovery_line(known) == newest_of(all_lines(known))
    failed = random.Random(seed).choice(list(known))
    for process, state in made.states().items():
        if process != failed:
            known[process].append(state)
    line = communication_induced.recovery_line(known)
    assert is_consistent(line)
    assert line == newest_of(all_lines(known))


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize("name", ["hmnr", "bcs"])
def test_no_checkpoint_is_useless(name: str, seed: int) -> None:
    """Each one is on a consistent line (none on a Z-cycle), so that no failure can take everybody far back."""
    made = history(seed, MACHINES[name], steps=36, cycles=True, checkpoints=0.08)
    known = made.checkpoints()
    for process, state in made.states().items():
        known[process].append(state)
    useful = {(p, line[p].number) for line in all_lines(known) for p in line}
    assert {(p, each.number) for p, own in known.items() for each in own} == useful


def test_without_force_some_are_useless() -> None:
    """Else the test above would say nothing."""
    useless = 0
    for seed in range(100):
        made = history(seed, MACHINES["uncoordinated"], steps=36, cycles=True, checkpoints=0.08)
        known = made.checkpoints()
        for process, state in made.states().items():
            known[process].append(state)
        useful = {(p, line[p].number) for line in all_lines(known) for p in line}
        useless += sum((p, each.number) not in useful for p, own in known.items() for each in own)
    assert useless > 20


def test_hmnr_forces_fewer_than_bcs() -> None:
    forced = {
        name: sum(
            each.forced
            for seed in SEEDS
            for own in history(seed, MACHINES[name], steps=300, cycles=True).checkpoints().values()
            for each in own
        )
        for name in ("hmnr", "bcs")
    }
    assert 0 < forced["hmnr"] < forced["bcs"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_round_is_a_line(seed: int) -> None:
    """Every complete round is consistent, and the line is the last of them."""
    made = history(
        seed, lambda inputs: lambda process: CoordinatedMachine(inputs[process]), steps=400, cycles=False,
        checkpoints=0.05,
    )  # fmt: skip
    known = made.checkpoints()
    rounds = {process: {each.round: each for each in own} for process, own in known.items()}
    complete = set.intersection(*({r for r in own if r is not None} for own in rounds.values()))
    for number in complete:
        assert is_consistent({process: own[number] for process, own in rounds.items()})
    line = coordinated.recovery_line(known)
    assert is_consistent(line)
    assert {each.round or 0 for each in line.values()} == {max(complete, default=0)}
    assert not any(each.forced for own in known.values() for each in own)


def test_some_rounds_are_completed() -> None:
    """Else the test above would say little."""
    rounds = [
        coordinated.recovery_line(
            history(
                seed, lambda inputs: lambda p: CoordinatedMachine(inputs[p]), steps=400, cycles=False, checkpoints=0.05
            ).checkpoints()
        )
        for seed in SEEDS
    ]
    assert sum(max(each.round or 0 for each in line.values()) > 0 for line in rounds) > len(SEEDS) // 3


@pytest.mark.parametrize("seed", SEEDS)
def test_only_who_failed_goes_back_and_not_behind_its_last_batch(seed: int) -> None:
    made = history(seed, lambda _: lambda _: Machine(), steps=200, cycles=True)
    durable = made.states()
    rng = random.Random(seed)
    failed = [process for process in durable if rng.random() < 0.5]
    # A failure in the middle of a batch: what it had processed is not durable, and nothing of it was sent.
    now = {
        p: Checkpoint(p, s.number, s.sent, {k: v + (p in failed) for k, v in s.received.items()})
        for p, s in durable.items()
    }
    line = eventual.recovery_line(now, durable, failed)
    assert is_consistent(line)
    assert all(line[process] is now[process] for process in now if process not in failed)
    assert all(line[process] is durable[process] for process in failed)


def test_without_checkpoints_all_begin_anew() -> None:
    made = history(1, lambda _: lambda _: none.NoMachine(), steps=50, cycles=True)
    line = none.recovery_line(made.checkpoints())
    assert all(each.is_beginning for each in line.values())
    assert is_consistent(line)


# The paper's examples.


def checkpoint(process: str, number: int, sent: int, **received: int) -> Checkpoint:
    return Checkpoint(process, number, sent, received)


def test_figure_2() -> None:
    """A message that is received and not sent makes a line inconsistent; one in a durable channel does not."""
    orphan = {"a": checkpoint("a", 1, 1), "b": checkpoint("b", 1, 0, a=2)}
    assert list(orphans(orphan)) == [("a", "b")]
    assert is_consistent({"a": checkpoint("a", 2, 3), "b": checkpoint("b", 1, 0, a=2)})


def test_figure_3() -> None:
    """S1 feeds J1; S2 and S3 feed J2, which blocks S3 until the marker of S2 has come; A reads both."""
    first, second, last = CoordinatedMachine(["S1"]), CoordinatedMachine(["S2", "S3"]), CoordinatedMachine(["J1", "J2"])
    assert CoordinatedMachine([]).timer() == (TakeCheckpoint(round=1), PassMarker(1))
    assert first.marker("S1", 1) == (TakeCheckpoint(round=1), PassMarker(1), Unblock())
    assert second.marker("S3", 1) == (Block("S3"),)
    with pytest.raises(ValueError, match="S3 was processed, but it is blocked"):
        second.arrives(("S2", {}), ("S3", {}))
    assert last.marker("J1", 1) == (Block("J1"),)
    assert second.arrives(("S2", {})) == ()
    assert second.marker("S2", 1) == (TakeCheckpoint(round=1), PassMarker(1), Unblock())
    assert last.marker("J2", 1)[0] == TakeCheckpoint(round=1)
    assert second.timer() == ()


def test_figure_4() -> None:
    """The edges of the graph, and a line that is found by going back in one process."""
    known = {
        "a": [checkpoint("a", 0, 0), checkpoint("a", 1, 2), checkpoint("a", 2, 4)],
        "b": [checkpoint("b", 0, 0, a=0), checkpoint("b", 1, 1, a=2), checkpoint("b", 2, 2, a=5)],
    }
    edges = checkpoint_graph(known)
    assert edges["a", 2] == {("b", 2)}, "b has the fifth message, which a sent after its last checkpoint"
    assert edges["a", 1] == {("a", 2), ("b", 2)}
    assert edges["a", 0] == {("a", 1), ("b", 1)}, "and so to b's next one"
    line = uncoordinated.recovery_line(known)
    assert {process: each.number for process, each in line.items()} == {"a": 2, "b": 1}


def test_figure_5_the_domino_effect() -> None:
    """A cycle O1 -> O2 -> O3 -> O1; each message was sent after a checkpoint and received before the reader's next."""
    known = {
        "O1": [checkpoint("O1", 0, 0, O3=0), checkpoint("O1", 1, 0, O3=1), checkpoint("O1", 2, 1, O3=2)],
        "O2": [checkpoint("O2", 0, 0, O1=0), checkpoint("O2", 1, 0, O1=1), checkpoint("O2", 2, 1, O1=2)],
        "O3": [checkpoint("O3", 0, 0, O2=0), checkpoint("O3", 1, 1, O2=1)],
    }
    line = uncoordinated.recovery_line(known)
    assert all(each.is_beginning for each in line.values())


def test_hmnr_breaks_the_domino() -> None:
    """The same messages, and the forced checkpoints between them."""
    inputs: Inputs = {"O1": ("O3",), "O2": ("O1",), "O3": ("O2",)}
    made = History(inputs, MACHINES["hmnr"](inputs), random.Random(0))
    for _ in range(10):
        for process, sender in (("O1", "O3"), ("O2", "O1"), ("O3", "O2")):
            made.do(process, made.running[process].machine.timer())
            made.send(sender)
            made.process(process, sender)
    known = made.checkpoints()
    line = uncoordinated.recovery_line(known)
    assert all(len(known[process]) - each.number <= 3 for process, each in line.items())


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"a": ("a",)}, "a -> a"),
        ({"a": (), "b": ("a", "d"), "c": ("b",), "d": ("c",)}, "b -> c -> d -> b"),
        ({"a": (), "b": ("a",), "c": ("a", "b")}, None),
    ],
)
def test_coordinated_refuses_a_cycle_by_name(inputs: Inputs, named: str | None) -> None:
    if named is None:
        refuse_cycles(inputs)
        return
    with pytest.raises(CycleRefused) as refused:
        refuse_cycles(inputs)
    cycle = named.split(" -> ")[:-1]
    turns = [" -> ".join([*cycle[n:], *cycle[:n], cycle[n]]) for n in range(len(cycle))]
    assert any(f"({turn})" in str(refused.value) for turn in turns)


@pytest.mark.parametrize("seed", range(100))
def test_hmnr_at_once_is_hmnr_message_by_message(seed: int) -> None:
    """Batches of any size, in any order, and clocks that went through JSON, and back to a checkpoint's state."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["a", "b", "c", "d", "e"][: rng.randint(2, 5)]
    readers = {name: [each for each in names if rng.random() < 0.7] for name in names}
    arrays = {name: HMNR(name, rng.sample(names, len(names)), readers[name]) for name in names}
    plain = {name: PlainHMNR(name, names, readers[name]) for name in names}
    sent: list[tuple[Process, Piggyback, Piggyback]] = []
    for _ in range(60):
        name = rng.choice(names)
        match rng.choice(("sends", "sends", "timer", "arrives", "arrives", "arrives")):
            case "sends":
                sent.append((name, arrays[name].sends(), plain[name].sends()))
            case "timer":
                arrays[name].timer()
                plain[name].checkpoint()
                arrays[name].restore(json.loads(json.dumps(dict(arrays[name].state()))))
            case "arrives":
                read = [each for each in rng.sample(sent, min(len(sent), rng.randint(0, 4))) if each[0] != name]
                is_forced = any(plain[name].is_forced(each) for _, _, each in read)
                assert bool(arrays[name].arrives(*((by, each) for by, each, _ in read))) == is_forced
                if is_forced:
                    plain[name].checkpoint()
                for _, _, each in read:
                    plain[name].learn(each)
        now = dict(arrays[name].state())
        assert {**now, "taken": set(now["taken"]), "greater": set(now["greater"])} == plain[name].clocks()


@pytest.mark.parametrize("machine", [Machine(), UncoordinatedMachine(), BCS(), HMNR("a", ["a", "b"], [])])
def test_a_marker_where_there_are_none(machine: Machine) -> None:
    with pytest.raises(ValueError, match="round 3 from b"):
        machine.marker("b", 3)


def test_markers_out_of_turn() -> None:
    machine = CoordinatedMachine(["a", "b"])
    machine.marker("a", 1)
    for sender, round_ in (("a", 1), ("a", 2), ("c", 1), ("b", 2)):
        with pytest.raises(ValueError, match=f"round {round_} from {sender}"):
            machine.marker(sender, round_)
    machine.restore({"round": 4})
    assert machine.marker("b", 5) == (Block("b"),)
