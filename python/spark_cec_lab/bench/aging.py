"""What age costs: an agent without Spark, driven through a long life, with quiet, busy and short-lived stores.

The calls are those that a shim would make, on real storage, in this process. At each mark the query is started again,
as after a crash, and everything that might grow is measured. `python -m spark_cec_lab.bench.aging --batches 100000`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow as pa

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.agent.calls import Calls
from spark_cec.agent.messages import (
    AcknowledgeRequest,
    AppendAnswer,
    AppendRequest,
    BeginRequest,
    LoadAnswer,
    LoadRequest,
    OpenLogRequest,
    OutputRows,
    PublishRequest,
    Request,
    StoreCommit,
    TrimRequest,
)
from spark_cec.errors import CecError
from spark_cec.ids import new_id
from spark_cec.log.catalog import Catalog
from spark_cec.log.home import read_log_id
from spark_cec.log.index import MemoryIndex
from spark_cec.recovery.decide import QueryDecision
from spark_cec.settings import PREFIX
from spark_cec_lab.bench.aging_store import AgingStore, Busy, Passing, Quiet

RETAINED = 100
TRIM_EVERY = 20
NEWEST = 500
"""Commits whose times count at a mark."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything that might grow, after so many batches. Times in ms, sizes in bytes."""

    batches: int
    commit_ms: float
    commit_p99_ms: float
    driver_ms: float
    start_ms: float
    cold_start_ms: float
    log_bytes: int
    segments: int
    manifests: int
    own_files: int
    index_rows: int
    index_bytes: int
    chain: int
    ledger: int
    records_per_batch: float
    rss_bytes: int
    open_files: int


@dataclass
class Life:
    """One query's life. `conf` are settings without their prefix, beside the place of the index."""

    scratch: Path
    conf: dict[str, str] = field(default_factory=dict)
    output: bool = True
    batch: int = 0
    generation: int = 0
    records: int = 0
    commit_ms: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))
    driver_ms: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))

    def __post_init__(self) -> None:
        self.checkpoint = str(self.scratch / "checkpoint")
        self.home = f"{self.checkpoint}/cec/log"
        self.settings = {PREFIX + key: value for key, value in self.conf.items()}
        self.settings[PREFIX + "index.path"] = str(self.scratch / "index")
        self.stores: list[AgingStore] = [AgingStore(0, Quiet()), AgingStore(1, Busy()), AgingStore(2, Passing())]
        (self.scratch / "spool").mkdir(parents=True, exist_ok=True)
        self.calls = Calls(str(self.scratch / "spool"))
        self.start()

    def ask(self, request: Request, calls: Calls | None = None) -> Any:
        """The answer of one call; raises `CecError` if it is an error."""
        text = (calls or self.calls).answer(request.call(), msgspec.json.encode(request).decode())
        if "error" in (answer := json.loads(text)):
            raise CecError(f"{request.call()}: {answer['error']['message']}")
        return msgspec.convert(answer, request.answer)

    def start(self) -> float:
        """A start of the query: the run, the load of every store; ms."""
        self._plan_batches()
        began = time.perf_counter()
        begun = self.ask(BeginRequest(
            checkpoint=self.checkpoint, conf=self.settings, home=self.home,
            log_seen=read_log_id(open_storage(self.home)), committed_batch=self.batch - 1, named=False,
            decision=QueryDecision("deferred", "aging", provider=False, operators=()), sources=None,
            session_settings={}, load_waves=1.0, sink="waits", wait_s=0.0,
        ))  # fmt: skip
        self.generation, self.log_id = begun.generation, begun.log_id
        self.ask(OpenLogRequest(home=self.home, conf=self.settings, log_id=self.log_id))
        for store in self.stores if self.batch else ():
            store.plan = self._load(store, self.calls).plan
            store.whole = True
        return (time.perf_counter() - began) * 1000

    def _plan_batches(self) -> None:
        """Spark's offset log, of the batches that it keeps and of the one that is about to run."""
        offsets = Path(self.checkpoint, "offsets")
        offsets.mkdir(parents=True, exist_ok=True)
        for batch in range(max(self.batch - RETAINED, 0), self.batch + 1):
            offsets.joinpath(str(batch)).write_text("v1\n{}\n-")

    def _load(self, store: AgingStore, calls: Calls) -> LoadAnswer:
        answer: LoadAnswer = self.ask(LoadRequest(
            home=self.home, conf=self.settings, log_id=self.log_id, store=store.id, version=self.batch,
            checkpoint_id=None, checkpoint=self.checkpoint, committed_batch=None, generation=self.generation,
            retained=RETAINED, forecast=None,
        ), calls)  # fmt: skip
        if answer.spool is not None:
            Path(answer.spool).unlink()
        return answer

    def restart(self) -> float:
        """The agent ends and another starts, with the index that was left."""
        self.calls.close()
        gc.collect()
        self.calls = Calls(str(self.scratch / "spool"))
        return self.start()

    def cold_start_ms(self) -> float:
        """What the plan and the loads take on a machine that has no index."""
        calls, warm = Calls(str(self.scratch / "spool")), self.settings
        with tempfile.TemporaryDirectory(dir=self.scratch) as elsewhere:
            self.settings = {**warm, PREFIX + "index.path": elsewhere}
            began = time.perf_counter()
            for store in self.stores:
                self._load(store, calls)
            taken = (time.perf_counter() - began) * 1000
            calls.close()
        self.settings = warm
        return taken

    def run(self, batches: int) -> None:
        """So many batches: commits, output, the acknowledgement, and now and then the trimming."""
        for _ in range(batches):
            for store in self.stores:
                request, table = store.commit(self.generation, RETAINED)
                request = msgspec.structs.replace(request, spool=self._spool(table))
                began = time.perf_counter()
                answer: AppendAnswer = self.ask(self._append(request))
                self.commit_ms.append((time.perf_counter() - began) * 1000)
                self.records += table.num_rows if table is not None else 0
                store.plan = answer.commits[0].plan
            if self.output:
                self._publish()
            began = time.perf_counter()
            version = self.batch + 1
            self.ask(AcknowledgeRequest(home=self.home, version=version))
            if self.batch % TRIM_EVERY == TRIM_EVERY - 1:
                self.ask(TrimRequest(
                    home=self.home, version=version, generation=self.generation, retained=RETAINED
                ))  # fmt: skip
            self.driver_ms.append((time.perf_counter() - began) * 1000)
            self.batch += 1

    def _append(self, commit: StoreCommit | None = None, output: OutputRows | None = None) -> AppendRequest:
        return AppendRequest(
            home=self.home, log_id=self.log_id,
            commits=() if commit is None else (commit,), outputs=() if output is None else (output,),
        )  # fmt: skip

    def _publish(self) -> None:
        table = pa.table({"n": [self.batch]})
        spool = self._write_spool(table)
        rows = OutputRows(
            frame=new_id().hex(), batch=self.batch, partition=0, attempt=0, generation=self.generation, rows=1,
            spool=spool,
        )  # fmt: skip
        self.ask(self._append(output=rows))
        Path(spool).unlink()
        self.ask(PublishRequest(
            checkpoint=self.checkpoint, home=self.home, batch=self.batch, frames=(rows.frame,), rows=1, schema="{}",
            truncate=False, generation=self.generation, sources=("rate",),
        ))  # fmt: skip

    def _spool(self, table: pa.Table | None) -> str | None:
        return None if table is None else self._write_spool(table)

    def _write_spool(self, table: pa.Table) -> str:
        path = self.calls.spool.new_file(table.nbytes)
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        return path

    def sample(self) -> Sample:
        """Everything that might grow, now; with a start of the query."""
        commit_ms, driver_ms = sorted(self.commit_ms), median(self.driver_ms)
        records, self.records = self.records, 0
        since, self._sampled = getattr(self, "_sampled", 0), self.batch
        start_ms = self.restart()
        rows = _index_rows(self.home)
        chains = [self._load(store, self.calls).chain for store in self.stores]
        ledgers = [store.ledger_span for store in self.stores]
        return Sample(
            batches=self.batch,
            commit_ms=median(commit_ms),
            commit_p99_ms=commit_ms[len(commit_ms) * 99 // 100],
            driver_ms=driver_ms,
            start_ms=start_ms,
            cold_start_ms=self.cold_start_ms(),
            log_bytes=_bytes(Path(self.home, "segments")),
            segments=_files(Path(self.home, "segments")),
            manifests=_files(Path(self.home, "manifests")),
            own_files=_files(Path(self.checkpoint, "cec")) - _files(Path(self.home)),
            index_rows=rows,
            index_bytes=_bytes(self.scratch / "index"),
            chain=max(chains),
            ledger=max(ledgers),
            records_per_batch=records / max(self.batch - since, 1),
            rss_bytes=_rss(),
            open_files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        )

    def close(self) -> None:
        """Ends the agent."""
        self.calls.close()


def _index_rows(home: str) -> int:
    """Frames that an index of the log has to know."""
    from spark_cec.adapters.fsspec_storage import open_storage
    from spark_cec.log.home import read_log_id

    storage = open_storage(home)
    index = MemoryIndex(str(read_log_id(storage)))
    Catalog(storage, index).refresh()
    return sum(len(index.entries(segment)) for segment in index.covered())


def _walk(below: Path) -> Iterator[Path]:
    return (path for path in below.rglob("*") if path.is_file())


def _bytes(below: Path) -> int:
    return sum(path.stat().st_size for path in _walk(below))


def _files(below: Path) -> int:
    return sum(1 for _ in _walk(below))


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def samples(life: Life, marks: Iterable[int], tell: Callable[[Sample], None] = lambda _: None) -> list[Sample]:
    """Lives on to each of the ascending marks, and samples there."""
    found = []
    for mark in marks:
        life.run(mark - life.batch)
        found.append(life.sample())
        tell(found[-1])
    return found


def main(arguments: list[str]) -> int:
    """JSON lines on standard output, one per mark."""
    parser = argparse.ArgumentParser(prog="python -m spark_cec_lab.bench.aging", description=__doc__)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--footprint-age", default="1000")
    parser.add_argument("--retain-output", default="1000")
    parser.add_argument("--scratch", help="directory in which to live; default: the temp directory")
    options = parser.parse_args(arguments)
    marks = [mark for mark in (1_000, 3_000, 10_000, 30_000, 50_000, 100_000) if mark < options.batches] + [
        options.batches
    ]
    with tempfile.TemporaryDirectory(prefix="aging-", dir=options.scratch) as scratch:
        life = Life(
            Path(scratch), {"footprintAge": options.footprint_age, "output.retainBatches": options.retain_output}
        )
        samples(life, marks, lambda sample: print(json.dumps(asdict(sample)), flush=True))
        life.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
