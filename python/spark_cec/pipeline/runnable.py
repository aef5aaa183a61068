"""The class of users: a pipeline that they declare and run."""

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
    """A graph of flows: streaming queries, which their logs join.

    `home`: the directory, a path or a URL, for the checkpoints and channels of all flows. `cycles`: whether the graph
    may have cycles. `protocol`: the checkpointing protocol (docs/protocols.md). With `cec` each flow recovers by
    itself. Any other protocol takes a checkpoint every `checkpoint_interval`, and a failure takes all flows back to a
    line of checkpoints. Then rows leave the pipeline with a `checkpoint`, when no failure can take them back, or
    `at-once` (`release`).

        shop = Pipeline("shop", home="/data/shop")

        @shop.flow
        def bids(spark): ...

        @shop.sink(priority=5)
        def alerts(bids): ...
    """

    def start(
        self, spark: SparkSession, only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None,
        replica: str | None = None,
    ) -> RunningPipeline:  # fmt: skip
        """Starts all flows in the application of `spark`, which has the jar of Spark CEC; answers the running pipeline.

        `only`: start these flows alone; they read the present channels of the others. `recovery`: the policy for a loss
        of many executors at once. `replica`: "a" or "b", if two applications run the pipeline (docs/replicas.md).

        Nothing starts before all checks: of the graph, of the functions, which this calls, and of the home. Raises
        `GraphError`, `FlowError`, `Fenced`, `LogLocationError`, and the errors of the functions.
        """
        from spark_cec.pipeline.start import start_pipeline

        return start_pipeline(self, spark, only=only, recovery=recovery, replica=replica)

    def run(
        self, spark: SparkSession, only: Collection[str] | None = None, recovery: RecoveryPolicy | None = None,
        replica: str | None = None,
    ) -> PipelineStatus:  # fmt: skip
        """Starts all flows as `start`, and waits until all are over; most pipelines run until they are stopped.

        An interruption stops all flows. Raises `PipelineFailed` if a flow has failed.
        """
        return self.start(spark, only, recovery, replica).wait()
