"""The class that a user makes: a pipeline that is declared, and run."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from spark_cec.pipeline.declare import Declaration
from spark_cec.pipeline.status import PipelineStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_cec.pipeline.capacity import RecoveryPolicy
    from spark_cec.pipeline.running import RunningPipeline


class Pipeline(Declaration):
    """A graph of flows: each a streaming query of its own, joined by the logs that they write.

    `home`: the directory, a path or a URL, for the checkpoints and channels of all flows. `cycles`: whether flows may
    feed themselves. `protocol`: how they are checkpointed (docs/protocols.md), of which `cec` lets each flow come back
    by itself, and the others take all of them back to a line of checkpoints, every `checkpoint_interval`; then
    `release` says when rows leave the pipeline, with a `checkpoint`, after which nothing takes them back, or `at-once`.

        shop = Pipeline("shop", home="/data/shop")

        @shop.flow
        def bids(spark): ...

        @shop.sink(priority=5)
        def alerts(bids): ...
    """

    def start(
        self, spark: SparkSession, only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None
    ) -> RunningPipeline:
        """Starts all flows in the application of `spark`, which has our jar; answers what looks after them.

        With `only`, these flows alone: they read what is in the channels of the others. `recovery` says what is done
        when many executors are lost at once.

        The graph is checked first, then every function is called, then the home is taken: up to there nothing has
        started. Raises what these say: `GraphError`, `FlowError`, `Fenced`, `LogLocationError`, and what a function
        raises.
        """
        from spark_cec.pipeline.start import start_pipeline

        return start_pipeline(self, spark, only=only, recovery=recovery)

    def run(
        self, spark: SparkSession, only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None
    ) -> PipelineStatus:
        """`start`, and waits until nothing runs any more: for good, unless all flows end by themselves or fail.

        An interruption stops all flows. Raises `PipelineFailed` if a flow has failed.
        """
        return self.start(spark, only, recovery).wait()
