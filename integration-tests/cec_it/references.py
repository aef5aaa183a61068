"""Results of undisturbed runs with Spark's default state store provider, computed once each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cec_it import feeds, results
from cec_it.driver import FOREACH, Job, Query, last_batch, start
from cec_it.results import Batches

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class References:
    """The undisturbed results, by plan, source and size of the job."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self._spark = spark.newSession()
        self._spark.conf.set(PROVIDER_KEY, SPARKS_OWN)
        self._root = root
        self._known: dict[tuple[str, str, int, int], Batches] = {}

    def prepare(self, job: Job) -> None:
        """Compute what the job's queries need, all at once: they share the cores better than one after the other."""
        wanted = {self._key(query, job): query for query in job.queries}
        self._run(job, [query for key, query in wanted.items() if key not in self._known])

    def get(self, query: Query, job: Job) -> Batches:
        """The undisturbed result of one query of the job."""
        self.prepare(replace(job, queries=(query,)))
        return self._known[self._key(query, job)]

    def _key(self, query: Query, job: Job) -> tuple[str, str, int, int]:
        return query.plan, query.source, job.batches, job.rows

    def _run(self, job: Job, queries: Iterable[Query]) -> None:
        root = self._root / f"{len(list(self._root.iterdir()))}"
        own = replace(job, root=str(root), queries=tuple(replace(query, sink=FOREACH) for query in queries), conf={})
        if not own.queries:
            return
        feeds.write_files(own.events, own.batches, own.rows)
        run_undisturbed(self._spark, own)
        for query in own.queries:
            self._known[self._key(query, job)] = results.last_recorded(own.out(query))


def run_undisturbed(spark: SparkSession, job: Job) -> None:
    """Run all queries of the job to their end in this process; raises what fails first."""
    running = [(query, start(spark, job, query)) for query in job.queries]
    for query, streaming in running:
        try:
            if query.source == feeds.FILES:
                streaming.processAllAvailable()
            else:
                wait_for_batch(streaming, last_batch(job))
        finally:
            streaming.stop()


def wait_for_batch(streaming: StreamingQuery, batch: int) -> None:
    """Wait until a query has run `batch`; raises its error if it fails before."""
    while (streaming.lastProgress or {"batchId": -1})["batchId"] < batch:
        if streaming.awaitTermination(0.05):
            raise AssertionError(f"{streaming.name} ended before batch {batch}")
