"""A socket on loopback that admits a peer that shows a secret first; any other peer costs little.

A peer that has not shown the secret yet costs one descriptor, and no thread. Such peers are limited in number and in
time. If there are too many of them, the one that has waited longest goes: an honest peer shows its secret at once.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOG = logging.getLogger(__name__)

BACKLOG = 128
"""Connections that may wait to be accepted: the tasks of a JVM connect all at once."""

PATIENCE_S = 30.0
"""How long a peer may take to show its secret: a JVM may stop for a garbage collection in between."""

MOST_UNKNOWN = 256
"""Peers that have not shown their secret yet, at most."""

SHARE_OF_DESCRIPTORS = 4
"""They may have one descriptor in so many: the agent needs the others for its files."""

SCARCITY_PAUSE_S = 0.1
"""How long to wait for a descriptor of the agent's own to become free."""

DEAD_LISTENER = 5
"""Exit code of a process whose listener has died."""

_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE_ALREADY = (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO)


def end_process(error: BaseException) -> None:
    """End this process at once: it looks alive, but nobody can reach it any more."""
    _LOG.error("the agent accepts no connections any more, so it ends and its JVM starts another", exc_info=error)
    os._exit(DEAD_LISTENER)


@dataclass(slots=True)
class _Peer:
    """A connection that has not shown the secret yet, and what it has said so far."""

    socket: socket.socket
    until: float
    said: bytes = b""


@dataclass(frozen=True, slots=True)
class Password:
    """What a peer must say first, in whole lines, and what it is answered."""

    secret: bytes
    welcome: bytes
    refusal: bytes

    def is_complete(self, said: bytes) -> bool:
        """Whether a peer that has said this has had its say, right or wrong."""
        return len(said) >= len(self.secret) or said.count(b"\n") >= self.secret.count(b"\n")

    def is_shown(self, said: bytes) -> bool:
        """Whether this is the secret; the time that it takes tells nothing of it."""
        return hmac.compare_digest(said, self.secret)


class Listener:
    """Listens from the start; each socket that has shown the secret goes to `admit`, blocking and with nothing read.

    `died` is called if the listener can accept no more connections, with the reason.
    """

    def __init__(
        self,
        password: Password,
        admit: Callable[[socket.socket], None],
        died: Callable[[BaseException], None] = end_process,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._password = password
        self._admit = admit
        self._died = died
        self._patience_s = patience_s
        self._most = most_unknown()
        # Oldest first, and only the thread's own.
        self._peers: dict[socket.socket, _Peer] = {}
        self._closed = threading.Event()
        self._bell, self._bell_heard = socket.socketpair()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for heard in (self._socket, self._bell_heard):
            self._selector.register(heard, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and drop all peers that have not shown the secret."""
        self._closed.set()
        self._bell.send(b"x")
        self._thread.join()
        self._selector.close()
        for each in (*self._peers, self._socket, self._bell, self._bell_heard):
            each.close()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                self._take_turn()
        except BaseException as error:
            self._died(error)

    def _take_turn(self) -> None:
        """Hear the peers first: an honest one has shown its secret before it could be the oldest."""
        ready = [key for key, _ in self._selector.select(self._time_left())]
        for key in ready:
            if key.data is not None:
                self._hear(key.data)
        self._drop_late()
        if any(key.fileobj is self._socket for key in ready):
            self._accept()

    def _time_left(self) -> float | None:
        """Until the oldest peer is late; None if there is none."""
        oldest = next(iter(self._peers.values()), None)
        return None if oldest is None else max(oldest.until - time.monotonic(), 0.0)

    def _accept(self) -> None:
        try:
            made, _ = self._socket.accept()
        except OSError as error:
            if error.errno in _SCARCE:
                self._make_room()
            elif error.errno not in _GONE_ALREADY:
                raise
            return
        if len(self._peers) >= self._most:
            self._drop_oldest()
        made.setblocking(False)
        peer = self._peers[made] = _Peer(made, time.monotonic() + self._patience_s)
        self._selector.register(made, selectors.EVENT_READ, peer)

    def _make_room(self) -> None:
        """With nobody to let go, the agent's own files have taken the descriptors, or its admitted connections."""
        if self._peers:
            self._drop_oldest()
        else:
            self._closed.wait(SCARCITY_PAUSE_S)

    def _drop_oldest(self) -> None:
        self._forget(next(iter(self._peers.values()))).close()

    def _drop_late(self) -> None:
        while self._time_left() == 0.0:
            self._drop_oldest()

    def _hear(self, peer: _Peer) -> None:
        try:
            piece = peer.socket.recv(len(self._password.secret) - len(peer.said))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        peer.said += piece
        if piece and not self._password.is_complete(peer.said):
            return
        self._answer(self._forget(peer), self._password.is_shown(peer.said))

    def _answer(self, known: socket.socket, right: bool) -> None:
        """Whatever goes wrong here concerns one connection, and no other."""
        try:
            known.sendall(self._password.welcome if right else self._password.refusal)
            if not right:
                known.close()
                return
            known.setblocking(True)
            self._admit(known)
        except Exception as error:
            known.close()
            if not isinstance(error, OSError):
                _LOG.exception("a connection cannot be served")

    def _forget(self, peer: _Peer) -> socket.socket:
        self._selector.unregister(peer.socket)
        return self._peers.pop(peer.socket).socket


def most_unknown() -> int:
    """How many peers may be unknown at a time, in a process with these limits."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_UNKNOWN
    return min(MOST_UNKNOWN, max(limit // SHARE_OF_DESCRIPTORS, 1))
