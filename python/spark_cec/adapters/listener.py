"""A socket on loopback that admits a peer after it shows a secret; any other peer costs little.

A peer without the secret costs one descriptor, and no thread. The number and the time of such peers are limited. If
there are too many, the one that has waited longest is dropped: an honest peer shows its secret at once.
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
"""The time that a peer has to show its secret: a JVM may pause for a garbage collection meanwhile."""

MOST_UNKNOWN = 256
"""The most peers that have not shown their secret."""

SHARE_OF_DESCRIPTORS = 4
"""Such peers get at most one in this many descriptors: the agent needs the others for its files."""

SCARCITY_PAUSE_S = 0.1
"""The wait for one of the agent's own descriptors to become free."""

DEAD_LISTENER = 5
"""Exit code of a process whose listener has died."""

_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_GONE_ALREADY = (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EPROTO)


def end_process(error: BaseException) -> None:
    """Ends this process at once: it looks alive, but no peer can connect any more."""
    _LOG.error("the agent accepts no connections any more, so it ends and its JVM starts another", exc_info=error)
    os._exit(DEAD_LISTENER)


@dataclass(slots=True)
class _Peer:
    """A connection that has not shown the secret, and the bytes that it has sent."""

    socket: socket.socket
    until: float
    received: bytes = b""


@dataclass(frozen=True, slots=True)
class Password:
    """The secret that a peer must send first, in whole lines, and the two answers to it."""

    secret: bytes
    welcome: bytes
    refusal: bytes

    def is_complete(self, received: bytes) -> bool:
        """Whether a peer has sent as much as the secret has, right or wrong."""
        return len(received) >= len(self.secret) or received.count(b"\n") >= self.secret.count(b"\n")

    def is_shown(self, received: bytes) -> bool:
        """Whether these bytes are the secret; the comparison takes the same time for any bytes."""
        return hmac.compare_digest(received, self.secret)


class Listener:
    """Listens from its creation on, and passes each socket that has shown the secret to `admit`.

    The socket is then blocking, without unread bytes. If the listener can accept no more connections, it calls `died`
    with the reason.
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
        # Oldest first; only the listener's thread uses it.
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
        """Stops listening, and drops all peers that have not shown the secret."""
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
        """Reads from the peers before it accepts others: then an honest peer shows its secret before it is the oldest.
        """
        ready = [key for key, _ in self._selector.select(self._time_left())]
        for key in ready:
            if key.data is not None:
                self._read_peer(key.data)
        self._drop_late()
        if any(key.fileobj is self._socket for key in ready):
            self._accept()

    def _time_left(self) -> float | None:
        """Seconds until the oldest peer is late; None without peers."""
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
        """Drops the oldest peer, or waits: without peers, the agent's files or connections have the descriptors."""
        if self._peers:
            self._drop_oldest()
        else:
            self._closed.wait(SCARCITY_PAUSE_S)

    def _drop_oldest(self) -> None:
        self._forget(next(iter(self._peers.values()))).close()

    def _drop_late(self) -> None:
        while self._time_left() == 0.0:
            self._drop_oldest()

    def _read_peer(self, peer: _Peer) -> None:
        try:
            piece = peer.socket.recv(len(self._password.secret) - len(peer.received))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        peer.received += piece
        if piece and not self._password.is_complete(peer.received):
            return
        self._answer(self._forget(peer), self._password.is_shown(peer.received))

    def _answer(self, known: socket.socket, right: bool) -> None:
        """Answers a peer; an error here affects this connection only."""
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
    """The most peers without the secret, by this process's limit on descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_UNKNOWN
    return min(MOST_UNKNOWN, max(limit // SHARE_OF_DESCRIPTORS, 1))
