"""The calls between the shim and the agent: the fields of each request and of its answer.

This module is the schema for both sides. `make messages` writes the Scala classes from it. The shim names a call, and
sends its request as a JSON object: `BeginRequest` is the request of `begin`, and `BeginAnswer` is its answer. A request
with an unknown field, or without a field that it needs, is refused.

Common fields:

| field | meaning |
|---|---|
| `checkpoint` | the checkpoint location of the query, as a URL |
| `home` | the URL of the log |
| `conf` | the session's settings whose keys begin with `spark.sql.streaming.stateStore.` |
| `generation` | the number of the run, from 1 on; 0: no run is known |
| `committed_batch` | V: the last batch that Spark has committed, -1 for none |
| `version` | the version of a store: batch b makes version b + 1 |
| `spool` | the path of a file of rows on this machine, as an Arrow IPC stream |
| `retry` | the shim makes the call a second time, because the agent of the first call died or did not answer |
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeAlias

import msgspec

from spark_cec.checkpoint.policy import Plan
from spark_cec.ids import StoreId
from spark_cec.log.frame import CommitFlags, CommitMeta
from spark_cec.recovery.decide import QueryDecision, QueryFacts
from spark_cec.recovery.overview import FootprintAges, OperatorStanding
from spark_cec.recovery.past_recoveries import Recovery
from spark_cec.recovery.session_settings import SettingsSpan
from spark_cec.recovery.sources import SourceStanding
from spark_cec.recovery.start_messages import StartMessage

Opaque: TypeAlias = dict[str, Any]
"""A JSON object that the shim does not read. It sends the object back as it is."""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON object with known fields."""


class Request(Message, frozen=True, kw_only=True):
    """A request. A subclass names the class of its answer."""

    answer: ClassVar[type[Message]]
    retry: bool = False

    @classmethod
    def call(cls) -> str:
        """The name of the call: `between_batches` for `BetweenBatchesRequest`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Request")).lower()


class Done(Message, frozen=True, kw_only=True):
    """The answer of a call that answers nothing."""


class SourceState(Message, frozen=True, kw_only=True):
    """A source of a query, by Spark's name for it.

    `available`: the offsets that the source still has, as JSON text. `error`: the reason for a missing report. Both are
    None if the source's kind offers no such report.
    """

    name: str
    available: str | None = None
    error: str | None = None


class CheckAnswer(Message, frozen=True, kw_only=True):
    """The log's home, the id of the log there (None: no log), and the settings that the analyzer rule needs."""

    home: str
    log_id: str | None
    mode: str
    accept: bool
    flush_at_stop: bool
    sources_margin: float
    quiet_inputs_ms: float | None
    replayable_sources: tuple[str, ...]
    order_free_functions: bool
    said: tuple[StartMessage, ...]


class CheckRequest(Request, frozen=True, kw_only=True):
    """Refuses a start that cannot work, before it changes anything. `sink_path` is the path of the `cec` sink."""

    answer = CheckAnswer
    checkpoint: str
    conf: dict[str, str]
    sink_path: str | None
    committed_batch: int
    query: QueryFacts


class BeginAnswer(Message, frozen=True, kw_only=True):
    """The run, V, T (`rewound_to`), and the version from which the stores begin (`base`).

    The shim sends the `plan` back with `report`, and the `forecast` by earlier recoveries with the calls of stores.
    `write_at`: when the stores of an executor write their commits (`settings.WriteAt`).
    """

    generation: int
    log_id: str
    committed_batch: int
    rewound_to: int
    base: int
    plan: Opaque
    forecast: Opaque
    write_at: str
    said: tuple[StartMessage, ...]


class BeginRequest(Request, frozen=True, kw_only=True):
    """Begins a run, if the query can continue exactly.

    `log_seen`: the id of the log that `check` found. `named`: Spark records checkpoint ids. `sources` in the order of
    Spark's offset log, None for a query without batches or without state. `session_settings`: the settings of the
    session that a replay needs. `load_waves`: the stores that a core loads one after another. `sink`: how it ends a
    batch (`decide.SinkKind`). `wait_s`: the longest wait for the lease.
    """

    answer = BeginAnswer
    checkpoint: str
    conf: dict[str, str]
    home: str
    log_seen: str | None
    committed_batch: int
    named: bool
    decision: QueryDecision
    sources: tuple[SourceState, ...] | None
    session_settings: dict[str, str]
    load_waves: float
    sink: str
    wait_s: float


class HoldAnswer(Message, frozen=True, kw_only=True):
    """The number of the run from now on."""

    generation: int


class HoldRequest(Request, frozen=True, kw_only=True):
    """Takes the lease for a run that has begun. `had_lease`: the run had it, and its agent died."""

    answer = HoldAnswer
    checkpoint: str
    home: str
    generation: int
    wait_s: float
    had_lease: bool = False


class ReleaseRequest(Request, frozen=True, kw_only=True):
    """Releases the lease of a run, if that run has it."""

    answer = Done
    checkpoint: str
    generation: int


class ResolveAnswer(Message, frozen=True, kw_only=True):
    """The home, the log and the newest run of a query. `log_id` is None without a run; then a log may be created."""

    home: str
    log_id: str | None
    generation: int


class ResolveRequest(Request, frozen=True, kw_only=True):
    """Finds the log of a store that no analyzer rule has prepared."""

    answer = ResolveAnswer
    checkpoint: str
    conf: dict[str, str]


class BatchInputAnswer(Message, frozen=True, kw_only=True):
    """The input in words."""

    words: str


class BatchInputRequest(Request, frozen=True, kw_only=True):
    """Describes the input of batches `first` to `last`. `sources` are names, in the order of Spark's offset log."""

    answer = BatchInputAnswer
    checkpoint: str
    first: int
    last: int
    sources: tuple[str, ...]


class ReplaySettingsAnswer(Message, frozen=True, kw_only=True):
    """The batches in spans of equal settings."""

    spans: tuple[SettingsSpan, ...]


class ReplaySettingsRequest(Request, frozen=True, kw_only=True):
    """Asks for the session settings of batches `first` to `last`."""

    answer = ReplaySettingsAnswer
    checkpoint: str
    first: int
    last: int


class ReplayingRequest(Request, frozen=True, kw_only=True):
    """Records the progress of a replay of batches `first` to `last`. `done` is the newest replayed batch."""

    answer = Done
    checkpoint: str
    generation: int
    first: int
    last: int
    done: int


class ReportAnswer(Message, frozen=True, kw_only=True):
    """`done` is false while a store is missing. `path` is the report's, in the checkpoint's `cec` directory."""

    done: bool
    path: str | None = None


class ReportRequest(Request, frozen=True, kw_only=True):
    """Writes the recovery report once all stores are loaded. `started_ms`: the wall clock at the call of `start()`."""

    answer = ReportAnswer
    checkpoint: str
    home: str
    generation: int
    plan: Opaque
    started_ms: int


class BetweenBatchesAnswer(Message, frozen=True, kw_only=True):
    """Why the stores must write their dirty windows now, if they must.

    `request` names a pending request of `cec flush`. `thin` describes the source that is about to lose what a recovery
    needs; `deletes`: that source deletes records.
    """

    request: str | None
    thin: str | None
    deletes: bool


class BetweenBatchesRequest(Request, frozen=True, kw_only=True):
    """Asks for orders between two batches. `version` is committed by Spark. `sources`: None if nothing was asked."""

    answer = BetweenBatchesAnswer
    checkpoint: str
    home: str
    version: int
    sources: tuple[SourceState, ...] | None


class FlushedAnswer(Message, frozen=True, kw_only=True):
    """A line for each store that is not written up to the version, then the errors of executors; empty without one."""

    unwritten: tuple[str, ...]


class BoundaryRequest(Request, frozen=True, kw_only=True):
    """Notes that all input up to `quiet_ms`, ms since the epoch, is in the output of batches up to `batch`.

    `columns`: by column, the time below which no later batch has a row.
    """

    answer = Done
    home: str
    batch: int
    generation: int
    quiet_ms: int | None
    columns: dict[str, int]


class FlushedRequest(Request, frozen=True, kw_only=True):
    """Compares a flush with the log, and answers the request of `cec flush`, if there is one.

    `failed`: the errors of the executors.
    """

    answer = FlushedAnswer
    checkpoint: str
    home: str
    version: int
    generation: int
    failed: tuple[str, ...]
    request: str | None


class CheckpointDueAnswer(Message, frozen=True, kw_only=True):
    """Whether the flow must write all its stores now."""

    due: bool


class CheckpointDueRequest(Request, frozen=True, kw_only=True):
    """Asks the protocol of a pipeline whether a flow checkpoints after `batch`. `stopping`: the query has ended."""

    answer = CheckpointDueAnswer
    checkpoint: str
    batch: int
    stopping: bool


class CheckpointTakenRequest(Request, frozen=True, kw_only=True):
    """Records a flow's checkpoint after `batch`. `failed`: the errors of stores."""

    answer = Done
    checkpoint: str
    home: str
    batch: int
    failed: tuple[str, ...]


class AcknowledgeAnswer(Message, frozen=True, kw_only=True):
    """The lowest D of all stores; None if a store is missing."""

    dirty_from: int | None


class AcknowledgeRequest(Request, frozen=True, kw_only=True):
    """Asks before which batch no replay begins, once `version` is committed."""

    answer = AcknowledgeAnswer
    home: str
    version: int


class TrimAnswer(Message, frozen=True, kw_only=True):
    """The removed segments."""

    removed: tuple[str, ...]


class TrimRequest(Request, frozen=True, kw_only=True):
    """Removes segments that no recovery, reader or setting needs. `retained`: the batches that Spark keeps."""

    answer = TrimAnswer
    home: str
    version: int
    generation: int
    retained: int


class OpenLogAnswer(Message, frozen=True, kw_only=True):
    """The id of the log."""

    log_id: str


class OpenLogRequest(Request, frozen=True, kw_only=True):
    """Opens the log.

    If `log_id` is given, the log must have it. `keep`: the log stays open until `close_log`. `again`: this JVM had the
    log open before, so a missing log is lost, and none is created.
    """

    answer = OpenLogAnswer
    home: str
    conf: dict[str, str]
    log_id: str | None
    again: bool = False
    keep: bool = True


class CloseLogAnswer(Message, frozen=True, kw_only=True):
    """Whether the log was open."""

    closed: bool


class CloseLogRequest(Request, frozen=True, kw_only=True):
    """Closes the log for this JVM."""

    answer = CloseLogAnswer
    home: str


class ReplayStep(Message, frozen=True, array_like=True):
    """If all windows dirty since before version `before` are checked, a recovery replays `cost` input tuples."""

    before: int
    cost: int


class ExtentStep(Message, frozen=True, array_like=True):
    """If the `windows` with footprints before version `before` are rewritten, a recovery scans `cost` records."""

    before: int
    cost: int
    windows: int


class CommitPlan(Message, frozen=True, kw_only=True):
    """The plan for a store's next commit; the fields are those of `checkpoint.policy.Plan`."""

    replay_bound: int
    extent_records: int
    extent_per_window: float
    share: float
    floor_ms: float
    forced_before: int
    rewrite_windows: int
    worth_bound: int | None
    replay_steps: tuple[ReplayStep, ...]
    extent_steps: tuple[ExtentStep, ...]

    @classmethod
    def of(cls, plan: Plan) -> CommitPlan:
        """The message for `plan`."""
        return cls(
            replay_bound=plan.replay_bound,
            extent_records=plan.extent_records,
            extent_per_window=plan.extent_per_window,
            share=plan.share,
            floor_ms=plan.floor_ms,
            forced_before=plan.forced_before,
            rewrite_windows=plan.rewrite_windows,
            worth_bound=plan.worth_bound,
            replay_steps=tuple([ReplayStep(step.before, step.cost) for step in plan.replay_steps]),
            extent_steps=tuple([ExtentStep(step.before, step.cost, step.windows) for step in plan.extent_steps]),
        )


class FooterNumbers(Message, frozen=True, kw_only=True):
    """The fields of a commit's footer that the shim uses; `digest` is a decimal number of 64 bits, without a sign.

    `sketched`: numbers are left out of the digest. `normalized`: they are in it in one form.
    """

    checkpoint_id: str
    open_windows: int
    digest: str
    sketched: bool
    normalized: bool

    @classmethod
    def of(cls, meta: CommitMeta) -> FooterNumbers:
        """The message for a footer."""
        return cls(
            checkpoint_id=meta.checkpoint_id.hex(),
            open_windows=meta.open_windows,
            digest=str(meta.digest),
            sketched=bool(meta.flags & CommitFlags.SKETCHED),
            normalized=bool(meta.flags & CommitFlags.NORMALIZED),
        )


class LoadAnswer(Message, frozen=True, kw_only=True):
    """An eventual checkpoint: its rows in a spool file, the head's numbers, and the plan of the next commit.

    `inputs`: the shuffle records per version that a replay makes again, where they were counted. `scanned`: the
    records that the load read. `chain`: the frames that it read. Times are in ms.
    """

    spool: str | None
    rows: int
    scanned: int
    chain: int
    footer: FooterNumbers
    dirty_from: int
    dirty_windows: int
    inputs: dict[str, int]
    plan: CommitPlan
    recovery_estimate_ms: float
    agent_ms: float


class LoadRequest(Request, frozen=True, kw_only=True):
    """Loads the eventual checkpoint of a store at a version.

    `checkpoint_id`: that of one commit; None: the newest commit counts. With `log_id`, the log must have that id. With
    `checkpoint`, only attempts count that Spark may have committed. A run decides that by `committed_batch` (at its
    start) and `generation`; without `committed_batch`, Spark's logs as they are now decide.
    """

    answer = LoadAnswer
    home: str
    conf: dict[str, str]
    log_id: str | None
    store: StoreId
    version: int
    checkpoint_id: str | None
    checkpoint: str | None
    committed_batch: int | None
    generation: int
    retained: int
    forecast: Opaque | None


class FooterAnswer(Message, frozen=True, kw_only=True):
    """The footer's numbers; None if the frame is lost. `checkpoint_id` may still be known then, by Spark's record."""

    footer: FooterNumbers | None
    checkpoint_id: str | None


class FooterRequest(Request, frozen=True, kw_only=True):
    """Asks for the footer of a store's frame, whose records may be damaged; the fields are those of `load`."""

    answer = FooterAnswer
    home: str
    store: StoreId
    version: int
    checkpoint: str | None
    committed_batch: int | None
    generation: int


class TimedBatch(Message, frozen=True, kw_only=True):
    """The newest batch that Spark timed, and its time in ms."""

    batch: int
    ms: int


class DurableCommit(Message, frozen=True, kw_only=True):
    """A durable commit: q (`extent`), u (`replay`), its bytes in the log, and the plan of the next commit.

    `agent_us`: the time of the call, divided by its commits.
    """

    plan: CommitPlan
    extent: int
    replay: int
    recovery_estimate_ms: float
    bytes: int
    agent_us: int


class StoreCommit(Message, frozen=True, kw_only=True):
    """One version of one store; the counts are those of `log.meta.CommitMeta`.

    `spool`: the records; None: the commit has none. `live`: pairs of a version and a number of windows with footprints
    there: all of them (`live_is_whole`), or the changes. `since_start_ms`: the time since the run began.
    """

    store: StoreId
    version: int
    generation: int
    retained: int
    forecast: Opaque | None
    checkpoint_id: str
    base_checkpoint_id: str | None
    spool: str | None
    open_windows: int
    dirty_from: int
    dirty_windows: int
    opened: int
    checked: int
    closed: int
    inputs: int
    digest: str
    state_rows: int
    elapsed_us: int
    flags: int
    live_is_whole: bool
    live: tuple[tuple[int, int], ...]
    timed_batch: TimedBatch | None = None
    since_start_ms: int = 0


class OutputRows(Message, frozen=True, kw_only=True):
    """The rows that one task gives to the `cec` sink: one output frame, invisible until a manifest names it.

    `frame`: its id, in hex digits.
    """

    frame: str
    batch: int
    partition: int
    attempt: int
    generation: int
    rows: int
    spool: str


class AppendAnswer(Message, frozen=True, kw_only=True):
    """The commits, in the order of the request. The output is durable, too."""

    commits: tuple[DurableCommit, ...]


class AppendRequest(Request, frozen=True, kw_only=True):
    """Commits stores of one query and writes output of its tasks, with as few writes as possible.

    With `log_id`, the log must have that id.
    """

    answer = AppendAnswer
    home: str
    log_id: str | None
    commits: tuple[StoreCommit, ...]
    outputs: tuple[OutputRows, ...]


class NamedCommit(Message, frozen=True, kw_only=True):
    """A commit of a store, by its checkpoint id."""

    store: StoreId
    version: int
    checkpoint_id: str


class FindWritesAnswer(Message, frozen=True, kw_only=True):
    """Those that the log has, by their ids."""

    commits: tuple[str, ...]
    frames: tuple[str, ...]


class FindWritesRequest(Request, frozen=True, kw_only=True):
    """Looks in the log for commits, and for frames of output by their ids."""

    answer = FindWritesAnswer
    home: str
    commits: tuple[NamedCommit, ...]
    frames: tuple[str, ...]


class LoadedRequest(Request, frozen=True, kw_only=True):
    """Records a store's load at a recovery. `digest_ok`: None if nothing was compared.

    `held`: the changes that the hold rule ignored. `unsure`: the windows that may differ, if the user accepts that.
    """

    answer = Done
    home: str
    store: StoreId
    version: int
    generation: int
    forecast: Opaque | None
    ec_load_ms: float
    digest_ok: bool | None
    held: int
    unsure: tuple[str, ...]


class PublishAnswer(Message, frozen=True, kw_only=True):
    """Whether this manifest was the batch's first. The first one wins."""

    first: bool


class ColumnTimes(Message, frozen=True, kw_only=True):
    """The times in a column of the rows of one task, in ms since the epoch, rounded down; None without a time.

    `nulls`: the rows without a time.
    """

    column: str
    first_ms: int | None
    last_ms: int | None
    nulls: int


class PublishRequest(Request, frozen=True, kw_only=True):
    """Makes a batch of output visible. `schema` is Spark's JSON, `sources` are names in Spark's order.

    `times`: of each task and each TIMESTAMP column.
    """

    answer = PublishAnswer
    checkpoint: str
    home: str
    batch: int
    frames: tuple[str, ...]
    rows: int
    schema: str
    truncate: bool
    generation: int
    sources: tuple[str, ...]
    times: tuple[ColumnTimes, ...] = ()


class ViewSchemaAnswer(Message, frozen=True, kw_only=True):
    """The schemas (Spark's JSON) of the newest and the oldest batch; none before the first batch."""

    schemas: tuple[str, ...]


class ViewSchemaRequest(Request, frozen=True, kw_only=True):
    """Asks for the columns of a log's output. `path`: a checkpoint, or the path of a sink.

    `may_wait`: a log that does not exist yet has none. `may_lose`: unreadable batches are skipped.
    """

    answer = ViewSchemaAnswer
    path: str
    conf: dict[str, str]
    may_wait: bool
    may_lose: bool


class ViewOffsetsAnswer(Message, frozen=True, kw_only=True):
    """The first batch, the last one to read, and the newest one worth reading; -1 for none.

    `of` identifies the last batch beyond its number. `quiet_ms`: the stream has read all rows that come of input up to
    then, in ms since the epoch; None if that is unknown, or if the session has no `sources.quiet`. `columns`: by
    column, the time below which no row will come.
    """

    first: int
    last: int
    newest: int
    of: str | None = None
    quiet_ms: int | None = None
    columns: dict[str, int] = {}


class ViewOffsetsRequest(Request, frozen=True, kw_only=True):
    """Asks for the bounds of a log's output, since a time, or for the end of a stream's next batch.

    With `after`, a batch, the stream has read up to there; `up_to`, `max_batches` and `max_rows` bound its next batch.
    `seen` identifies `after`; `checked`: an earlier call compared it. `source` distinguishes the sources of one query.
    `may_wait`: a log that does not exist yet has no batches. `may_lose`: batches that are no longer kept are skipped.
    """

    answer = ViewOffsetsAnswer
    path: str
    conf: dict[str, str]
    may_wait: bool
    may_lose: bool = False
    starting_timestamp_ms: int | None = None
    after: int | None = None
    up_to: int | None = None
    max_batches: int | None = None
    max_rows: int | None = None
    seen: str | None = None
    checked: bool = False
    source: str = ""


class NoteReaderRequest(Request, frozen=True, kw_only=True):
    """Records the progress of a stream, so that the log can delete output that no reader needs.

    `begins`: the stream begins after that batch, whatever an earlier stream of that name has read. `resumes`: its run
    goes on after that batch. `ends`: one of its batches ends with that batch of the log; Spark may run the newest
    `retained` ones again. Without any, its run is over.
    """

    answer = Done
    path: str
    conf: dict[str, str]
    reader: str
    may_wait: bool
    begins: int | None = None
    resumes: int | None = None
    ends: int | None = None
    retained: int = 0


class ViewSplitsAnswer(Message, frozen=True, kw_only=True):
    """The pieces of work of a read, for `read_split`, and the lost output that the read skips."""

    splits: tuple[Opaque, ...]
    lost: tuple[str, ...]


class AgreeAnswer(Message, frozen=True, kw_only=True):
    """Where the batch ends in the source, as an offset in JSON; None if nobody has decided.

    `follows`: it was decided before this call.
    """

    end: str | None
    follows: bool


class AgreeRequest(Request, frozen=True, kw_only=True):
    """Asks where a batch ends of a flow that reads a source, in all replicas of the pipeline.

    `place`: the URL of the flow's agreements. `replica`: the one that asks. `batch`: its number; -1 for the place in
    the source at which the first batch begins. `start` and `end`: offsets of the source, in JSON; the batch may end
    elsewhere than at `end`. `decides`: if nobody has decided, the batch ends there.
    """

    answer = AgreeAnswer
    place: str
    replica: str
    batch: int
    start: str
    end: str
    decides: bool


class BucketEndAnswer(Message, frozen=True, kw_only=True):
    """Where a stream's next batch ends: `until_ms`, `batch` and `first` as in the request.

    They are those of the request if no bucket became stable. `of` as for other streams. `newest`: as `batch`, but one
    more if rows that could be read are left for the next batch. `waits_for`: the channels that hold rows of others
    back, slowest first, and `held_ms` for how long each. `back`: the channels for which the query does not wait, and
    which are back. `given_up`: those for which it waits no more, because too much has waited, or for too long.

    `replica`: the replica whose channel has the batch, empty if there are no replicas; `batch`, `first` and `of` are
    about that channel. `since`: where the batch begins in it, if the stream has read another replica before; else None.
    `others`: by other replica, the last batch of its channel that the stream does not need any more.

    `unread`: the channels of the union, if it has a bound for what waits. For each of them, `due_bytes` and
    `waiting_bytes` as in `availability.keep.Unread`.
    """

    until_ms: int
    batch: int
    first: int
    of: str | None
    newest: int
    waits_for: tuple[str, ...]
    held_ms: tuple[int, ...]
    back: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    replica: str = ""
    since: int | None = None
    others: dict[str, int] = {}
    unread: tuple[str, ...] = ()
    due_bytes: tuple[int, ...] = ()
    waiting_bytes: tuple[int, ...] = ()


class BucketEndRequest(Request, frozen=True, kw_only=True):
    """Asks where a stream's next batch ends. The stream reads its channel by buckets, with others of one union.

    `union`: the whole union, as `availability.union.Union` in JSON, and `own` the channel's place in it. `query` tells
    the streams of one query from those of another one, and `source` a stream from the others of its query. `leader`:
    the first stream that Spark has asked in this run, whose every call begins a plan; `leads`: whether that is this
    one.

    `until_ms`: all rows below were given out. `batch`: the newest batch that was looked at, whose identity is `seen`.
    `first`: the oldest batch that may have rows at `until_ms` or later. `max_rows`: the next batch ends earlier if it
    would have more rows. `checked`: the stream has asked before. `may_lose`: unreadable batches are skipped. `replica`:
    the one whose channel `batch`, `first` and `seen` are about, empty for none. `absent`: the channels for which the
    query does not wait; None: those of the union.
    """

    answer = BucketEndAnswer
    path: str
    conf: dict[str, str]
    may_wait: bool
    may_lose: bool
    union: Opaque
    own: int
    query: str
    source: str
    leader: str
    leads: bool
    until_ms: int
    batch: int
    first: int
    seen: str | None = None
    checked: bool = False
    max_rows: int | None = None
    replica: str = ""
    absent: tuple[str, ...] | None = None


class BucketLeaveRequest(Request, frozen=True, kw_only=True):
    """The run of a stream by buckets is over, so the agent forgets it. The fields as in `BucketEndRequest`."""

    answer = Done
    query: str
    source: str


class BucketRange(Message, frozen=True, kw_only=True):
    """The rows whose time in a column is at `after_ms` or later, but below `until_ms`.

    The stream has looked at no batch from `fresh_from` on before. A row of such a batch that is below `after_ms` is
    late. One without a time belongs to the read. `reader`: the stream, under whose name late rows are kept aside; None:
    they are not kept. `replicated`: another replica must find the same rows late, whatever it has read. So a row is
    late if the channel's earlier batches say so: by their times less `delay_ms`, in whole buckets of `bucket_ms`.
    """

    column: str
    after_ms: int
    until_ms: int
    fresh_from: int
    reader: str | None = None
    replicated: bool = False
    delay_ms: int = 0
    bucket_ms: int = 1


class ViewSplitsRequest(Request, frozen=True, kw_only=True):
    """Plans a read of a view.

    Bounds for `output`: batches `first` to `last`, or the `whole` log; with `buckets`, only the rows in them. Bounds
    for `windows`: `operator`, `store`, and `version` (None: the newest). `late`: the rows that came too late for the
    stream `reader`. `seen` identifies the last batch at the first planning of the read. `schema` (Spark's JSON) is the
    reader's. `may_lose`: lost output is skipped. `or_flow`: the output is that of an epoch, and its reader is a fork.
    If `seen` is no batch of it, the rows are those of the flow's own batches.
    """

    answer = ViewSplitsAnswer
    path: str
    conf: dict[str, str]
    view: str
    first: int = 0
    last: int = 0
    whole: bool = False
    may_lose: bool = False
    seen: str | None = None
    schema: str | None = None
    operator: int = 0
    store: str = "default"
    version: int | None = None
    buckets: BucketRange | None = None
    reader: str | None = None
    or_flow: bool = False


class ReadSplitAnswer(Message, frozen=True, kw_only=True):
    """The rows, in a spool file that the caller deletes, and the lost output that the read skipped."""

    spool: str | None
    rows: int
    lost: tuple[str, ...]


class ReadSplitRequest(Request, frozen=True, kw_only=True):
    """Reads one piece of work. `columns`: None for all. `may_lose`: lost output is skipped."""

    answer = ReadSplitAnswer
    path: str
    conf: dict[str, str]
    split: Opaque
    columns: tuple[str, ...] | None = None
    may_lose: bool = False


class EpochAnswer(Message, frozen=True, kw_only=True):
    """The newest epoch of a flow. `number`: None if it never had one.

    `begins_after`: the flow's last batch in the epoch's past; the epoch's output begins after it. `follows`: the last
    one with rows. `newest`: the newest batch of the epoch's output, `begins_after` without any. `has_rows`: one of
    them has rows. `closed_after`: None while the epoch is open. Else the flow's output up to that batch replaces the
    epoch's. `has_passed`: the flow's output up to `follows` replaces that of all epochs before this one.
    """

    number: int | None = None
    begins_after: int = -1
    follows: int = -1
    newest: int = -1
    has_rows: bool = False
    closed_after: int | None = None
    has_passed: bool = False


class EpochRequest(Request, frozen=True, kw_only=True):
    """Asks for the newest epoch of the flow at the checkpoint `path`."""

    answer = EpochAnswer
    path: str
    conf: dict[str, str]


class EpochReading(Message, frozen=True, kw_only=True):
    """What a stream by buckets has of an epoch, and the read that its last batch needs.

    `replica`: whose epoch it is, empty without replicas. `number`: the epoch. The read has the rows from `after_ms` to
    `until_ms`, event time in ms since 1970, of its batches `since` to `batch`, whose identity is `of`. `first`: the
    oldest batch that may have rows at `until_ms` or later.
    """

    replica: str
    number: int
    after_ms: int
    since: int
    until_ms: int
    batch: int
    first: int
    of: str | None = None


class EpochEndAnswer(Message, frozen=True, kw_only=True):
    """The epoch whose rows count in the stream's next batch; None if none does."""

    reading: EpochReading | None = None


class EpochEndRequest(Request, frozen=True, kw_only=True):
    """Asks what the next batch of a stream by buckets reads of an epoch. Ask it after `BucketEndRequest`.

    `union`, `own`, `query` and `source` as there. `until_ms`: where the stable rows of the batch end. `present`: what
    the stream has of an epoch; None for nothing.
    """

    answer = EpochEndAnswer
    path: str
    conf: dict[str, str]
    union: Opaque
    own: int
    query: str
    source: str
    until_ms: int
    present: EpochReading | None = None


class CreateFileRequest(Request, frozen=True, kw_only=True):
    """Creates a file of a checkpoint, whole: `path` is relative to the checkpoint, `content` is in base 64."""

    answer = Done
    checkpoint: str
    path: str
    content: str
    overwrites: bool


class ReadFileAnswer(Message, frozen=True, kw_only=True):
    """The bytes of the file, in base 64; None: there is no such file."""

    content: str | None


class ReadFileRequest(Request, frozen=True, kw_only=True):
    """Reads a file of a checkpoint, whole."""

    answer = ReadFileAnswer
    checkpoint: str
    path: str


class ListFilesAnswer(Message, frozen=True, kw_only=True):
    """The names of the files directly in the directory, sorted; empty if the directory is missing."""

    names: tuple[str, ...]


class ListFilesRequest(Request, frozen=True, kw_only=True):
    """Lists a directory of a checkpoint."""

    answer = ListFilesAnswer
    checkpoint: str
    directory: str


class DeleteFilesRequest(Request, frozen=True, kw_only=True):
    """Deletes the files of a checkpoint that exist."""

    answer = Done
    checkpoint: str
    paths: tuple[str, ...]


class Reach(Message, frozen=True, kw_only=True):
    """How far back a recovery would go: from batch `first` on, which makes so many `batches`.

    `planned_ms`: when Spark planned that batch, in ms since the epoch, None if unknown. `text`: with the offsets.
    `sources`: what the sources that can tell still had at `asked_ms`; empty if the recovery needs nothing of them.
    """

    first: int
    batches: int
    planned_ms: int | None
    text: str
    sources: tuple[SourceStanding, ...]
    asked_ms: int | None


class LookAnswer(Message, frozen=True, kw_only=True):
    """What the log says of a query after `batch`, -1 before the first one.

    `wall_ms`: of the newest record, None without one. `recovery_ms`: the estimate of a recovery, 0 if there is none.
    `recoveries`: the newest, oldest first. `damages`: in words.
    """

    batch: int
    wall_ms: int | None
    settings: str
    operators: tuple[OperatorStanding, ...]
    recovery_ms: float
    reach: Reach | None
    recoveries: tuple[Recovery, ...]
    damages: tuple[str, ...]
    stored_bytes: int


class LookRequest(Request, frozen=True, kw_only=True):
    """Asks how a query keeps its bounds, for a page of Spark's user interface. The log must be open."""

    answer = LookAnswer
    checkpoint: str
    home: str


class StoreAges(Message, frozen=True, kw_only=True):
    """The open windows of a store at its `version`, by the age of their newest record."""

    store: StoreId
    version: int
    ages: tuple[FootprintAges, ...]


class AgesAnswer(Message, frozen=True, kw_only=True):
    """The stores of the log that this agent has written."""

    stores: tuple[StoreAges, ...]


class AgesRequest(Request, frozen=True, kw_only=True):
    """Asks how old the windows of a log are, for a page of Spark's user interface. The log must be open."""

    answer = AgesAnswer
    home: str


class PipelineLookAnswer(Message, frozen=True, kw_only=True):
    """The home of a pipeline, its graph and its newest status; None if they are missing or unreadable."""

    home: str | None
    graph: Opaque | None
    status: Opaque | None


class PipelineLookRequest(Request, frozen=True, kw_only=True):
    """Asks for the pipeline with this home."""

    answer = PipelineLookAnswer
    home: str


REQUESTS: dict[str, type[Request]] = {each.call(): each for each in Request.__subclasses__()}
"""The requests by the names of their calls."""
