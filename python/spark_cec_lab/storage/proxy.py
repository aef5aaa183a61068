"""A proxy between the clients of an S3 server and the server: it counts requests, delays them, and lets them fail.

Servers and clients are on loopback. `StorageProxy` records each request as `Seen`. A function of the caller decides
what happens to a request: `Order`.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "proxy-connection", "expect"})
"""Headers that belong to one connection, not to a request."""

_GOOGLES_CONDITION = "ifGenerationMatch"
"""Google Cloud Storage has its condition in the query of a request."""

_TIMEOUT_S = 120.0

_Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body."""


class Kind(str, Enum):
    """What a request asks of the store. `COPY` is a PUT that copies; `BULK_DELETE` deletes many objects at once."""

    GET = "GET"
    HEAD = "HEAD"
    PUT = "PUT"
    COPY = "COPY"
    LIST = "LIST"
    DELETE = "DELETE"
    BULK_DELETE = "BULK_DELETE"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `bucket` and `key` are decoded, `key` is empty for a bucket; a `LIST` has its prefix as `key`.

    `is_sparks`: the client is Hadoop's, in Java. `number` counts the requests of this proxy from 0 on. `key_id`: the
    name of the key that signed an S3 request, empty if none did.
    """

    number: int
    kind: Kind
    bucket: str
    key: str
    is_sparks: bool
    is_conditional: bool
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What happens to a request.

    First it waits for `delay_s`. With `status` the proxy answers by itself, with S3's word `code`, and the store
    never sees the request. With `lost` the store sees the request, and the connection is reset in place of the answer;
    with `refused` it is reset before. With `unconditional` the store sees a write without its condition. `body_bytes`
    cuts an answer's body short.
    """

    delay_s: float = 0.0
    status: int | None = None
    lost: bool = False
    refused: bool = False
    unconditional: bool = False
    body_bytes: int | None = None
    code: str | None = None


PASS = Order()

Decide = Callable[[Request], Order]


@dataclass(frozen=True, slots=True)
class Seen:
    """A request, its order, the status of its answer (None: the client got none), and the bytes that it sent."""

    request: Request
    order: Order
    status: int | None
    sent_bytes: int


class _Server(ThreadingHTTPServer):
    """A server whose clients may be killed."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Prints a traceback, but for a client that is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class StorageProxy:
    """Stands before the server at `upstream` (host:port). `decide` may be replaced at any moment."""

    def __init__(self, upstream: str, decide: Decide = lambda _: PASS) -> None:
        self.decide = decide
        self._upstream = upstream
        self._seen: list[Seen] = []
        self._lock = threading.Lock()
        self._begun = 0
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="storage-proxy", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The proxy's endpoint."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def upstream(self) -> str:
        """The server's host and port."""
        return self._upstream

    def seen(self) -> list[Seen]:
        """All requests that have ended, in the order in which they ended."""
        with self._lock:
            return list(self._seen)

    def note(self, seen: Seen) -> None:
        """Records a request that has ended."""
        with self._lock:
            self._seen.append(seen)

    def take_number(self) -> int:
        """The number of the next request."""
        with self._lock:
            self._begun += 1
            return self._begun - 1

    def close(self) -> None:
        """Ends the proxy; may be called again."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> StorageProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def classify(method: str, target: str, headers: Mapping[str, str], number: int = 0) -> Request:
    """The request of an HTTP method, a path-style target and its headers (names in lower case)."""
    parts = urlsplit(target)
    bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = parse_qs(parts.query, keep_blank_values=True)
    kind = Kind.OTHER
    if method == "PUT":
        kind = Kind.COPY if "x-amz-copy-source" in headers else Kind.PUT
    elif method == "POST" and "delete" in query:
        kind = Kind.BULK_DELETE
    elif method == "GET" and bucket and not key and ("list-type" in query or "prefix" in query):
        kind, key = Kind.LIST, query.get("prefix", [""])[0]
    elif method in ("GET", "HEAD", "DELETE"):
        kind = Kind(method)
    agent = headers.get("user-agent", "")
    signer = re.search(r"Credential=([^/,]+)/", headers.get("authorization", ""))
    key_id = "" if signer is None else signer[1]
    conditional = "if-none-match" in headers or "if-match" in headers or _GOOGLES_CONDITION in query
    return Request(number, kind, bucket, key, "aws-sdk-java" in agent or "Hadoop" in agent, conditional, key_id)


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection of a client."""

    proxy: StorageProxy
    protocol_version = "HTTP/1.1"
    # Small answers must not wait for the acknowledgement of the packet before.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._server = http.client.HTTPConnection(self.proxy.upstream, timeout=_TIMEOUT_S)

    def finish(self) -> None:
        self._server.close()
        super().finish()

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._read_body(headers)
        request = classify(self.command, self.path, headers, self.proxy.take_number())
        order = self.proxy.decide(request)
        if order.delay_s:
            time.sleep(order.delay_s)
        answer = self._obey(order, headers, body)
        # A client that has its answer may count at once.
        self.proxy.note(Seen(request, order, None if answer is None else answer[0], len(body)))
        if answer is None:
            self._reset()
        else:
            self._answer(*answer, order.body_bytes)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _obey(self, order: Order, headers: Mapping[str, str], body: bytes) -> _Answer | None:
        """The answer for the client; None if the connection shall be reset."""
        if order.refused:
            return None
        if order.status is not None:
            return order.status, [], _describe_error(order.code or _CODES.get(order.status, "Failed"))
        kept = [(name, value) for name, value in headers.items() if name not in _HOP]
        if order.unconditional:
            kept = [(name, value) for name, value in kept if name not in ("if-none-match", "if-match")]
            self.path = re.sub(rf"&?{_GOOGLES_CONDITION}=[^&]*", "", self.path)
        answer = self._forward(kept, body)
        return None if order.lost else answer

    def _forward(self, headers: list[tuple[str, str]], body: bytes) -> _Answer:
        server = self._server
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            server.putheader(name, value)
        if body and not any(name == "content-length" for name, _ in headers):
            server.putheader("content-length", str(len(body)))
        server.endheaders(body or None)
        answer = server.getresponse()
        content = answer.read()
        return answer.status, [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP], content

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes, most_bytes: int | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if most_bytes is not None and most_bytes < len(content):
            self.wfile.write(content[:most_bytes])
            self._reset()
            return
        self.wfile.write(content)

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunks()
        return self.rfile.read(int(headers.get("content-length") or 0))

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _reset(self) -> None:
        """Ends the connection with a reset: the client learns nothing more of the request."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


def _handler_of(proxy: StorageProxy) -> type[_Handler]:
    """The handler of one proxy: the server makes an object of a class for each connection."""
    return type("Handler", (_Handler,), {"proxy": proxy})


_CODES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    503: "SlowDown",
}


def _describe_error(code: str) -> bytes:
    text = f"<Error><Code>{code}</Code><Message>by order of the test</Message></Error>"
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
