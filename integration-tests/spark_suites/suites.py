"""Which suites are run, and why others are not."""

from __future__ import annotations

_STREAMING = "org.apache.spark.sql.streaming."
_EXECUTION = "org.apache.spark.sql.execution.streaming."

OWN: tuple[str, ...] = (
    "org.apache.spark.sql.cec.suites.CecStateStoreContractSuite",
    "org.apache.spark.sql.cec.suites.CecStateDataSourceReadSuite",
    "org.apache.spark.sql.cec.suites.CecStateDataSourceChangesSuite",
    "org.apache.spark.sql.cec.suites.CecAggregationSuite",
    "org.apache.spark.sql.cec.suites.CecForeachBatchSuite",
    "org.apache.spark.sql.cec.suites.CecEngineSuite",
    *(f"org.apache.spark.sql.cec.suites.Cec{kind}JoinSuite" for kind in ("Inner", "Outer", "FullOuter", "LeftSemi")),
)
"""Ours, in `scala/`: Spark's abstract suites, which take a provider, with our one; and what Spark has no suite for."""

SUITES: tuple[str, ...] = (
    *OWN,
    _STREAMING + "StreamingDeduplicationSuite",
    _STREAMING + "StreamingDeduplicationWithinWatermarkSuite",
    _STREAMING + "StreamingSessionWindowSuite",
    _STREAMING + "FlatMapGroupsWithStateSuite",
    _STREAMING + "FlatMapGroupsWithStateWithInitialStateSuite",
    _STREAMING + "EventTimeWatermarkSuite",
    _EXECUTION + "EventTimeWatermarkWithWatermarkDefInSelectSuite",
    _STREAMING + "MultiStatefulOperatorsSuite",
    _STREAMING + "StreamSuite",
    _STREAMING + "StreamingQuerySuite",
    _STREAMING + "StreamingQueryManagerSuite",
    _STREAMING + "TriggerAvailableNowSuite",
    _STREAMING + "StreamingSelfUnionSuite",
    _STREAMING + "StreamingQueryHashPartitionVerifySuite",
    _STREAMING + "StreamingQueryOptimizationCorrectnessSuite",
    _STREAMING + "StreamingStateStoreFormatCompatibilitySuite",
    _STREAMING + "StreamingAggregationDistributionSuite",
    _STREAMING + "StreamingDeduplicationDistributionSuite",
    _STREAMING + "StreamingSessionWindowDistributionSuite",
    _STREAMING + "FlatMapGroupsWithStateDistributionSuite",
    _EXECUTION + "MicroBatchExecutionSuite",
    _EXECUTION + "StreamingQueryCheckpointMetadataSuite",
    _EXECUTION + "state.StateStoreRDDSuite",
    _EXECUTION + "state.StreamingAggregationStateManagerSuite",
    _EXECUTION + "state.StreamingSessionWindowStateManagerSuite",
    "org.apache.spark.sql.execution.datasources.v2.state.StateDataSourceSQLConfigSuite",
)

LEFT_OUT: dict[str, str] = {
    "RocksDB*Suite, *WithVCFSuite, *V4Suite": "set Spark's RocksDB provider themselves",
    "TransformWithState*, ListState*, MapState*, ValueState*, Timer*, StreamRealTimeMode*": (
        "transformWithState and real-time mode, which Spark ties to its RocksDB provider and we refuse at start"
    ),
    "SymmetricHashJoinStateManager*Suite": "does not link: a constructor of 4.2 has more parameters on 4.3",
    "StreamingQueryListenerSuite, StreamingQueryStatusAndProgressSuite": (
        "abort: they make a StateOperatorProgress as in 4.2, and on 4.3 that has other parameters"
    ),
    "StateStoreCoordinatorStreamingSuite, StateStoreInstanceMetricSuite": "set Spark's two providers themselves",
    "StateDataSourceNegativeTestSuite": "no store is read: it is about options that the reader refuses",
    "FlatMapGroupsInPandasWithStateSuite": "needs Spark's source tree for its Python workers",
    "continuous.*": "continuous processing has no state",
    "Of joins, the tests with RocksDBStateStoreProvider in their names": "Spark's provider, not ours; half of the time",
    "Of aggregations, 'changing schema of state … schema check off'": (
        "both of Spark's checks are off, and what is read then lies behind the row in memory: it need not fail"
    ),
}
"""What is not run, and why."""


def find(names: list[str]) -> list[str]:
    """The classes of `names`: a short name of the list, or any full class name. Raises `ValueError` for another."""
    short = {suite.rsplit(".", 1)[-1]: suite for suite in SUITES}
    unknown = [name for name in names if name not in short and "." not in name]
    if unknown:
        raise ValueError(f"no suite {', '.join(unknown)}: the list is {', '.join(short)}")
    return [short.get(name, name) for name in names] or list(SUITES)
