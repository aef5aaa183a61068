"""Lets rebuilds of stores run at once as far as the agent has memory for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spark_cec.agent.logs import OpenLog
from spark_cec.agent.spool import Spool
from spark_cec.agent.turns import Turns, machine_memory
from spark_cec.checkpoint.load_memory import estimate_memory
from spark_cec.log.index import CommitEntry
from spark_cec.settings import PREFIX, duration_ms


class Loads:
    """The loads that are under way, for executors and for readers."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        # If an agent died with several loads under way, they may have been too much, and would be again.
        self._turns = Turns(machine_memory() // 4 if spool.cut_loads < 2 else 0)

    @contextmanager
    def taking_turn(self, log: OpenLog, head: CommitEntry, conf: Mapping[str, str]) -> Iterator[None]:
        """Waits until there is memory for the EC at `head`, beside that of the loads under way."""
        with log.catalog.naming_places():
            needed = log.catalog.ask_twice(lambda: estimate_memory(log.catalog.index, head))
        with self._turns.taking(needed, _longest_wait_s(conf)), self._spool.marking_load():
            yield


def _longest_wait_s(conf: Mapping[str, str]) -> float:
    """How long a call may wait for its turn: a third of the time after which the shim takes the agent for dead."""
    return duration_ms("agent.timeout", conf.get(PREFIX + "agent.timeout", "10min")) / 1000 / 3
