"""Whether a query may go on from a checkpoint: what is refused before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint, Unsupported
from spark_cec.log.storage import Storage
from spark_cec.settings import PROVIDER, PROVIDER_KEY

_HDFS_BACKED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

METADATA = "metadata"
UNFINISHED = "this_copy_was_not_finished__remove_the_directory_and_make_it_again"
"""What a copy's `metadata` says until all of it is there: Spark, too, refuses to read that, and shows this word."""


def refuse_unsuitable(checkpoint: Storage, asked: Mapping[str, Any]) -> None:
    """`asked`: what the rule knows of a start.

    `provider` is whether this session's provider is ours, `stateful` whether the query has state, `planned` whether it
    has planned a batch, and `recorded_provider` the provider that the newest one was planned with, if that is recorded.
    Raises `UnsuitableCheckpoint`, or `Unsupported` for an operator that cannot run on ours (`transform_with_state`).
    """
    _refuse_an_unfinished_copy(checkpoint)
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
    """`Unsupported` for a flow under a protocol whose state is not in our log: no checkpoint would have it.

    Or where a task may run twice at once (`speculation`): the copy asks for the state that the first one has changed,
    in memory alone, and has it take that back.
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


def _refuse_an_unfinished_copy(checkpoint: Storage) -> None:
    """A copy by `cec import`, `export` or `rescale` that was cut short has parts of what a query needs."""
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
