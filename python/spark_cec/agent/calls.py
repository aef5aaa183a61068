"""The agent's calls: names, JSON arguments, JSON answers.

A failed call answers `{"error": {"kind": ..., "parents": [...], "message": ...}}`: `kind` is the name of the
exception's class, `parents` are the names of its base classes.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_cec.agent.logs import OpenLogs
from spark_cec.agent.output import OutputCalls
from spark_cec.agent.output_cache import OutputCache
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.queries import QueryCalls
from spark_cec.agent.reader import ReaderCalls
from spark_cec.agent.spool import Spool
from spark_cec.agent.starts import StartCalls
from spark_cec.agent.stores import StoreCalls
from spark_cec.errors import CecError, mend_of

Answer = Mapping[str, Any]


_WITHOUT_LEASE = frozenset({"check", "begin", "hold", "release"})
"""The calls that take the lease, come before it, or come after it may have been lost."""


class Calls:
    """Dispatches calls by name; safe for several threads."""

    def __init__(self, spool_path: str | None = None, inherited: Sequence[str] = ()) -> None:
        self.spool = Spool(spool_path, inherited)
        self._logs = OpenLogs()
        protocols = ProtocolCalls(self._logs)
        self._starts = starts = StartCalls(self._logs, protocols)
        driver = QueryCalls(self._logs, protocols)
        stores = StoreCalls(self._logs, self.spool)
        output_cache = OutputCache()
        output = OutputCalls(self._logs, output_cache, protocols)
        readers = ReaderCalls(self._logs, self.spool, output_cache, protocols)
        self._by_name: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "check": starts.check,
            "begin": starts.begin,
            "hold": starts.hold,
            "release": starts.release,
            "resolve": starts.resolve,
            "batch_input": driver.batch_input,
            "replay_settings": driver.replay_settings,
            "replaying": driver.replaying,
            "report": driver.report,
            "between_batches": driver.between_batches,
            "flushed": driver.flushed,
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
            "view_schema": readers.schema,
            "view_splits": readers.splits,
            "view_offsets": readers.offsets,
            "note_reader": readers.note,
            "read_split": readers.read_split,
        }

    def answer(self, name: str, arguments: str) -> str:
        """Answers one call; never raises."""
        try:
            parsed = json.loads(arguments)
            if name not in _WITHOUT_LEASE:
                self._logs.refuse_fenced(parsed.get("checkpoint"))
            with self._logs.serving():
                return json.dumps(self._by_name[name](parsed), allow_nan=False)  # Jackson cannot parse NaN
        except Exception as error:  # the JVM must always get an answer
            return _encode_failure(error, _explain_error(error))

    def tidy(self) -> None:
        """Closes logs and files that are long unused; called at intervals."""
        self._logs.tidy()

    def close(self) -> None:
        """Closes all logs and deletes the spool."""
        self._logs.close()
        self._starts.close()
        self.spool.close()


def _explain_error(error: Exception) -> str:
    """One sentence with the remedy, if there is one; the traceback for an unforeseen error."""
    mend = mend_of(error)
    if isinstance(error, CecError):
        return str(error) if mend is None or mend in str(error) else f"{error}; {mend}"
    if mend is not None and isinstance(error, OSError):
        return f"{error.filename}: {mend}" if error.filename is not None else mend
    return "".join(traceback.format_exception(error))


def _encode_failure(error: Exception, message: str) -> str:
    parents = [each.__name__ for each in type(error).__mro__[1:] if issubclass(each, CecError)]
    return json.dumps({"error": {"kind": type(error).__name__, "parents": parents, "message": message}})
