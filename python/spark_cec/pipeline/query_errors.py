"""Judges the error that has ended a flow's query: whether a restart may mend it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_cec.errors import CecError, Consequence, NoAnswer, consequence_of
from spark_cec.pipeline.declare import FlowError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_NEVER_RUNS = ("AnalysisException", "ParseException")
"""Spark's exceptions for a query that can never run."""

_KAFKA = "org.apache.kafka.common.errors."
_NO_ANSWER = frozenset(
    _KAFKA + f"{each}Exception"
    for each in (
        *("Timeout", "Network", "Disconnect", "BrokerNotAvailable", "CoordinatorNotAvailable"),
        *("LeaderNotAvailable", "NotLeaderOrFollower", "ReplicaNotAvailable"),
    )
)
"""The exceptions of Kafka's clients for a cluster that does not answer. Not for one whose address is wrong."""

_NO_CONNECTION = frozenset(
    f"java.net.{each}"
    for each in ("ConnectException", "NoRouteToHostException", "UnknownHostException")
)
"""The JDK's exceptions for another end that is away, or whose address is wrong; also behind those of Hadoop and AWS.

Not SocketTimeoutException: a request that takes too long may do so each time. If there was not even a connection, it
has a class of its own in some clients, and in the JDK it says so.
"""
_CONNECT_TIMEOUT = "ConnectTimeoutException"
_JDK_TIMEOUT, _NOT_CONNECTED = "java.net.SocketTimeoutException", "connect timed out"
_UNRESOLVED = "No resolvable bootstrap urls"
"""Kafka's clients say so if no name of a broker has an address."""

_MOST_CAUSES = 50
_ERROR_CHARS = 2000


def is_fatal(java: Any, error: BaseException) -> bool:
    """Whether a restart would end with the same error. `java`: the Java exception behind it, or None."""
    for each in _causes(java):  # all causes: the reason why a replay failed is behind its failure
        if each.getClass().getSimpleName() in _NEVER_RUNS or _consequence(each) is Consequence.FIX:
            return True
    # The function of a user can fail before its query has started.
    own = error.__cause__ if isinstance(error, FlowError) else error
    if isinstance(own, CecError):
        return own.consequence is Consequence.FIX
    return isinstance(own, TypeError | NameError | AttributeError | SyntaxError | ImportError)


def is_due_to_lost_executors(java: Any) -> bool:
    """Whether lost executors have ended a query; a restart brings their state back. `java` as in `is_fatal`."""
    return any(_consequence(each) is Consequence.RESTART for each in _causes(java))


def is_due_to_silent_source(java: Any) -> bool:
    """Whether a query has ended because a source does not answer. `java` as in `is_fatal`."""
    return any(str(each.getClass().getName()) in _NO_ANSWER for each in _causes(java))


def is_due_to_kafka(java: Any) -> bool:
    """Whether a query has ended because the servers of Kafka do not answer, or are not found. `java` as in `is_fatal`.
    """
    return is_due_to_silent_source(java) or any(_UNRESOLVED in str(each.getMessage()) for each in _causes(java))


def is_due_to_lost_connection(java: Any) -> bool:
    """Whether a query has ended because nothing answers at an address of a source, or of the storage.

    The address may be wrong, if the flow has had no batch yet. `java` as in `is_fatal`.
    """
    return any(
        _is_of_storage(each) or _has_no_connection(each) or _UNRESOLVED in str(each.getMessage())
        for each in _causes(java)
    )


def _is_of_storage(java: Any) -> bool:
    return java.getClass().getSimpleName() == "CecException" and bool(java.isA(NoAnswer.__name__))


def _has_no_connection(java: Any) -> bool:
    """Whether the class of an exception, or a class above it, is that of a lost connection."""
    known, says_so = java.getClass(), _NOT_CONNECTED in str(java.getMessage()).lower()
    while known is not None:
        name = str(known.getName())
        if name in _NO_CONNECTION or name.endswith(_CONNECT_TIMEOUT) or (name == _JDK_TIMEOUT and says_so):
            return True
        known = known.getSuperclass()
    return False


def _consequence(java: Any) -> Consequence | None:
    """The consequence of an exception of the shim; None for another exception."""
    return consequence_of(str(java.kind())) if java.getClass().getSimpleName() == "CecException" else None


def _causes(java: Any) -> Iterator[Any]:
    """A Java exception and its causes; nothing for None."""
    for _ in range(_MOST_CAUSES):  # causes can form a cycle
        if java is None:
            return
        yield java
        java = java.getCause()


def java_error(error: BaseException) -> Any:
    """The Java exception from which pyspark made this error or its cause; None if there is none."""
    own = getattr(error, "_origin", None) or getattr(error, "java_exception", None)
    return own if own is not None or error.__cause__ is None else java_error(error.__cause__)


def java_error_of(query: StreamingQuery) -> Any:
    """The Java exception that has ended a query; None if there is none."""
    try:
        found = query._jsq.exception()
        return found.get() if found.isDefined() else None
    except Exception:  # the JVM has ended
        return None


def error_text(error: BaseException) -> str:
    """The message of an error, shortened if it is very long."""
    text = str(error).strip() or repr(error)
    return text if len(text) <= _ERROR_CHARS else text[:_ERROR_CHARS] + " …"
