"""The agent's calls: names, JSON arguments, JSON answers.

A call that fails answers `{"error": {"kind": ..., "message": ...}}`; `kind` is the name of the exception's class.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_cec.agent.logs import OpenLogs
from spark_cec.agent.output import OutputCalls
from spark_cec.agent.output_cache import RecentOutput
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.queries import QueryCalls
from spark_cec.agent.reader import ReaderCalls
from spark_cec.agent.spool import Spool
from spark_cec.agent.stores import StoreCalls
from spark_cec.errors import CecError, mend_of

Answer = Mapping[str, Any]


_WITHOUT_LEASE = frozenset({"check", "hold", "release"})
"""Calls of a start before it has the lease, and of an end when it may have lost it."""


class Calls:
    """Dispatches calls by name; safe to use from several threads."""

    def __init__(self, spool_path: str | None = None, inherited: Sequence[str] = ()) -> None:
        self.spool = Spool(spool_path, inherited)
        self._logs = OpenLogs()
        protocols = ProtocolCalls(self._logs)
        self._driver = driver = QueryCalls(self._logs, protocols)
        stores = StoreCalls(self._logs, self.spool)
        recent = RecentOutput()
        output = OutputCalls(self._logs, recent, protocols)
        views = ReaderCalls(self._logs, self.spool, recent, protocols)
        self._by_name: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "check": driver.check,
            "resolve": driver.resolve,
            "hold": self._hold,
            "release": driver.release,
            "plan": driver.plan,
            "sources_now": driver.sources_now,
            "batch_input": driver.batch_input,
            "begin_run": driver.begin_run,
            "replay_settings": driver.replay_settings,
            "replaying": driver.replaying,
            "report": driver.report,
            "flush_requested": driver.flush_requested,
            "flush_done": driver.flush_done,
            "left_dirty": driver.left_dirty,
            "checkpoint_due": protocols.due,
            "checkpoint_taken": protocols.taken,
            "acknowledge": driver.acknowledge,
            "trim": driver.trim,
            "open_log": stores.open_log,
            "close_log": stores.close_log,
            "load": stores.load,
            "footer": stores.footer,
            "append": stores.append,
            "loaded": stores.loaded,
            "write_output": output.write,
            "publish": output.publish,
            "view_schema": views.schema,
            "view_splits": views.splits,
            "view_offsets": views.offsets,
            "note_reader": views.note,
            "read_split": views.read_split,
        }

    def answer(self, name: str, arguments: str) -> str:
        """One call; never raises."""
        try:
            parsed = json.loads(arguments)
            if name not in _WITHOUT_LEASE:
                self._logs.refuse_fenced(parsed.get("checkpoint"))
            with self._logs.serving():
                return json.dumps(self._by_name[name](parsed), allow_nan=False)  # Jackson reads none
        except Exception as error:  # the JVM must always get an answer
            return _failure(error, _message(error))

    def _hold(self, arguments: dict[str, Any]) -> Answer:
        """As `QueryCalls.hold`; while a run has lost its lease, calls for its checkpoint fail, and no others.

        Where it `runs`, so do calls for its log. A start, which has no generation yet, has nothing to lose; with the
        lease, it ends what an earlier run lost.
        """
        checkpoint = str(arguments["checkpoint"])
        try:
            answer = self._driver.hold(arguments)
        except Exception as error:
            has_begun = arguments.get("generation") is not None
            if has_begun and not self._driver.has_lease(checkpoint):  # else a later run in this application has it
                self._logs.fence(checkpoint, arguments["home"] if arguments.get("runs") else None, str(error))
            raise
        self._logs.unfence(checkpoint)
        return answer

    def tidy(self) -> None:
        """To be called now and then: closes what nobody has used for long."""
        self._logs.tidy()

    def close(self) -> None:
        """Closes all logs and removes the spool."""
        self._logs.close()
        self._driver.close()
        self.spool.close()


def _message(error: Exception) -> str:
    """One sentence, with the remedy if one is known; where nobody has thought of it, the place where it went wrong."""
    mend = mend_of(error)
    if isinstance(error, CecError):
        return str(error) if mend is None or mend in str(error) else f"{error}; {mend}"
    if mend is not None and isinstance(error, OSError):
        return f"{error.filename}: {mend}" if error.filename is not None else mend
    return "".join(traceback.format_exception(error))


def _failure(error: Exception, message: str) -> str:
    return json.dumps({"error": {"kind": type(error).__name__, "message": message}})
