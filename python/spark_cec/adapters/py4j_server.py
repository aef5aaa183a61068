"""The agent's server: one JVM, which has the token, calls by Py4J over loopback."""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Callable
from typing import ClassVar

from py4j import protocol
from py4j.clientserver import ClientServer, ClientServerConnection, JavaParameters, PythonParameters

from spark_cec.adapters.listener import Listener, Password, end_process

HANDLER_INTERFACE = "org.apache.spark.sql.cec.agent.AgentCalls"


class _EntryPoint:
    """The object that the JVM calls: one method, JSON in, JSON out."""

    def __init__(self, handle: Callable[[str, str], str]) -> None:
        self._handle = handle

    def call(self, name: str, arguments: str) -> str:
        """Answers one call; the handler never raises."""
        return self._handle(name, arguments)

    def toString(self) -> str:  # noqa: N802 (Py4J asks for Java's name)
        """Java's `toString`."""
        return "Spark CEC agent"

    class Java:
        """Py4J's way to name the Java interface."""

        implements: ClassVar[list[str]] = [HANDLER_INTERFACE]


class CallServer:
    """Serves `handle(name, arguments_json) -> answer_json` on 127.0.0.1, each connection in a thread.

    After its first error, Py4J's own server never accepts again. It also gives a thread to each peer without the token.
    So the listener is ours, and Py4J gets only connections that have shown the token.
    """

    def __init__(
        self,
        handle: Callable[[str, str], str],
        token: str,
        died: Callable[[BaseException], None] = end_process,
    ) -> None:
        self._gateway = ClientServer(
            java_parameters=JavaParameters(address="127.0.0.1", port=0, auto_convert=False),
            python_parameters=PythonParameters(
                address="127.0.0.1", port=0, daemonize=True, daemonize_connections=True, eager_load=False
            ),
            python_server_entry_point=_EntryPoint(handle),
        )
        self._admitted: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._listener = Listener(_make_password(token), self._serve, died)

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return self._listener.port

    def close(self) -> None:
        """Stops listening, and ends all connections."""
        self._listener.close()
        for connection in list(self._admitted):
            # The reader thread closes the connection. A close here would wait for that thread, which waits for the JVM.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, admitted: socket.socket) -> None:
        gateway = self._gateway
        connection = ClientServerConnection(
            gateway.java_parameters, gateway.python_parameters, gateway.gateway_property, gateway._gateway_client
        )
        connection.init_socket_from_python_server(admitted, admitted.makefile("rb"))
        self._admitted.add(admitted)
        connection.start()


def _make_password(token: str) -> Password:
    """The bytes that Py4J's Java side sends before its first call, and the two answers."""
    return Password(
        f"{protocol.AUTH_COMMAND_NAME}\n{token}\n{protocol.END}\n".encode(),
        protocol.OUTPUT_VOID_COMMAND.encode(),
        protocol.ERROR_RETURN_MESSAGE.encode(),
    )
