"""Makes flows into streaming queries: their sessions, their DataFrames, and their starts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from spark_cec.availability.epochs import epoch_checkpoint
from spark_cec.availability.joins import Plan, find_blocked
from spark_cec.availability.union import EpochReads, Member, Union
from spark_cec.pipeline.callback_errors import describe_callback_error
from spark_cec.pipeline.changes_table import EPOCH, KIND
from spark_cec.pipeline.declare import SESSION, Flow, FlowError
from spark_cec.pipeline.epoch_files import find_begin
from spark_cec.pipeline.graph import Graph, GraphError, Part, nearest
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.input_checks import find_pause_ms
from spark_cec.pipeline.options import Within, parse_interval_ms
from spark_cec.pipeline.plans import list_servers, read_plan
from spark_cec.pipeline.replica_checks import (
    list_bounded_columns,
    list_constants,
    list_settings,
    refuse_clock,
    refuse_other_constants,
    refuse_other_rows,
    refuse_unbounded,
)
from spark_cec.pipeline.replicas import Replica, find_interval_ms
from spark_cec.pipeline.runs import RETAINED, RETAINED_KEY, ProtocolRuns
from spark_cec.pipeline.sink_formats import refuse_final_sink
from spark_cec.pipeline.watermarks import refuse_common_watermarks, refuse_lost_delay
from spark_cec.session import MANAGER, MANAGER_KEY
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

FORMAT = "cec"
POLLING_KEY = "spark.sql.streaming.pollingDelay"
POLLING = "100ms"
"""How often a flow without input looks for input. Each look asks the agent, and a pipeline has many flows."""

NEW_KEY = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
"""Off, because a flow that was killed at its first batch has left a file there. The home's lease keeps others out."""

BOUNDS = {"maxRowsPerTrigger", "maxBatchesPerTrigger"}
CATCH_UP_ROWS = "200000"
"""The default bound for the rows of a batch. One batch with all rows would keep its cores from other flows until it
ends, and larger batches are hardly faster."""

POOL_KEY = "spark.scheduler.pool"


class Flows:
    """The flows of a pipeline as queries of one application. Each has a session of its own, with its own conf."""

    def __init__(
        self, spark: SparkSession, graph: Graph, declared: Mapping[str, Flow], home: PipelineHome,
        runs: ProtocolRuns | None = None, replica: Replica | None = None,
    ) -> None:  # fmt: skip
        """Makes the DataFrame of every flow once, to learn the columns of every channel. Starts nothing.

        `runs`: those of the protocol, None with CEC. `replica`: whose flows these are, None without replicas. Raises
        `FlowError`, also for a flow whose replicas may differ, and `GraphError` for a cycle without a declared schema.
        """
        self._spark = spark
        self._graph = graph
        self._declared = declared
        self._home = home
        self._runs = runs
        self._replica = replica
        self._bounded: dict[str, frozenset[str]] = {}
        self._constants: dict[str, tuple[str, ...]] = {}
        self._schemas: dict[str, StructType] = {}
        self._plans: dict[str, Plan] = {}
        self._servers: dict[str, tuple[str, ...]] = {}
        # One session for each flow, for all its starts: Spark keeps a session that has started a query.
        self._sessions: dict[str, SparkSession] = {}
        self._epoch_sessions: dict[str, SparkSession] = {}
        for members in graph.order():
            for name in members:
                self._read_declared_schema(name)
            for name in members:
                self._learn_schema(name, members)

    def schemas(self) -> dict[str, str]:
        """The columns of each channel, as Spark's JSON."""
        return {name: schema.json() for name, schema in self._schemas.items()}

    def bounds(self) -> dict[str, Within]:
        """By flow, how long its rows may wait for an input."""
        return {name: flow.within for name, flow in self._declared.items() if flow.within is not None}

    def keeps(self) -> dict[str, int]:
        """By flow that holds flows upstream if more waits for it: how many stored bytes may wait."""
        return {name: each.keep.most_bytes for name, each in self._declared.items() if each.keep and each.blocks}

    def bounded(self) -> dict[str, frozenset[str]]:
        """By flow of a replica, the columns for which it tells below which time no row will come."""
        return dict(self._bounded)

    def constants(self) -> dict[str, tuple[str, ...]]:
        """By flow of a replica, the dates, times and tables in its program."""
        return dict(self._constants)

    def servers(self) -> dict[str, tuple[str, ...]]:
        """By flow that reads Kafka, the addresses of its servers."""
        return dict(self._servers)

    def settings(self) -> dict[str, dict[str, str]]:
        """By flow of a replica, the settings of its session that can change its rows."""
        return {} if self._replica is None else {name: list_settings(each) for name, each in self._sessions.items()}

    def find_blocked(self, name: str, absent: Collection[str]) -> tuple[str, ...]:
        """The inputs of a flow with `within` whose new rows may wait in a join for rows of the inputs `absent`."""
        return find_blocked(self._plans[name], absent)

    def start(self, name: str) -> StreamingQuery:
        """Starts the query of a flow; its tasks are in the FAIR pool of its name. Raises the errors of Spark."""
        flow = self._declared[name]
        for key, value in self._runs.make_conf(name).items() if self._runs is not None else ():
            self._sessions[name].conf.set(key, value)
        made = self._call_function(name)
        # The replicas compare their programs when they start, and this may be a later start of the flow.
        if name in self._constants:
            refuse_other_constants(name, self._constants[name], list_constants(made))
        self._spark.sparkContext.setLocalProperty(POOL_KEY, name)
        writer = self._make_writer(name, made).option("checkpointLocation", self._home.flow(name))
        if flow.output_mode is not None:
            writer = writer.outputMode(flow.output_mode)
        # The replicas agree on the moments of a source's batches, and one that is behind waits for none.
        if flow.trigger is not None and (self._replica is None or flow.node.inputs):
            writer = writer.trigger(**dict(flow.trigger))
        return writer.start()

    def has_trigger(self, name: str) -> bool:
        """Whether a flow's batches begin at times that its user has chosen."""
        return self._declared[name].trigger is not None

    def start_epoch(self, name: str, query_name: str, checkpoint: str, reads: EpochReads) -> StreamingQuery:
        """Starts a fork of a flow, which reads its inputs so. Raises the errors of Spark.

        Its tasks have a pool of their own, because the flow's may go before them.
        """
        flow = self._declared[name]
        session = self._epoch_sessions.get(name) or self._make_session(flow, is_epoch=True)
        self._epoch_sessions[name] = session
        begins = {each: find_begin(self._home.flow(each), number) for each, number in reads.epochs.items()}
        made: DataFrame = self._call_function(name, session, replace(reads, begins=begins))
        self._spark.sparkContext.setLocalProperty(POOL_KEY, f"{name} epoch")
        writer = made.writeStream.format(FORMAT).queryName(query_name).option("checkpointLocation", checkpoint)
        if flow.trigger is not None:
            writer = writer.trigger(**dict(flow.trigger))
        return writer.start()

    def _make_writer(self, name: str, made: DataFrame | DataStreamWriter) -> DataStreamWriter:
        from pyspark.sql import DataFrame

        return made.writeStream.format(FORMAT).queryName(name) if isinstance(made, DataFrame) else made

    def _read_declared_schema(self, name: str) -> None:
        from pyspark.sql.types import StructType

        schema = self._declared[name].schema
        if schema is not None:
            try:
                self._schemas[name] = StructType.fromDDL(schema) if isinstance(schema, str) else schema  # type: ignore[assignment]
            except Exception as error:
                reason = str(error).strip().splitlines()[0]
                raise FlowError(f"flow {name} has schema={schema!r}, which is no schema: {reason}") from error

    def _learn_schema(self, name: str, members: tuple[str, ...]) -> None:
        node = self._graph.nodes[name]
        unknown = [read for read in node.inputs if read not in self._schemas]
        if unknown:
            cycle = f"{' and '.join(members)} feed {'themselves' if len(members) > 1 else 'itself'}"
            mend = f"declare the columns of {unknown[0]}, @flow(schema='id BIGINT, ...')"
            complaint = f"{name} reads {unknown[0]}, which has no columns yet ({cycle}): {mend}"
            raise GraphError(self._graph.name, [complaint])
        made = self._call_function(name)
        if node.is_sink:
            return
        flow = self._declared[name]
        if flow.within is not None:
            channels = [each for parameter in flow.watermarks for each in flow.list_channels(parameter)]
            self._plans[name] = read_plan(made, {self._home.flow(each): each for each in channels})
        found, declared = _drop_metadata(made.schema), self._schemas.get(name)
        if declared is not None and _list_types(declared) != _list_types(found):
            raise FlowError(
                f"flow {name} is declared with the columns {declared.simpleString()}, and its function answers "
                f"{found.simpleString()}: make them the same"
            )
        self._schemas[name] = found
        if not node.inputs:
            self._servers[name] = list_servers(made)
        if self._replica is not None:
            refuse_other_rows(flow, made)
            self._bounded[name], self._constants[name] = list_bounded_columns(made), list_constants(made)

    def _call_function(
        self, name: str, session: SparkSession | None = None, epoch: EpochReads | None = None
    ) -> Any:
        """Calls the function of a flow; answers its DataFrame or DataStreamWriter.

        `session`: that of an epoch, and `epoch` what it reads; None for the flow itself.
        """
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        flow = self._declared[name]
        if session is None:
            session = self._sessions[name] = self._sessions.get(name) or self._make_session(flow)
        given = [
            session if each == SESSION else self._read_parameter(session, each, flow, epoch)
            for each in flow.parameters
        ]
        _check_key_types(flow, dict(zip(flow.parameters, given, strict=True)))
        try:
            made = flow.function(*given)
        except Exception as error:
            code = getattr(flow.function, "__code__", None)  # a callable object need not be a function
            place = f" ({code.co_filename})" if code else ""
            reason = describe_callback_error(error, code.co_filename if code else "")
            raise FlowError(f"{'sink' if flow.node.is_sink else 'flow'} {name}: {reason}{place}") from error
        wanted = DataStreamWriter if flow.node.is_sink else DataFrame
        if not isinstance(made, wanted) or (isinstance(made, DataFrame) and not made.isStreaming):
            raise FlowError(_describe_wrong_answer(flow, made))
        if flow.tentative and isinstance(made, DataStreamWriter):
            refuse_final_sink(name, made)
        if flow.channels:
            refuse_common_watermarks(flow, made if isinstance(made, DataFrame) else made._df)
        if flow.bucket_ms is not None:
            refuse_lost_delay(flow, made if isinstance(made, DataFrame) else made._df)
        return made

    def _make_session(self, flow: Flow, *, is_epoch: bool = False) -> SparkSession:
        """A session for a flow, or for an epoch of it."""
        from pyspark.sql import SparkSession

        # It has the temporary views, functions and conf of the given session.
        session = SparkSession(self._spark.sparkContext, self._spark._jsparkSession.cloneSession())
        readers = self._graph.readers(flow.node.name)
        if is_epoch:  # the epochs of flows have no names
            has_others = any(self._declared[each].within for each in readers)
            readers = () if has_others else tuple(each for each in readers if self._declared[each].tentative)
        kept = {} if flow.node.kept or not readers else {PREFIX + "output.readers": ",".join(readers)}
        files = session.conf.get(MANAGER_KEY, None) or MANAGER
        conf = {PROVIDER_KEY: PROVIDER, MANAGER_KEY: files, POLLING_KEY: POLLING, NEW_KEY: "false", **kept, **flow.conf}
        if self._replica is not None:
            refuse_clock(flow.node.name, session.conf.get(PREFIX + "sources.quiet", None), conf)
            if not flow.node.inputs:
                place = self._replica.agreements(flow.node.name)
                conf |= {PREFIX + "replica": self._replica.name, PREFIX + "replica.agreements": place}
                conf[PREFIX + "replica.every"] = f"{find_interval_ms(flow)}ms"
        if self._runs is not None and self._runs.takes_part(flow.node.name):
            conf[RETAINED_KEY] = RETAINED  # a line may need older batches than the flow keeps by its conf
        if flow.partitions is not None:
            conf["spark.sql.shuffle.partitions"] = str(flow.partitions)
        for key, value in conf.items():
            session.conf.set(key, value)
        return session

    def _read_parameter(
        self, session: SparkSession, parameter: str, by: Flow, epoch: EpochReads | None
    ) -> DataFrame:
        """The stream of a parameter: the channel of a flow or of its instances; an instance keeps its own rows."""
        channels = [self._read_channel(session, each, by, epoch) for each in by.list_channels(parameter)]
        # Tentative rows must not move a watermark: stable ones would come too late for it.
        if parameter in by.watermarks and not by.tentative:
            column, delay = by.watermarks[parameter]
            # A bucket comes only when the delay has passed, so that no row is behind the rows of an earlier one.
            delay = delay if by.bucket_ms is None else "0 seconds"
            channels = [each.withWatermark(column, delay) for each in channels]
        found = channels[0]
        for each in channels[1:]:
            found = found.unionByName(each)
        return found if by.node.part is None else _filter_rows(by.node.part, by.key[parameter], found, parameter)

    def _read_channel(
        self, session: SparkSession, name: str, by: Flow, epoch: EpochReads | None
    ) -> DataFrame:
        bound = {} if BOUNDS & by.reads.keys() else {"maxRowsPerTrigger": CATCH_UP_ROWS}
        # Flows start in any order, so a reader waits for the log.
        buckets = {} if by.bucket_ms is None else self._describe_union(name, by, by.bucket_ms, epoch)
        # An epoch reads what its flow has not read yet. So it has no name, under which a channel would keep that.
        named = {"reader": by.node.name} if epoch is None else {}
        tentative = {"tentative": "true"} if by.tentative else {}
        options = {"waitForLog": "true", "newColumns": "true", **named, **tentative, **bound, **buckets, **by.reads}
        schema = _add_kind(name, self._schemas[name]) if by.tentative else self._schemas[name]
        stream = session.readStream.format(FORMAT).options(**options).schema(schema)
        return stream.load(self._find_channel(name, epoch))

    def _find_channel(self, name: str, epoch: EpochReads | None) -> str:
        """The channel of a flow: that of its epoch, if an epoch reads it."""
        number = None if epoch is None else epoch.epochs.get(name)
        return self._home.flow(name) if number is None else epoch_checkpoint(self._home.flow(name), number)

    def _describe_union(self, name: str, by: Flow, bucket_ms: int, epoch: EpochReads | None) -> dict[str, str]:
        """The options of a read by buckets: all channels of the flow, and the place of this one among them."""
        copies = self._replica.copies if self._replica is not None and by.node.is_sink else lambda _: ()
        members = {
            channel: Member(
                channel, self._find_channel(channel, epoch), column, parse_interval_ms(delay) or 0,
                not self._graph.nodes[channel].inputs, copies(channel), self._find_wait_ms(channel),
                None if epoch is None else epoch.begins.get(channel), self._graph.nodes[channel].kept,
            )
            for parameter, (column, delay) in by.watermarks.items()
            for channel in by.list_channels(parameter)
        }  # fmt: skip
        _check_time(by, name, members[name].time, self._schemas[name])
        if self._replica is not None and not members[name].is_source:
            refuse_unbounded(by, name, members[name].time, self._bounded[name])
        absent = () if epoch is None else tuple(sorted(epoch.absent))
        # An epoch answers without the inputs that are away, so it has no need to give them up.
        most_wait_ms = by.most_wait_ms if epoch is None else None
        pause_ms = 0 if epoch is None else epoch.pause_ms
        keep = by.keep if epoch is None else None
        # An input that is left out at alpha * X, and is waited for again just below, would come and go.
        most_lag_ms = 0 if epoch is None or by.within is None else by.within.wait_ms // 2
        union = Union(
            bucket_ms, tuple(members[each] for each in sorted(members)), absent, most_wait_ms, pause_ms,
            self._replica is not None, None if keep is None else keep.most_bytes, keep is not None and not by.blocks,
            most_lag_ms=most_lag_ms, silence_ms=None if by.within is None else by.within.wait_ms // 2,
            pause_of_empty_ms=find_pause_ms(self._graph, self._declared, by.node.name),
            yields_ms=_find_yields_ms(by, epoch),
        )  # fmt: skip
        return {"union": json.dumps(asdict(union)), "own": str(sorted(members).index(name))}

    def _find_wait_ms(self, name: str) -> int:
        """How far a flow may be behind before its tentative rows count, in ms; 0 if it gives out none."""
        within = self._declared[name].within
        return 0 if within is None else within.wait_ms


def _find_yields_ms(flow: Flow, epoch: EpochReads | None) -> int:
    """How long an epoch of a flow yields to it. If it delays, or reads another epoch, its rows have waited before.
    """
    if epoch is None or flow.within is None or epoch.pause_ms or epoch.epochs:
        return 0
    return flow.within.yields_ms


def _check_time(flow: Flow, read: str, column: str, schema: StructType) -> None:
    """Raises `FlowError` if the column of a bucket's times is no TIMESTAMP of the channel."""
    from pyspark.sql.types import TimestampType

    found = next((each for each in schema if each.name == column), None)
    if found is None or not isinstance(found.dataType, TimestampType):
        unknown = f"no column of {read}: {nearest(column, schema.names)}"
        kind = unknown if found is None else f"of type {found.dataType.simpleString()}"
        raise FlowError(
            f"flow {flow.node.name} reads {read} by buckets of {column!r}, which is {kind}: give a TIMESTAMP column, "
            f"such as window_time(window) of windows"
        )


def _check_key_types(flow: Flow, given: Mapping[str, Any]) -> None:
    """Raises `FlowError` if the keys have several types: an INT and a BIGINT of one value have different hashes."""
    kinds = {f"{read}.{key}": given[read].schema[key].dataType.simpleString() for read, key in flow.key.items()}
    if len(set(kinds.values())) > 1:
        described = ", ".join(f"{name} is {kind}" for name, kind in sorted(kinds.items()))
        raise FlowError(
            f"flow {flow.node.name}: the keys of its inputs have several types ({described}), so rows that belong "
            f"together would go to different instances: cast the keys in the flows that answer them"
        )


def _filter_rows(part: Part, key: str, rows: DataFrame, read: str) -> DataFrame:
    from pyspark.sql import functions as f

    if key not in rows.columns:
        raise FlowError(f"flow {part.flow}: key {key!r} is no column of {read}: {nearest(key, rows.columns)}")
    quoted = f.col(f"`{key.replace('`', '``')}`")
    return rows.where(f.pmod(f.xxhash64(quoted), f.lit(part.count)) == part.number - 1)


def _describe_wrong_answer(flow: Flow, made: object) -> str:
    from pyspark.sql import DataFrame

    streams = isinstance(made, DataFrame) and made.isStreaming
    kind = f"{'a streaming DataFrame' if streams else type(made).__name__}"
    if isinstance(made, DataFrame) and not streams:
        kind = "a DataFrame that does not stream"
    mend = "a DataStreamWriter, df.writeStream.format(...)" if flow.node.is_sink else "a streaming DataFrame"
    return f"{'sink' if flow.node.is_sink else 'flow'} {flow.node.name} answers {kind}: return {mend}"


def _add_kind(flow: str, schema: StructType) -> StructType:
    """The columns of a channel with those that tell tentative rows from stable ones. Raises `FlowError`."""
    from pyspark.sql.types import StringType, StructField, StructType

    for name in schema.names:
        if name.lower() in (KIND, EPOCH):
            mend = "give the column another name, because readers of tentative rows get one of that name"
            raise FlowError(f"flow {flow} has the column {name}: {mend}")
    return StructType([*schema, StructField(KIND, StringType()), StructField(EPOCH, StringType())])


def _drop_metadata(schema: StructType) -> StructType:
    """The columns without Spark's metadata: a watermark belongs to a query, not to its channel."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])


def _list_types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]
