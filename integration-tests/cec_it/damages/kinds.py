"""The kinds of damage and of faults, each drawn by dice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cec_it.damages.objects import Answer, IncompleteRead, InMemoryS3, Objects, Outcome
from cec_it.damages.world import World, agent_on, commit_batch, start_run, write_batch
from tests.agent.support import Refused

_SEGMENTS = "/cec/log/segments/"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: the objects and the model to change, a log of another query, dice, and a directory of its own."""

    store: type[InMemoryS3]
    world: World
    other: Objects
    dice: random.Random
    scratch: Path

    @property
    def objects(self) -> Objects:
        """The objects of the store."""
        return self.store.world

    def draw_object(self, among: Sequence[str] | None = None) -> str:
        """The path of an object: in two of three draws a segment."""
        paths = sorted(self.objects.now if among is None else among)
        segments = [each for each in paths if _SEGMENTS in each]
        return self.dice.choice(segments if segments and self.dice.random() < 2 / 3 else paths)

    def put(self, path: str, data: bytes) -> None:
        """Damages an object: its other properties stay."""
        self.objects.now[path] = replace(self.objects.now[path], data=data)


def lose_object(case: Case) -> None:
    """An object is missing."""
    del case.objects.now[case.draw_object()]


def lose_several(case: Case) -> None:
    """Several objects are missing."""
    for _ in range(case.dice.randrange(2, 6)):
        lose_object(case)


def cut_short(case: Case) -> None:
    """The end of an object is missing."""
    path = case.draw_object()
    data = case.objects.now[path].data
    case.put(path, data[: case.dice.randrange(len(data))])


def flip_bytes(case: Case) -> None:
    """Some bytes of an object differ."""
    path = case.draw_object()
    data = bytearray(case.objects.now[path].data)
    for _ in range(case.dice.choice((1, 1, 2, 8))):
        data[case.dice.randrange(len(data))] ^= case.dice.randrange(1, 256)
    case.put(path, bytes(data))


def zero_bytes(case: Case) -> None:
    """A part of an object is zero."""
    path = case.draw_object()
    data = case.objects.now[path].data
    begin = case.dice.randrange(len(data))
    end = case.dice.randrange(begin, len(data)) + 1
    case.put(path, data[:begin] + bytes(end - begin) + data[end:])


def add_bytes(case: Case) -> None:
    """An object has bytes behind its end: of another object, or any."""
    path = case.draw_object()
    more = case.dice.choice((case.dice.randbytes(50), case.objects.now[case.draw_object()].data))
    case.put(path, case.objects.now[path].data + more)


def swap_within(case: Case) -> None:
    """Two objects of the log have each other's bytes."""
    one, other = case.draw_object(), case.draw_object()
    data, others = case.objects.now[one].data, case.objects.now[other].data
    case.put(one, others)
    case.put(other, data)


def swap_with_other_log(case: Case) -> None:
    """An object has the bytes of an object of another query, of the same directory."""
    path = case.draw_object()
    directory = path.split("/", 2)[2].rpartition("/")[0]
    others = [each for each in case.other.now if each.split("/", 2)[2].rpartition("/")[0] == directory]
    if others:
        case.put(path, case.other.now[case.dice.choice(sorted(others))].data)


def serve_older(case: Case) -> None:
    """An object that was replaced has older bytes."""
    replaced = sorted(path for path in case.objects.older if path in case.objects.now)
    path = case.draw_object(replaced)
    case.put(path, case.dice.choice(case.objects.older[path]).data)


def list_stale(case: Case) -> None:
    """Listings do not show the newest objects, which guarantee 5 of `Storage` forbids."""
    case.store.hidden_since = case.dice.randrange(case.objects.clock)


def answer_503_for_a_while(case: Case) -> None:
    """Some requests of the load are answered with 503, 500 or 429; then the store works again."""
    _fail_some(case, lambda: Outcome(Answer(case.dice.choice((503, 500, 429)))), often=0.3, most=4)


def answer_503_for_ever(case: Case) -> None:
    """From a request of the load on, every one is answered with 503."""
    _fail_from(case, lambda: Outcome(Answer(503)))


def reset_connections(case: Case) -> None:
    """Some connections of the load are reset."""
    _fail_some(case, lambda: Outcome(ConnectionResetError(104, "Connection reset by peer")), often=0.3, most=4)


def reset_for_ever(case: Case) -> None:
    """From a request of the load on, every connection is reset."""
    _fail_from(case, lambda: Outcome(ConnectionResetError(104, "Connection reset by peer")))


def cut_bodies(case: Case) -> None:
    """Some bodies of the load are cut short."""
    _fail_some(case, lambda: Outcome(IncompleteRead("17 bytes read")), often=0.3, most=4, kinds=("get",))


def refuse_user(case: Case) -> None:
    """From a request of the load on, this user may do nothing."""
    _fail_from(case, lambda: Outcome(PermissionError("Access Denied")))


def lose_answers(case: Case) -> None:
    """Answers to writes of two batches are lost. The writes worked."""
    _go_on(case, lambda: Outcome(ConnectionResetError(104, "Connection reset by peer"), is_done=True), most=6)


def refuse_writes_for_a_while(case: Case) -> None:
    """Writes of two batches are answered with 503 for a while."""
    _go_on(case, lambda: Outcome(Answer(503)), most=6)


def fail_writes_for_ever(case: Case) -> None:
    """The first writes of a batch succeed, and all later ones fail. Spark does not commit the batch."""
    _go_on(
        case,
        lambda: Outcome(case.dice.choice((Answer(503), ConnectionResetError(104, "reset"))), case.dice.random() < 0.5),
        most=1 << 30,
    )


def change_nothing(case: Case) -> None:
    """Nothing befalls the log."""


KINDS: dict[str, Callable[[Case], None]] = {
    "nothing": change_nothing,
    "an object is missing": lose_object,
    "several objects are missing": lose_several,
    "an object is cut short": cut_short,
    "bytes are flipped": flip_bytes,
    "bytes are zero": zero_bytes,
    "bytes are added": add_bytes,
    "two objects are swapped": swap_within,
    "an object of another log": swap_with_other_log,
    "an older version is served": serve_older,
    "a stale listing": list_stale,
    "load: 503 for a while": answer_503_for_a_while,
    "load: 503 for ever": answer_503_for_ever,
    "load: resets": reset_connections,
    "load: resets for ever": reset_for_ever,
    "load: bodies cut short": cut_bodies,
    "load: access denied": refuse_user,
    "write: answers are lost": lose_answers,
    "write: 503 for a while": refuse_writes_for_a_while,
    "write: fails for ever": fail_writes_for_ever,
}

MUST_BE_EXACT = frozenset({
    "nothing", "load: 503 for a while", "load: resets", "load: bodies cut short", "write: answers are lost",
    "write: 503 for a while",
})  # fmt: skip
"""The kinds that a query does not notice."""


OUTSIDE_CONTRACT = frozenset({"a stale listing"})
"""The kinds that a storage must not show (guarantee 5). A load may then find the attempt of an earlier run."""


def _fail_some(
    case: Case, outcome: Callable[[], Outcome], *, often: float, most: int, kinds: Sequence[str] = ()
) -> None:
    left = [most]

    def decide(kind: str, _: str) -> Outcome | None:
        if left[0] and (not kinds or kind in kinds) and case.dice.random() < often:
            left[0] -= 1
            return outcome()
        return None

    case.store.fault = staticmethod(decide)


def _fail_from(case: Case, outcome: Callable[[], Outcome]) -> None:
    left = [case.dice.randrange(40)]

    def decide(_kind: str, _path: str) -> Outcome | None:
        left[0] -= 1
        return outcome() if left[0] < 0 else None

    case.store.fault = staticmethod(decide)


def _go_on(case: Case, outcome: Callable[[], Outcome], most: int) -> None:
    """A run writes two batches meanwhile. A batch whose write fails is not committed."""
    world, left, begun = case.world, [most], [False]

    def decide(kind: str, _: str) -> Outcome | None:
        if kind == "put" and left[0] and (begun[0] or case.dice.random() < 0.4):
            left[0] -= 1
            begun[0] = most > 1000
            return outcome()
        return None

    agent = agent_on(world, case.scratch / "writer")
    try:
        start_run(world, agent)
        case.store.fault = staticmethod(decide)
        for _ in range(2):
            commit_batch(world, write_batch(world, agent, case.dice))
    except (Refused, OSError):
        if most < 1000:
            raise
    finally:
        case.store.fault = staticmethod(lambda _kind, _path: None)
        agent.calls.close()
