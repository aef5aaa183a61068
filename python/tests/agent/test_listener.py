"""The listener: strangers cost little and are soon gone, a peer with the secret gets in, and it never dies unseen."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import random
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_cec.adapters import listener as listener_module
from spark_cec.adapters.listener import DEAD_LISTENER, Listener, Password, most_unknown

SECRET = b"A\nthe-token\ne\n"
PASSWORD = Password(SECRET, b"welcome\n", b"no\n")
PYTHON = Path(__file__).resolve().parents[2]
WITHIN_S = 30.0


class Door:
    """A listener, with what it has admitted and what it has died of."""

    def __init__(self, patience_s: float = WITHIN_S, admit: Callable[[socket.socket], None] | None = None) -> None:
        self.admitted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.deaths: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._peers: list[socket.socket] = []
        self.listener = Listener(PASSWORD, admit or self.admitted.put, self.deaths.put, patience_s)

    def connect(self, said: bytes = b"") -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.listener.port), WITHIN_S)
        self._peers.append(peer)
        if said:
            peer.sendall(said)
        return peer

    def admits(self, said: bytes = SECRET) -> socket.socket:
        """A peer that says this is welcome; the listener's end of its connection."""
        peer = self.connect(said)
        assert peer.recv(100) == PASSWORD.welcome
        return self.admitted.get(timeout=WITHIN_S)

    def close(self) -> None:
        self.listener.close()
        while not self.admitted.empty():
            self.admitted.get().close()
        for peer in self._peers:
            peer.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()
    assert made.deaths.empty()


def answer_to(peer: socket.socket) -> bytes:
    """All that the listener says until it closes the connection."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        while piece := peer.recv(100):
            heard += piece
    return heard


def test_what_follows_the_secret_is_left_to_the_one_who_serves(door: Door) -> None:
    with door.admits(SECRET + b"c\nt\ncall\n") as admitted:
        assert admitted.gettimeout() is None
        assert admitted.recv(100) == b"c\nt\ncall\n"


def test_a_secret_may_come_in_pieces(door: Door) -> None:
    peer = door.connect()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for place in range(len(SECRET)):
        peer.sendall(SECRET[place : place + 1])
        door.admits().close()
    assert peer.recv(100) == PASSWORD.welcome
    door.admitted.get(timeout=WITHIN_S).close()


@pytest.mark.parametrize(
    "said",
    [
        b"A\nwrong\ne\n",
        b"\n\n\n",
        b"c\nt\ncall\nsopen_log\ns{}\ne\n",
        SECRET.lower(),
        SECRET[:-2] + b"f\n",
        b"x" * 10_000,
    ],
)
def test_a_peer_that_says_something_else_is_refused_and_never_admitted(door: Door, said: bytes) -> None:
    assert answer_to(door.connect(said)) in (PASSWORD.refusal, b"")
    assert door.admitted.empty()
    door.admits().close()


def test_a_peer_that_leaves_in_the_middle_is_forgotten(door: Door) -> None:
    for place in range(len(SECRET)):
        door.connect(SECRET[:place]).close()
    peer = door.connect(SECRET[:5])
    peer.shutdown(socket.SHUT_WR)
    assert answer_to(peer) == PASSWORD.refusal
    door.admits().close()
    assert not door.listener._peers


def test_a_peer_that_stays_silent_is_dropped_in_time() -> None:
    door = Door(patience_s=0.2)
    for said in (b"", b"A\n", SECRET[:-1]):
        assert answer_to(door.connect(said)) == b"", "the listener closes, and says nothing"
    door.close()


def test_of_a_crowd_of_strangers_the_one_that_waits_longest_goes(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door.listener, "_most", 10)
    crowd = [door.connect() for _ in range(50)]
    door.admits().close()
    for peer in crowd[:40]:
        assert answer_to(peer) == b""
    for peer in crowd[-9:]:
        peer.sendall(SECRET)
        assert peer.recv(100) == PASSWORD.welcome
    assert len(door.listener._peers) <= 10


def test_strangers_get_no_thread(door: Door) -> None:
    before = threading.active_count()
    crowd = [door.connect(b"A\n") for _ in range(100)]
    door.admits().close()
    assert threading.active_count() == before
    assert len(crowd) == 100


def test_many_owners_at_once_are_all_admitted(door: Door) -> None:
    """As the tasks of a JVM do it, beside a crowd of strangers."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def own() -> None:
        with socket.create_connection(("127.0.0.1", door.listener.port), WITHIN_S) as peer:
            peer.sendall(SECRET)
            answers.put(peer.recv(100))

    owners = [threading.Thread(target=own) for _ in range(200)]
    for owner in owners:
        owner.start()
        if dice.random() < 0.1:
            door.connect(SECRET[: dice.randrange(len(SECRET))])
    assert [answers.get(timeout=WITHIN_S) for _ in owners] == [PASSWORD.welcome] * len(owners)
    for owner in owners:
        owner.join()


class Scarce:
    """Stands for a listening socket in a process that is short of descriptors `times` times."""

    def __init__(self, real: socket.socket, number: int, times: int) -> None:
        self._real = real
        self._number = number
        self.left = times

    def accept(self) -> tuple[socket.socket, object]:
        if self.left:
            self.left -= 1
            raise OSError(self._number, os.strerror(self._number))
        return self._real.accept()

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_without_a_free_descriptor_it_waits_until_there_is_one(
    door: Door, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(listener_module, "SCARCITY_PAUSE_S", 0.01)
    scarce = short_of_descriptors(door, number, times=3)
    door.admits().close()
    assert scarce.left == 0


def test_without_a_free_descriptor_strangers_make_room(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SCARCITY_PAUSE_S", 1e9)
    strangers = [door.connect() for _ in range(3)]
    door.admits().close()
    scarce = short_of_descriptors(door, errno.EMFILE, times=2)
    door.admits().close()
    assert scarce.left == 0
    assert [answer_to(peer) for peer in strangers[:2]] == [b"", b""]
    strangers[2].sendall(SECRET)
    assert strangers[2].recv(100) == PASSWORD.welcome


def test_a_connection_that_has_gone_before_it_is_accepted_harms_no_other(door: Door) -> None:
    scarce = short_of_descriptors(door, errno.ECONNABORTED, times=5)
    door.admits().close()
    assert scarce.left == 0


def short_of_descriptors(door: Door, number: int, times: int) -> Scarce:
    """From now on so many attempts to accept a connection fail."""
    scarce = Scarce(door.listener._socket, number, times)

    def accept() -> None:
        real, door.listener._socket = door.listener._socket, scarce  # type: ignore[assignment]
        try:
            Listener._accept(door.listener)
        finally:
            door.listener._socket = real

    door.listener._accept = accept  # type: ignore[method-assign]
    return scarce


def test_one_that_cannot_be_served_harms_no_other() -> None:
    failures = [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EMFILE, "too many")]
    admitted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def admit(known: socket.socket) -> None:
        if failures:
            raise failures.pop()
        admitted.put(known)

    door = Door(admit=admit)
    for _ in range(3):
        assert answer_to(door.connect(SECRET)) == PASSWORD.welcome, "and then the connection is closed"
    assert door.connect(SECRET).recv(100) == PASSWORD.welcome
    admitted.get(timeout=WITHIN_S).close()
    door.close()
    assert door.deaths.empty()


def test_a_listener_that_can_accept_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door()
    broken = OSError(errno.EBADF, os.strerror(errno.EBADF))

    def accept() -> None:
        raise broken

    monkeypatch.setattr(door.listener, "_accept", accept)
    door.connect()
    assert door.deaths.get(timeout=WITHIN_S) is broken
    door.close()


def test_unless_told_otherwise_a_dead_listener_ends_its_process() -> None:
    code = (
        "import socket, sys, time\n"
        "from spark_cec.adapters.listener import Listener, Password\n"
        "made = Listener(Password(b'a\\n', b'', b''), print)\n"
        "def accept(): raise OSError(9, 'Bad file descriptor')\n"
        "made._accept = accept\n"
        "socket.create_connection(('127.0.0.1', made.port))\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    ) as process:
        assert process.wait(WITHIN_S) == DEAD_LISTENER
        assert process.stderr is not None
        said = process.stderr.read()
    assert "accepts no connections any more" in said
    assert "Bad file descriptor" in said


def test_strangers_leave_most_descriptors_to_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, most in ((64, 16), (256, 64), (1024, 256), (1 << 20, 256), (resource.RLIM_INFINITY, 256), (1, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_unknown() == most


def test_it_is_closed_though_nobody_ever_came() -> None:
    door = Door()
    port = door.listener.port
    door.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), WITHIN_S)
