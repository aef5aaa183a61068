"""The agent's calls, by the names and messages of `agent.messages`.

A failed call answers `{"error": {"kind": ..., "parents": [...], "message": ...}}`: `kind` is the name of the
exception's class, `parents` are the names of its base classes.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from spark_cec.agent import messages
from spark_cec.agent.agreements import AgreementCalls
from spark_cec.agent.appends import AppendCalls
from spark_cec.agent.channel_looks import ChannelLooks
from spark_cec.agent.checkpoint_files import CheckpointFileCalls, NewestEntries
from spark_cec.agent.epoch_reads import EpochReadCalls
from spark_cec.agent.epochs import EpochCalls
from spark_cec.agent.loads import Loads
from spark_cec.agent.logs import OpenLogs
from spark_cec.agent.looks import LookCalls
from spark_cec.agent.output import OutputCalls
from spark_cec.agent.output_cache import OutputCache
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.agent.queries import QueryCalls
from spark_cec.agent.reader import ReaderCalls
from spark_cec.agent.spool import Spool
from spark_cec.agent.starts import StartCalls
from spark_cec.agent.stores import StoreCalls
from spark_cec.agent.unions import UnionCalls
from spark_cec.errors import CecError, NoAnswer, find_cause, mend_of

_WITHOUT_LEASE = frozenset({"check", "begin", "hold", "release"})
"""The calls that take the lease, come before it, or come after it may have been lost."""


class Calls:
    """Dispatches calls by name; safe for several threads."""

    def __init__(self, spool_path: str | None = None, inherited: Sequence[str] = ()) -> None:
        self.spool = Spool(spool_path, inherited)
        self._logs = OpenLogs()
        protocols = ProtocolCalls(self._logs)
        self._starts = starts = StartCalls(self._logs, protocols)
        driver = QueryCalls(self._logs, protocols)
        loads = Loads(self.spool)
        stores = StoreCalls(self._logs, self.spool, loads)
        output_cache = OutputCache()
        appends = AppendCalls(self._logs, output_cache)
        newest = NewestEntries()
        output = OutputCalls(self._logs, protocols, newest, starts.run_of)
        files = CheckpointFileCalls(starts.confirm_lease, newest)
        readers = ReaderCalls(self._logs, self.spool, output_cache, protocols, loads)
        channels = ChannelLooks(readers, time.monotonic)
        unions = UnionCalls(readers, channels, time.monotonic)
        epochs, looks = EpochCalls(readers), LookCalls(self._logs)
        self._by_name = {
            call.call(): (msgspec.json.Decoder(call), handler)
            for call, handler in _list_handlers(
                starts, driver, protocols, stores, appends, output, readers, unions, epochs, files, looks,
                AgreementCalls(), EpochReadCalls(readers, unions, channels, epochs),
            ).items()
        }

    def answer(self, name: str, arguments: str) -> str:
        """Answers one call; never raises."""
        try:
            decoder, handler = self._by_name[name]
            request = decoder.decode(arguments)
            if name not in _WITHOUT_LEASE:
                self._logs.refuse_fenced(getattr(request, "checkpoint", None))
            with self._logs.serving():
                # `msgspec.json` would write NaN as null, which is another number for the shim.
                return json.dumps(msgspec.to_builtins(handler(request)), allow_nan=False)
        except Exception as error:  # the JVM must always get an answer
            return _encode_failure(error, _explain_error(error))

    def tidy(self) -> None:
        """Closes logs and files that are long unused; called at intervals."""
        self._logs.tidy()
        self.spool.touch()

    def close(self) -> None:
        """Closes all logs and deletes the spool."""
        self._logs.close()
        self._starts.close()
        self.spool.close()


def _list_handlers(
    starts: StartCalls,
    driver: QueryCalls,
    protocols: ProtocolCalls,
    stores: StoreCalls,
    appends: AppendCalls,
    output: OutputCalls,
    readers: ReaderCalls,
    unions: UnionCalls,
    epochs: EpochCalls,
    files: CheckpointFileCalls,
    looks: LookCalls,
    agreements: AgreementCalls,
    epoch_reads: EpochReadCalls,
) -> dict[type[messages.Request], Callable[[Any], messages.Message]]:
    return {
        messages.CheckRequest: starts.check,
        messages.BeginRequest: starts.begin,
        messages.HoldRequest: starts.hold,
        messages.ReleaseRequest: starts.release,
        messages.ResolveRequest: starts.resolve,
        messages.BatchInputRequest: driver.batch_input,
        messages.ReplaySettingsRequest: driver.replay_settings,
        messages.ReplayingRequest: driver.replaying,
        messages.ReportRequest: driver.report,
        messages.BetweenBatchesRequest: driver.between_batches,
        messages.FlushedRequest: driver.flushed,
        messages.CheckpointDueRequest: protocols.due,
        messages.CheckpointTakenRequest: protocols.taken,
        messages.AcknowledgeRequest: driver.acknowledge,
        messages.TrimRequest: driver.trim,
        messages.OpenLogRequest: stores.open_log,
        messages.CloseLogRequest: stores.close_log,
        messages.LoadRequest: stores.load,
        messages.FooterRequest: stores.footer,
        messages.AppendRequest: appends.append,
        messages.FindWritesRequest: appends.find,
        messages.LoadedRequest: stores.loaded,
        messages.PublishRequest: output.publish,
        messages.BoundaryRequest: output.note_boundary,
        messages.ViewSchemaRequest: readers.schema,
        messages.ViewSplitsRequest: readers.splits,
        messages.ViewOffsetsRequest: readers.offsets,
        messages.AgreeRequest: agreements.agree,
        messages.BucketEndRequest: unions.end,
        messages.BucketLeaveRequest: epoch_reads.leave,
        messages.EpochRequest: epochs.newest,
        messages.EpochEndRequest: epoch_reads.end,
        messages.NoteReaderRequest: readers.note,
        messages.ReadSplitRequest: readers.read_split,
        messages.CreateFileRequest: files.create,
        messages.DeleteFilesRequest: files.delete,
        messages.ReadFileRequest: files.read,
        messages.ListFilesRequest: files.list,
        messages.LookRequest: looks.look,
        messages.AgesRequest: looks.ages,
        messages.PipelineLookRequest: looks.look_at_pipeline,
    }


def _explain_error(error: Exception) -> str:
    """One sentence with the remedy, if there is one; the traceback for an unforeseen error."""
    mend = mend_of(error)
    if isinstance(error, CecError):
        return str(error) if mend is None or mend in str(error) else f"{error}; {mend}"
    if mend is not None and isinstance(error, OSError):
        return f"{error.filename}: {mend}" if error.filename is not None else mend
    if isinstance(error, NoAnswer):
        mend = "see to it, and start the query again"
        return f"{error.filename}: the storage does not answer ({error.strerror}): {mend}"
    return "".join(traceback.format_exception(error))


def _encode_failure(error: Exception, message: str) -> str:
    parents = [each.__name__ for each in type(error).__mro__[1:] if issubclass(each, CecError)]
    if find_cause(error, NoAnswer) is not None:
        parents.append(NoAnswer.__name__)
    return json.dumps({"error": {"kind": type(error).__name__, "parents": parents, "message": message}})
