"""Flows as streaming queries: the DataFrame of each, and its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_cec.pipeline.callback_errors import describe_callback_error
from spark_cec.pipeline.declare import SESSION, Flow, FlowError
from spark_cec.pipeline.graph import Graph, GraphError, Part, nearest
from spark_cec.pipeline.home import PipelineHome
from spark_cec.pipeline.runs import RETAINED, RETAINED_KEY, ProtocolRuns
from spark_cec.pipeline.watermarks import refuse_common_watermarks
from spark_cec.settings import PREFIX, PROVIDER, PROVIDER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

FORMAT = "cec"
POLLING_KEY = "spark.sql.streaming.pollingDelay"
POLLING = "100ms"
"""How often a flow without input looks for some: each look asks the agent, and there are many flows."""

NEW_KEY = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
"""Off: a flow that was killed at its first batch has left a file there, and a home has a lease against strangers."""

BOUNDS = {"maxRowsPerTrigger", "maxBatchesPerTrigger"}
CATCH_UP_ROWS = "200000"
"""Rows that a batch of a flow that is far behind takes, unless it says something else: one batch with all that there is
would keep its cores from the flows beside it until it ends, and larger batches are hardly faster."""

POOL_KEY = "spark.scheduler.pool"


class Flows:
    """The flows of a pipeline as queries of one application, each in a session of its own with its own conf."""

    def __init__(
        self, spark: SparkSession, graph: Graph, declared: Mapping[str, Flow], home: PipelineHome,
        runs: ProtocolRuns | None = None,
    ) -> None:  # fmt: skip
        """Makes the DataFrame of every flow once, which starts nothing, and learns the columns of every channel.

        Raises `FlowError`, and `GraphError` for a cycle none of whose flows says its schema.
        """
        self._spark = spark
        self._graph = graph
        self._declared = declared
        self._home = home
        self._runs = runs
        self._schemas: dict[str, StructType] = {}
        # One for each flow, through all its lives: Spark keeps a session that has started a query until it ends itself.
        self._sessions: dict[str, SparkSession] = {}
        for members in graph.order():
            for name in members:
                self._learn_declared(name)
            for name in members:
                self._learn(name, members)

    def schemas(self) -> dict[str, str]:
        """The columns of each channel, as Spark's JSON."""
        return {name: schema.json() for name, schema in self._schemas.items()}

    def start(self, name: str) -> StreamingQuery:
        """Starts the query of a flow, in the calling thread's FAIR pool of its name. Raises what Spark raises."""
        flow = self._declared[name]
        for key, value in self._runs.make_conf(name).items() if self._runs is not None else ():
            self._sessions[name].conf.set(key, value)
        made = self._made(name)
        self._spark.sparkContext.setLocalProperty(POOL_KEY, name)
        writer = self._writer_of(name, made).option("checkpointLocation", self._home.flow(name))
        if flow.output_mode is not None:
            writer = writer.outputMode(flow.output_mode)
        if flow.trigger is not None:
            writer = writer.trigger(**dict(flow.trigger))
        return writer.start()

    def _writer_of(self, name: str, made: DataFrame | DataStreamWriter) -> DataStreamWriter:
        from pyspark.sql import DataFrame

        return made.writeStream.format(FORMAT).queryName(name) if isinstance(made, DataFrame) else made

    def _learn_declared(self, name: str) -> None:
        from pyspark.sql.types import StructType

        schema = self._declared[name].schema
        if schema is not None:
            try:
                self._schemas[name] = StructType.fromDDL(schema) if isinstance(schema, str) else schema  # type: ignore[assignment]
            except Exception as error:
                told = str(error).strip().splitlines()[0]
                raise FlowError(f"flow {name} has schema={schema!r}, which is none: {told}") from error

    def _learn(self, name: str, members: tuple[str, ...]) -> None:
        node = self._graph.nodes[name]
        unknown = [read for read in node.inputs if read not in self._schemas]
        if unknown:
            cycle = f"{' and '.join(members)} feed {'themselves' if len(members) > 1 else 'itself'}"
            mend = f"say the columns of {unknown[0]}, @flow(schema='id BIGINT, ...')"
            complaint = f"{name} reads {unknown[0]}, which has no columns yet ({cycle}): {mend}"
            raise GraphError(self._graph.name, [complaint])
        made = self._made(name)
        if node.is_sink:
            return
        found, said = _plain(made.schema), self._schemas.get(name)
        if said is not None and _types(said) != _types(found):
            raise FlowError(
                f"flow {name} is declared with the columns {said.simpleString()}, and its function answers "
                f"{found.simpleString()}: make them the same"
            )
        self._schemas[name] = found

    def _made(self, name: str) -> Any:
        """What the function answers, in a session of its own."""
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        flow = self._declared[name]
        session = self._sessions.get(name) or self._session(flow)
        self._sessions[name] = session
        given = [session if each == SESSION else self._read(session, each, flow) for each in flow.parameters]
        _check_keys(flow, dict(zip(flow.parameters, given, strict=True)))
        try:
            made = flow.function(*given)
        except Exception as error:
            code = getattr(flow.function, "__code__", None)  # what is callable need not be a function
            place = f" ({code.co_filename})" if code else ""
            said = describe_callback_error(error, code.co_filename if code else "")
            raise FlowError(f"{'sink' if flow.node.is_sink else 'flow'} {name}: {said}{place}") from error
        wanted = DataStreamWriter if flow.node.is_sink else DataFrame
        if not isinstance(made, wanted) or (isinstance(made, DataFrame) and not made.isStreaming):
            raise FlowError(_not_what_it_should(flow, made))
        if flow.channels:
            refuse_common_watermarks(flow, made if isinstance(made, DataFrame) else made._df)
        return made

    def _session(self, flow: Flow) -> SparkSession:
        from pyspark.sql import SparkSession

        # With the temporary views, functions and conf of the one that was given.
        session = SparkSession(self._spark.sparkContext, self._spark._jsparkSession.cloneSession())
        readers = self._graph.readers(flow.node.name)
        kept = {} if flow.node.kept or not readers else {PREFIX + "output.readers": ",".join(readers)}
        conf = {PROVIDER_KEY: PROVIDER, POLLING_KEY: POLLING, NEW_KEY: "false", **kept, **flow.conf}
        if self._runs is not None and self._runs.takes_part(flow.node.name):
            conf.setdefault(RETAINED_KEY, RETAINED)
        if flow.partitions is not None:
            conf["spark.sql.shuffle.partitions"] = str(flow.partitions)
        for key, value in conf.items():
            session.conf.set(key, value)
        return session

    def _read(self, session: SparkSession, parameter: str, by: Flow) -> DataFrame:
        """What a parameter stands for: the channel of a flow, or those of its instances; of an instance, its rows."""
        channels = [self._channel(session, each, by) for each in by.reads_of(parameter)]
        if parameter in by.watermarks:
            channels = [each.withWatermark(*by.watermarks[parameter]) for each in channels]
        found = channels[0]
        for each in channels[1:]:
            found = found.unionByName(each)
        return found if by.node.part is None else _rows_of(by.node.part, by.key[parameter], found, parameter)

    def _channel(self, session: SparkSession, name: str, by: Flow) -> DataFrame:
        bound = {} if BOUNDS & by.reads.keys() else {"maxRowsPerTrigger": CATCH_UP_ROWS}
        # Flows start in any order.
        options = {"waitForLog": "true", "newColumns": "true", "reader": by.node.name, **bound, **by.reads}
        stream = session.readStream.format(FORMAT).options(**options).schema(self._schemas[name])
        return stream.load(self._home.flow(name))


def _check_keys(flow: Flow, given: Mapping[str, Any]) -> None:
    """Of one type: the hash of an INT is another one than that of a BIGINT of the same value."""
    kinds = {f"{read}.{key}": given[read].schema[key].dataType.simpleString() for read, key in flow.key.items()}
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{name} is {kind}" for name, kind in sorted(kinds.items()))
        raise FlowError(
            f"flow {flow.node.name}: the keys of its inputs are of several types ({said}), so that rows that belong "
            f"together would go to different instances: cast them in the flows that answer them"
        )


def _rows_of(part: Part, key: str, rows: DataFrame, read: str) -> DataFrame:
    from pyspark.sql import functions as f

    if key not in rows.columns:
        raise FlowError(f"flow {part.flow}: key {key!r} is no column of {read}: {nearest(key, rows.columns)}")
    quoted = f.col(f"`{key.replace('`', '``')}`")
    return rows.where(f.pmod(f.xxhash64(quoted), f.lit(part.count)) == part.number - 1)


def _not_what_it_should(flow: Flow, made: object) -> str:
    from pyspark.sql import DataFrame

    streams = isinstance(made, DataFrame) and made.isStreaming
    kind = f"{'a streaming DataFrame' if streams else type(made).__name__}"
    if isinstance(made, DataFrame) and not streams:
        kind = "a DataFrame that does not stream"
    mend = "a DataStreamWriter, df.writeStream.format(...)" if flow.node.is_sink else "a streaming DataFrame"
    return f"{'sink' if flow.node.is_sink else 'flow'} {flow.node.name} answers {kind}: let it return {mend}"


def _plain(schema: StructType) -> StructType:
    """Without what Spark keeps about columns: a watermark is a query's own, not its channel's."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]
