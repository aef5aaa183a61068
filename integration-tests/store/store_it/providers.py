"""Providers and stores as Spark uses them, under names of their own."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.home import read_log_id
from store_it.jvm import Key, Step, Stores, Value, pairs

_numbers = itertools.count()

RUN_ID = "11111111-2222-3333-4444-555555555555"
"""Spark's id of the query's run, which it gives to each store of the run."""


@dataclass
class Store:
    """A store at a version, for reading and, unless `read`, for writing."""

    jvm: Stores
    name: str

    def do(self, *steps: Step) -> list[Any]:
        """Runs steps, each with its answer."""
        return self.jvm.do(self.name, *steps)

    def get(self, *key: int) -> Value | None:
        """The value of a key."""
        found = self.do(("get", key))[0]
        return None if found is None else (found[0], found[1])

    def put(self, entries: dict[Key, Value]) -> Store:
        """Puts pairs; returns the store."""
        self.do(*(("put", key, value) for key, value in entries.items()))
        return self

    def remove(self, *keys: Key) -> Store:
        """Removes keys; returns the store."""
        self.do(*(("remove", key) for key in keys))
        return self

    def iterate(self) -> dict[Key, Value]:
        """All pairs."""
        return pairs(self.do(("iterate",))[0])

    def scan(self, group: int) -> dict[Key, Value]:
        """The pairs of a prefix."""
        return pairs(self.do(("scan", (group,)))[0])

    def commit(self) -> int:
        """Commits; the new version."""
        return int(self.do(("commit",))[0])

    def abort(self) -> None:
        """Gives up."""
        self.do(("abort",))

    def metrics(self) -> dict[str, int]:
        """The metrics after the commit."""
        found = self.do(("metrics",))[0]
        assert isinstance(found, dict)
        return found


@dataclass
class Provider:
    """A provider on `checkpoint`; several may share it."""

    jvm: Stores
    checkpoint: str
    grouped: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    conf: dict[str, str] = field(default_factory=dict)
    partition: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        self.name = f"provider-{next(_numbers)}"
        self.jvm.ask(
            "provider",
            name=self.name,
            root=f"{self.checkpoint}/state",
            operator=0,
            partition=self.partition,
            grouped=self.grouped,
            conf={**self.jvm.conf(**self.settings), **self.conf},
            **{"run_id": RUN_ID, **self.extra},
        )

    def fresh(self) -> Provider:
        """Another provider on the same checkpoint, as after a restart."""
        return Provider(self.jvm, self.checkpoint, self.grouped, self.settings, self.conf, self.partition, self.extra)

    def begin_task(self, task: int, *, together: bool = False, thread: str = "query") -> None:
        """Begins a task of a deferred query in a thread. `together`: its stores write at the end of a batch."""
        home = f"{self.checkpoint}/cec/log"
        self.fresh().store(0).abort()  # there is a log from here on
        run = {
            "run_id": RUN_ID, "checkpoint": self.checkpoint, "generation": 1,
            "home": home, "log_id": read_log_id(open_storage(home)),
            "replay_to": 0, "base": 0, "accept": False, "silent": False, "together": together, "started_ms": 0,
            "deferred": [0], "counted": [], "forecast": None,
        }  # fmt: skip
        properties = {"spark.sql.cec.run": json.dumps(run), "sql.streaming.queryId": "q"}
        self.jvm.ask("task_begin", task=task, thread=thread, properties=properties)

    def run_task(self, version: int, entries: dict[Key, Value], *, together: bool = False) -> int:
        """One batch of that query at a version, from the begin of its task to the end."""
        self.begin_task(version, together=together)
        store = self.store(version, thread="query")
        puts = [("put", key, value) for key, value in entries.items()]
        committed = self.jvm.do(store.name, *puts, ("commit",), thread="query")[-1]
        self.jvm.ask("task_end", thread="query")
        return int(committed)

    def look_in_task(self, version: int) -> dict[Key, Value]:
        """A task of that query that looks at a version and ends without a commit."""
        self.begin_task(version)
        store = self.store(version, thread="query")
        found = pairs(self.jvm.do(store.name, ("iterate",), thread="query")[0])
        self.jvm.ask("task_end", thread="query")
        return found

    def store(
        self, version: int, checkpoint_id: str | None = None, *, read: bool = False, thread: str = "main"
    ) -> Store:
        """The store at a version."""
        name = f"store-{next(_numbers)}"
        self.jvm.ask(
            "get_store", provider=self.name, store=name, version=version, id=checkpoint_id, read=read, thread=thread
        )
        return Store(self.jvm, name)

    def read(self, version: int) -> dict[Key, Value]:
        """All pairs of a version, through a read store."""
        store = self.store(version, read=True)
        found = store.iterate()
        store.do(("release",))
        return found

    def put(self, version: int, entries: dict[Key, Value], *removed: Key) -> int:
        """One batch at a version: puts, then removes, then the commit."""
        return self.store(version).put(entries).remove(*removed).commit()
