"""Makes flows into streaming queries: their sessions, their DataFrames, and their starts."""

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
        runs: ProtocolRuns | None = None,
    ) -> None:  # fmt: skip
        """Makes the DataFrame of every flow once, to learn the columns of every channel. Starts nothing.

        `runs`: those of the protocol, None with CEC. Raises `FlowError`, and `GraphError` for a cycle without a
        declared schema.
        """
        self._spark = spark
        self._graph = graph
        self._declared = declared
        self._home = home
        self._runs = runs
        self._schemas: dict[str, StructType] = {}
        # One session for each flow, for all its starts: Spark keeps a session that has started a query.
        self._sessions: dict[str, SparkSession] = {}
        for members in graph.order():
            for name in members:
                self._read_declared_schema(name)
            for name in members:
                self._learn_schema(name, members)

    def schemas(self) -> dict[str, str]:
        """The columns of each channel, as Spark's JSON."""
        return {name: schema.json() for name, schema in self._schemas.items()}

    def start(self, name: str) -> StreamingQuery:
        """Starts the query of a flow; its tasks are in the FAIR pool of its name. Raises the errors of Spark."""
        flow = self._declared[name]
        for key, value in self._runs.make_conf(name).items() if self._runs is not None else ():
            self._sessions[name].conf.set(key, value)
        made = self._call_function(name)
        self._spark.sparkContext.setLocalProperty(POOL_KEY, name)
        writer = self._make_writer(name, made).option("checkpointLocation", self._home.flow(name))
        if flow.output_mode is not None:
            writer = writer.outputMode(flow.output_mode)
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
        found, declared = _drop_metadata(made.schema), self._schemas.get(name)
        if declared is not None and _list_types(declared) != _list_types(found):
            raise FlowError(
                f"flow {name} is declared with the columns {declared.simpleString()}, and its function answers "
                f"{found.simpleString()}: make them the same"
            )
        self._schemas[name] = found

    def _call_function(self, name: str) -> Any:
        """Calls the function of a flow, in the flow's session; answers its DataFrame or DataStreamWriter."""
        from pyspark.sql import DataFrame
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        flow = self._declared[name]
        session = self._sessions.get(name) or self._make_session(flow)
        self._sessions[name] = session
        given = [session if each == SESSION else self._read_parameter(session, each, flow) for each in flow.parameters]
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
        if flow.channels:
            refuse_common_watermarks(flow, made if isinstance(made, DataFrame) else made._df)
        return made

    def _make_session(self, flow: Flow) -> SparkSession:
        from pyspark.sql import SparkSession

        # It has the temporary views, functions and conf of the given session.
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

    def _read_parameter(self, session: SparkSession, parameter: str, by: Flow) -> DataFrame:
        """The stream of a parameter: the channel of a flow or of its instances; an instance keeps its own rows."""
        channels = [self._read_channel(session, each, by) for each in by.list_channels(parameter)]
        if parameter in by.watermarks:
            channels = [each.withWatermark(*by.watermarks[parameter]) for each in channels]
        found = channels[0]
        for each in channels[1:]:
            found = found.unionByName(each)
        return found if by.node.part is None else _filter_rows(by.node.part, by.key[parameter], found, parameter)

    def _read_channel(self, session: SparkSession, name: str, by: Flow) -> DataFrame:
        bound = {} if BOUNDS & by.reads.keys() else {"maxRowsPerTrigger": CATCH_UP_ROWS}
        # Flows start in any order, so a reader waits for the log.
        options = {"waitForLog": "true", "newColumns": "true", "reader": by.node.name, **bound, **by.reads}
        stream = session.readStream.format(FORMAT).options(**options).schema(self._schemas[name])
        return stream.load(self._home.flow(name))


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


def _drop_metadata(schema: StructType) -> StructType:
    """The columns without Spark's metadata: a watermark belongs to a query, not to its channel."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType, True) for field in schema])


def _list_types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]
