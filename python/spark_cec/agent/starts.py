"""The calls of a query's start: `check` before anything is written, `begin` for a run, and the lease of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass

from spark_cec.adapters.fsspec_storage import open_storage, same_place
from spark_cec.agent.lease import CheckpointLeases, has_leases
from spark_cec.agent.logs import OpenLogs, cec_directory, home_of, index_root
from spark_cec.agent.messages import (
    BeginAnswer,
    BeginRequest,
    CheckAnswer,
    CheckRequest,
    Done,
    HoldAnswer,
    HoldRequest,
    ReleaseRequest,
    ResolveAnswer,
    ResolveRequest,
    SourceState,
)
from spark_cec.agent.owner import claim_log, external_log, owns, refuse_log_of_another, refuse_taken_over_log
from spark_cec.agent.protocols import ProtocolCalls
from spark_cec.checkpoint.recovery_target import load_tuning
from spark_cec.errors import GONE, Fenced, LogLocationError
from spark_cec.log.home import absolute_home, is_inside, read_log_id, relative_home
from spark_cec.log.storage import Storage
from spark_cec.recovery.decide import (
    LogFacts,
    QueryDecision,
    QueryFacts,
    RecoveryPlan,
    SinkKind,
    StartOrders,
    choose_write_at,
    decide_start,
    nothing_to_replay,
    refuse_log,
    refuse_provider,
    refuse_stray_commits,
    refuse_under_protocol,
)
from spark_cec.recovery.facts import Places, read_start_facts
from spark_cec.recovery.forecast import forecast
from spark_cec.recovery.generations import has_committed, newest_held
from spark_cec.recovery.lost_output import describe_lost_output, describe_other_sink
from spark_cec.recovery.migrated_away import refuse_migrated_query
from spark_cec.recovery.query_files import FALLBACK, QUERY
from spark_cec.recovery.query_runs import begin_run, has_begun_log, has_held, hold_run, refuse_replaced_run
from spark_cec.recovery.replay_input import read_replay_input
from spark_cec.recovery.rollback import refuse_during_rollback
from spark_cec.recovery.sources import check_at_start, parse_sources
from spark_cec.recovery.spark_logs import committed_batch, list_logs
from spark_cec.recovery.start_messages import (
    StartMessage,
    describe_damage,
    describe_eager_operators,
    describe_new_owner,
    describe_plan,
    describe_write_at,
)
from spark_cec.recovery.unfinished_copy import refuse_unfinished_copy
from spark_cec.settings import Mode, Settings, parse_settings
from spark_cec.version import __version__

_CLAIM_WAIT_S = 5.0
"""The longest wait for another start to claim a log."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A start of the query: its settings, and its places, of which `home` is the log's URL."""

    settings: Settings
    checkpoint: str
    home: str
    places: Places

    @classmethod
    def of(cls, request: BeginRequest) -> _Start:
        checkpoint, home = request.checkpoint, request.home
        places = Places(open_storage(checkpoint), cec_directory(checkpoint), open_storage(home))
        return cls(parse_settings(request.conf), checkpoint, home, places)


class StartCalls:
    """The calls of the analyzer rule, and the leases of the runs.

    Between two calls of a start this class keeps nothing, because the agent may die between them. The caller passes the
    answer of `check` to `begin`.
    """

    def __init__(self, logs: OpenLogs, protocols: ProtocolCalls) -> None:
        self._logs = logs
        self._protocols = protocols
        self._leases = CheckpointLeases()

    def check(self, request: CheckRequest) -> CheckAnswer:
        """Refuses a start that cannot work, before it changes anything of the query."""
        settings = parse_settings(request.conf)
        index_root(settings)  # raises if its place cannot be used
        if settings.autotune:
            load_tuning()  # raises without its libraries
        checkpoint, query = request.checkpoint, request.query
        own = cec_directory(checkpoint)
        refuse_unfinished_copy(open_storage(checkpoint))
        refuse_provider(query, open_storage(checkpoint).url)
        if settings.protocol is not None and settings.protocol.takes_part:
            refuse_under_protocol(query, settings.protocol.flow)
        refuse_migrated_query(own)
        refuse_during_rollback(own)
        refuse_stray_commits(checkpoint, *list_logs(open_storage(checkpoint)))
        facts = _read_log_facts(checkpoint, own, settings, request.sink_path, query, request.committed_batch)
        refuse_log(facts)
        refuse_log_of_another(checkpoint, facts.home)
        open_storage(facts.home).probe_writable()
        return CheckAnswer(
            home=facts.home,
            log_id=facts.found_id,
            mode=settings.mode.value,
            accept=settings.accepts_divergence,
            flush_at_stop=settings.flush_at_stop,
            sources_margin=settings.sources_margin,
            quiet_inputs_ms=settings.quiet_inputs_ms,
            replayable_sources=tuple(settings.replayable_sources),
            order_free_functions=settings.order_free_functions,
            said=tuple(StartMessage(warning) for warning in settings.warnings),
        )

    def begin(self, request: BeginRequest) -> BeginAnswer:
        """Begins a run. Changes nothing of the query before step 4, and so nothing unless it can continue exactly.

        1. Take the lease, so that no other run writes. A query without state of ours needs no lease.
        2. Read the facts, and decide where the query continues.
        3. Compare the input of the replay with the sources.
        4. Take the run's number, create the log if it is missing, and claim it.
        5. Open the log, and announce the run to the protocol.

        Raises `InputGone` if input of the replay is gone and the user does not accept that. Raises `Fenced` if another
        run has the lease, or if V has changed meanwhile. Step 5 raises `RestartNeeded` if a flow is not at its line.
        """
        start, decision, committed = _Start.of(request), request.decision, request.committed_batch
        own, messages = start.places.own, list[StartMessage]()
        with ExitStack() as leased:
            if decision.provider:
                leased.enter_context(self._hold_for_start(request))  # 1
                _refuse_if_overtaken(start, committed)
            else:
                leased.enter_context(self._hold_external_log(request))
            former = refuse_log_of_another(start.checkpoint, start.home)
            if former is not None:
                messages.append(describe_new_owner(start.home, former, start.checkpoint))
            orders, found = self._decide(start, committed, request)  # 2
            plan = orders.plan
            write_at = choose_write_at(
                start.settings.write_at, decision, SinkKind(request.sink), appends=start.places.log.can_append
            )
            if _needs_input(plan, decision) and request.sources is not None:
                messages.append(_compare_input(start, plan, request.sources))  # 3
            run = begin_run(
                start.places.checkpoint, own, start.places.log, relative_home(start.checkpoint, start.home),
                request.conf, {**asdict(decision), "write_at": write_at.value}, __version__, request.log_seen,
                request.session_settings,                holds=decision.provider,
            )  # fmt: skip # 4
            claim_log(start.checkpoint, start.home)
            if orders.forgets_fallback:
                FALLBACK.delete(own)
        self._logs.get(start.home, start.settings, run.log_id)  # 5
        self._protocols.begin(start.settings, start.checkpoint, start.home, run.generation, committed)
        expected = forecast(own, request.load_waves, autotune=start.settings.autotune)
        how = f"{decision.mode} ({decision.reason})"
        bounds = f"{start.settings.describe()} writeAt={write_at.value}"
        messages += [*found, *describe_plan(orders, how, bounds, start.home)]
        messages += describe_write_at(start.settings.write_at, write_at) if decision.provider else []
        messages += describe_eager_operators(decision.operators, asked=start.settings.mode is Mode.EAGER)
        return BeginAnswer(
            generation=run.generation,
            log_id=run.log_id,
            committed_batch=plan.committed_batch,
            rewound_to=plan.rewound_to,
            base=plan.base,
            plan=plan.to_json(),
            forecast=asdict(expected),
            write_at=write_at.value,
            said=tuple(messages),
        )

    def _decide(
        self, start: _Start, committed: int, request: BeginRequest
    ) -> tuple[StartOrders, list[StartMessage]]:
        """The orders of a start after batch `committed`, and messages on damage in the log.

        Raises `LogLocationError` if the log that `check` saw is gone.
        """
        log_id = read_log_id(start.places.log)
        if log_id is None and request.log_seen is not None:
            raise LogLocationError(start.home, GONE)
        if log_id is None:  # without a log there is nothing to plan
            return StartOrders(nothing_to_replay(committed)), []
        log = self._logs.get(start.home, start.settings, log_id)
        log.catalog.refresh(asks_sizes=True)
        with log.catalog.naming_places():
            facts = read_start_facts(
                start.places, log.home, log.catalog.index, committed,
                is_ours=request.decision.provider, named=request.named,
            )  # fmt: skip
        orders = decide_start(facts)
        messages = describe_damage(log.home, log.catalog.damages)
        messages += describe_lost_output(log.storage, log.catalog.index, facts.published, committed)
        if _has_cec_sink(start.settings, request):
            messages += describe_other_sink(log.storage, facts.published, committed)
        return orders, messages

    @contextmanager
    def _hold_for_start(self, request: BeginRequest) -> Iterator[None]:
        """Holds the lease for the call. The run takes it again in its own thread, because Spark may refuse the start.

        Calls for the checkpoint do not fail any more because an earlier run lost its lease.
        """
        taken = self._take_lease(request.checkpoint, request.home, request.wait_s, alone=True)
        try:
            self._logs.unfence(request.checkpoint)
            yield
        finally:
            if taken:
                self._leases.release(request.checkpoint)

    @contextmanager
    def _hold_external_log(self, request: BeginRequest) -> Iterator[None]:
        """Holds the lock of a log outside the checkpoint, so that no other checkpoint claims the log at this moment.

        If the storage has no locks, two copies of a checkpoint may both claim it, and then one overwrites the other.
        """
        log, key = external_log(request.checkpoint, request.home), f"the log at {request.home}"
        taken = False
        if log is not None:
            # A query without state needs no lock for anything else. If a run has the lock, its owner is named below.
            with suppress(LogLocationError, Fenced):
                taken = self._leases.hold(key, log, min(request.wait_s, _CLAIM_WAIT_S), alone=True)
        try:
            yield
        finally:
            if taken:
                self._leases.release(key)

    def hold(self, request: HoldRequest) -> HoldAnswer:
        """Takes the lease of a run that has begun; `Fenced` if another process has it.

        A run makes this call before its first batch, and again whenever it commits a batch or its agent has died. The
        first call fails if Spark's commits changed since the run began. A later call fails if a later run took the
        lease. Each call fails if another checkpoint owns the log, if the state was migrated, or if a rollback is
        unfinished. After a failure all calls for the checkpoint fail. If the run had the lease, those for its log fail,
        too.
        """
        checkpoint = request.checkpoint
        try:
            generation = self._hold(checkpoint, request.home, request.generation, request.wait_s)
        except Exception as error:
            if not self._leases.has(checkpoint):  # a later run here may have the lease
                self._logs.fence(checkpoint, request.home if request.had_lease else None, str(error))
            raise
        self._logs.unfence(checkpoint)
        return HoldAnswer(generation=generation)

    def _hold(self, checkpoint: str, home: str, generation: int, wait_s: float) -> int:
        own = cec_directory(checkpoint)
        can_lease, goes_on = has_leases(own), self._leases.run_of(checkpoint) == generation
        if goes_on and not own.can_append:  # a batch asks an object store for nothing
            self.confirm_lease(checkpoint, home)
            return generation
        if goes_on or not can_lease or has_held(own, generation):
            refuse_replaced_run(own, checkpoint, generation, by_begun=not can_lease)  # without a wait for the lock
        if goes_on:
            return generation
        with ExitStack() as undo:
            if self._take_lease(checkpoint, home, wait_s):
                undo.callback(self._leases.release, checkpoint)
            refuse_taken_over_log(checkpoint, home)
            refuse_migrated_query(own)
            refuse_during_rollback(own)
            generation = hold_run(open_storage(checkpoint), own, generation, has_lease=can_lease)
            self._leases.note_run(checkpoint, generation)
            self._protocols.continue_run(checkpoint, generation)
            undo.pop_all()
        return generation

    def run_of(self, checkpoint: str) -> int | None:
        """The run that has the lease of the checkpoint in this process."""
        return self._leases.run_of(checkpoint)

    def confirm_lease(self, checkpoint: str, home: str | None = None) -> None:
        """Raises `Fenced` if this process had the lease of a run, and cannot be sure of it any more.

        After a failure all calls for the checkpoint fail, and those for the log at `home`.
        """
        try:
            self._leases.confirm(checkpoint)
        except Fenced as lost:
            self._leases.release(checkpoint)
            self._logs.fence(checkpoint, home, str(lost))
            raise

    def _take_lease(self, checkpoint: str, home: str, wait_s: float, *, alone: bool = False) -> bool:
        log = external_log(checkpoint, home)
        return self._leases.hold(checkpoint, cec_directory(checkpoint), wait_s, log, alone=alone)

    def release(self, request: ReleaseRequest) -> Done:
        """Releases the lease of a run. Another run, or a start, may have it by now."""
        if self._leases.run_of(request.checkpoint) == request.generation:
            self._leases.release(request.checkpoint)
        return Done()

    def resolve(self, request: ResolveRequest) -> ResolveAnswer:
        """Answers home, log and generation for a store that has no data from the rule.

        A session without our extension writes under that number. After a rollback it must not be that of a run before.
        """
        own = cec_directory(request.checkpoint)
        query = QUERY.read(own)
        if query is None:
            home = home_of(request.checkpoint, parse_settings(request.conf), None)
            return ResolveAnswer(home=home, log_id=None, generation=0)
        home = absolute_home(request.checkpoint, query["log_home"])
        return ResolveAnswer(home=home, log_id=query["log_id"], generation=max(query["generation"], newest_held(own)))

    def close(self) -> None:
        """Releases all leases."""
        self._leases.close()


def _read_log_facts(
    checkpoint: str, own: Storage, settings: Settings, sink_path: str | None, starting: QueryFacts, committed: int
) -> LogFacts:
    query = QUERY.read(own)
    home = home_of(checkpoint, settings, sink_path)
    recorded = None if query is None else absolute_home(checkpoint, query["log_home"])
    if recorded not in (None, home) and not sink_path and _is_reached_by_link(checkpoint, str(recorded), settings):
        home = str(recorded)
    found = read_log_id(open_storage(home))
    has_state = starting.provider and starting.stateful
    must_have_log = found is None and committed >= 0 and (has_state or has_committed(own, committed))
    recorded_id, inside = None if query is None else query["log_id"], is_inside(checkpoint, home)
    has_moved = recorded not in (None, home) and found not in (None, recorded_id)
    was_begun = has_moved and has_begun_log(own, relative_home(checkpoint, home), str(found))
    return LogFacts(checkpoint, home, recorded, recorded_id, found, inside, was_begun, committed, must_have_log)


def _is_reached_by_link(checkpoint: str, recorded: str, settings: Settings) -> bool:
    """Whether the log at `recorded`, under `cec.log.path`, belongs to this checkpoint by another path to it.

    The name of such a log's directory comes from the checkpoint path of the query's first start.
    """
    if settings.log_path is None or not same_place(recorded.rpartition("/")[0], settings.log_path):
        return False
    place = open_storage(checkpoint).local_path("")
    real = os.path.realpath(place) if place is not None else checkpoint
    return owns(checkpoint, recorded) or recorded in [home_of(url, settings, None) for url in (real, f"file:{real}")]


def _has_cec_sink(settings: Settings, request: BeginRequest) -> bool:
    """Whether the query is known to have the `cec` sink. One without state begins here for that sink, or a protocol."""
    return request.sink == SinkKind.LOG.value or (not request.decision.provider and settings.protocol is None)


def _needs_input(plan: RecoveryPlan, decision: QueryDecision) -> bool:
    """Whether the query replays now, or a later recovery of it may replay."""
    may_replay = plan.replayed_batches > 0 or any(each.deferred for each in decision.operators)
    return decision.provider and plan.committed_batch >= 0 and may_replay


def _compare_input(start: _Start, plan: RecoveryPlan, states: Sequence[SourceState]) -> StartMessage:
    replay = read_replay_input(start.places.checkpoint, plan.rewound_to + 1, plan.committed_batch)
    settings, now_ms = start.settings, int(time.time() * 1000)
    sources = parse_sources((each.name, each.available, each.error) for each in states)
    return check_at_start(replay, sources, settings.sources_margin, settings.accepts_divergence, now_ms)


def _refuse_if_overtaken(start: _Start, committed: int) -> None:
    """Refuses a start if the query was changed since the caller read V: another run went on, or it was taken back."""
    refuse_migrated_query(start.places.own)
    refuse_during_rollback(start.places.own)
    now = committed_batch(start.places.checkpoint)
    if now > committed:
        raise Fenced(
            f"batch {now} of the query with checkpoint {start.checkpoint} was committed while this start was prepared "
            f"after batch {committed}: stop all runs of it, and start one"
        )
    if now < committed:
        raise Fenced(
            f"the query with checkpoint {start.checkpoint} was taken back from batch {committed} to batch {now} while "
            f"this start was prepared: start it again"
        )
