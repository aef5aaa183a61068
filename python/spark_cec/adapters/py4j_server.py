"""The agent's door: a Py4J server on loopback that one JVM, holding the token, calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

HANDLER_INTERFACE = "org.apache.spark.sql.cec.agent.AgentCalls"

BACKLOG = 128
"""Connections that may wait to be accepted: the tasks of a JVM connect all at once."""


class _EntryPoint:
    """What the JVM sees: one method, JSON in, JSON out."""

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
    """Serves `handle(name, arguments_json) -> answer_json` on 127.0.0.1, each connection in a thread."""

    def __init__(self, handle: Callable[[str, str], str], token: str) -> None:
        self._server = ClientServer(
            java_parameters=JavaParameters(address="127.0.0.1", port=0, auth_token=token, auto_convert=False),
            python_parameters=PythonParameters(
                address="127.0.0.1", port=0, auth_token=token, daemonize=True, daemonize_connections=True
            ),
            python_server_entry_point=_EntryPoint(handle),
        )
        # Py4J listens only in the thread that it has just started: whoever is told the port must be able to connect.
        self._server.get_callback_server().server_socket.listen(BACKLOG)

    @property
    def port(self) -> int:
        """The port that the system chose."""
        return int(self._server.get_callback_server().get_listening_port())

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown_callback_server()
