"""The agent's calls: names, JSON arguments, JSON answers.

A call that fails answers `{"error": {"kind": ..., "message": ...}}`; `kind` is the name of the exception's class.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spark_cec.agent.driver import DriverCalls
from spark_cec.agent.logs import OpenLogs
from spark_cec.agent.output import OutputCalls
from spark_cec.agent.spool import Spool
from spark_cec.agent.stores import StoreCalls
from spark_cec.agent.views import ViewCalls
from spark_cec.errors import CecError

Answer = Mapping[str, Any]


class Calls:
    """Dispatches calls by name; safe to use from several threads."""

    def __init__(self, spool_path: str | None = None, inherited: Sequence[str] = ()) -> None:
        self.spool = Spool(spool_path, inherited)
        self._logs = OpenLogs()
        self._driver = driver = DriverCalls(self._logs)
        stores = StoreCalls(self._logs, self.spool)
        output, views = OutputCalls(self._logs), ViewCalls(self._logs, self.spool)
        self._by_name: dict[str, Callable[[dict[str, Any]], Answer]] = {
            "check": driver.check,
            "resolve": driver.resolve,
            "hold": driver.hold,
            "release": driver.release,
            "plan": driver.plan,
            "record": driver.record,
            "begin_run": driver.begin_run,
            "report": driver.report,
            "acknowledge": driver.acknowledge,
            "trim": driver.trim,
            "open_log": stores.open_log,
            "load": stores.load,
            "append": stores.append,
            "loaded": stores.loaded,
            "write_output": output.write,
            "publish": output.publish,
            "view_schema": views.schema,
            "view_splits": views.splits,
            "view_offsets": views.offsets,
            "read_split": views.read_split,
        }

    def answer(self, name: str, arguments: str) -> str:
        """One call; never raises."""
        try:
            return json.dumps(self._by_name[name](json.loads(arguments)))
        except CecError as error:
            return _failure(error, str(error))
        except Exception as error:  # the JVM must always get an answer, with the place where it went wrong
            return _failure(error, "".join(traceback.format_exception(error)))

    def close(self) -> None:
        """Closes all logs and removes the spool."""
        self._logs.close()
        self._driver.close()
        self.spool.close()


def _failure(error: Exception, message: str) -> str:
    return json.dumps({"error": {"kind": type(error).__name__, "message": message}})
