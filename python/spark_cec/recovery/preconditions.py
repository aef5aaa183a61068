"""Refuses a start of a query that cannot continue from its checkpoint, before any write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint, Unsupported
from spark_cec.log.storage import Storage
from spark_cec.recovery.plan import RecoveryPlan
from spark_cec.recovery.spark_logs import planned_batches
from spark_cec.settings import PROVIDER, PROVIDER_KEY

_HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

STATE_IDS = "spark.sql.streaming.stateStore.checkpointFormatVersion"

METADATA = "metadata"
UNFINISHED = "this_copy_was_not_finished__remove_the_directory_and_make_it_again"
"""The content of a copy's `metadata` file until the copy is complete. Spark fails to read it, and shows this text."""


def refuse_unsuitable(checkpoint: Storage, asked: Mapping[str, Any]) -> None:
    """Refuses a start by the checkpoint's state store provider and by the operators.

    `asked` describes the start. `provider`: this session's provider is ours. `stateful`: the query has state.
    `planned`: the query has planned a batch. `recorded_provider`: the provider of the newest planned batch, None if it
    is not recorded. Raises `UnsuitableCheckpoint`, or `Unsupported` for an operator that cannot run on our provider
    (`transform_with_state`).
    """
    _refuse_unfinished_copy(checkpoint)
    if not asked.get("stateful"):
        return
    ours, recorded, url = bool(asked.get("provider")), asked.get("recorded_provider"), checkpoint.url
    if ours and recorded not in (None, PROVIDER):
        raise UnsuitableCheckpoint(
            f"the checkpoint {url} was begun with the state store provider {recorded}, and Spark goes on with that "
            f"one: `cec import` makes a checkpoint with the same state for {PROVIDER}; or start a new checkpoint, or "
            f"set {PROVIDER_KEY}={recorded}"
        )
    if ours and recorded is None and asked.get("planned"):
        raise UnsuitableCheckpoint(
            f"the checkpoint {url} was begun by an old release of Spark, which recorded no state store provider in "
            f"it: its state is that of another provider. Start a new checkpoint to use {PROVIDER}, or set "
            f"{PROVIDER_KEY} to the provider that it was begun with (by default {_HDFS_BACKED})"
        )
    if not ours and recorded == PROVIDER:
        raise UnsuitableCheckpoint(
            f"the checkpoint {url} was begun with {PROVIDER}, and its state is in a Spark CEC log: set "
            f"{PROVIDER_KEY}={PROVIDER}; `cec export` makes a checkpoint with the same state for another provider; or "
            f"start a new checkpoint"
        )
    if ours and asked.get("transform_with_state"):
        raise Unsupported(
            "transformWithState cannot run on Spark CEC: Spark 4.3 ties it to RocksDBStateStoreProvider by name. Use "
            "flatMapGroupsWithState or applyInPandasWithState, or that provider for this query"
        )


def refuse_under_protocol(flow: str, asked: Mapping[str, Any]) -> None:
    """Raises `Unsupported` for a flow under a protocol that keeps its state with another provider.

    The protocol's checkpoints would lack that state. Also raises it if `speculation` is on. A speculative copy of a
    task asks for state that only the first task has, in memory, and makes the first task take it back.
    """
    if asked.get("stateful") and not asked.get("provider"):
        raise Unsupported(
            f"flow {flow} has its state with another provider, and takes part in a checkpointing protocol, which can "
            f"take back what is in a Spark CEC log alone: leave {PROVIDER_KEY} out of its conf"
        )
    if asked.get("stateful") and asked.get("speculation"):
        raise Unsupported(
            f"flow {flow} has state, and takes part in a checkpointing protocol, whose stores write at checkpoints "
            "alone: a speculative copy of a task would need what only the first one has. Turn spark.speculation off"
        )


def refuse_without_log(checkpoint: Storage, home: str, has_query: bool) -> None:
    """Refuses a query that has state and committed batches but no log.

    `has_query`: the checkpoint has `cec/query.json`, so it once had a log.
    """
    why = "its log is gone" if has_query else "its log is gone, or it holds state of another provider"
    raise UnsuitableCheckpoint(
        f"the checkpoint {checkpoint.url} has committed batches but no Spark CEC log at {home}: {why}. Restore the "
        "log, or start a new checkpoint"
    )


def refuse_lost_commit(checkpoint: Storage, committed: int) -> None:
    """Refuses a query if Spark records checkpoint ids but the commit log entry of batch `committed` is gone."""
    if committed >= 0 and not checkpoint.exists(f"commits/{committed}"):
        raise UnsuitableCheckpoint(
            f"{checkpoint.url}/commits/{committed} is gone, and with it the ids by which Spark names the state of "
            f"batch {committed} ({STATE_IDS} is 2): restore it, or the checkpoint whole with its log, from a copy; or "
            f"go back to an earlier batch with `cec rollback {checkpoint.url} --to BATCH`"
        )


def refuse_forgotten_batches(checkpoint: Storage, plan: RecoveryPlan) -> None:
    """Refuses a replay of batches that Spark's offset log no longer has."""
    if not plan.replayed_batches:
        return
    # The batch before the first one counts too, because the first batch begins at its end.
    wanted = range(max(plan.rewound_to, 0), plan.committed_batch + 1)
    forgotten = sorted(set(wanted) - set(planned_batches(checkpoint)))
    if forgotten:
        raise UnsuitableCheckpoint(
            f"Spark's offset log in {checkpoint.url} no longer has batch {forgotten[0]}, but the recovery of batch "
            f"{plan.committed_batch} replays from batch {plan.rewound_to + 1}: restore the checkpoint whole from a copy"
        )


def _refuse_unfinished_copy(checkpoint: Storage) -> None:
    """Refuses a copy by `cec import`, `export` or `rescale` that was interrupted and so is incomplete."""
    if not checkpoint.exists(METADATA):
        return
    text = checkpoint.read(METADATA).strip()
    if not text or text.startswith(UNFINISHED.encode()):
        why = f"its file {METADATA} {'says so' if text else 'is empty'}"
        raise UnsuitableCheckpoint(
            f"{checkpoint.url} is a copy of a checkpoint that was not finished ({why}): remove the directory and "
            "make it again with the same `cec import`, `cec export` or `cec rescale`; what it was made from is as it "
            "was"
        )
