"""Refuses a copy of a checkpoint that `cec import`, `export` or `rescale` did not finish."""

from __future__ import annotations

from contextlib import suppress

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.storage import Storage

METADATA = "metadata"
UNFINISHED = "this_copy_was_not_finished__remove_the_directory_and_make_it_again"
"""The content of a copy's `metadata` file until the copy is complete. Spark fails to read it, and shows this text."""


def refuse_unfinished_copy(checkpoint: Storage) -> None:
    """Raises `UnsuitableCheckpoint` for a copy that was interrupted and so is incomplete."""
    with suppress(FileNotFoundError):
        refuse_unfinished_metadata(checkpoint.url, checkpoint.read(METADATA).decode(errors="replace"))


def refuse_unfinished_metadata(checkpoint: str, content: str) -> None:
    """The same, by the content of the checkpoint's file `metadata`."""
    text = content.strip()
    if not text:
        raise UnsuitableCheckpoint(
            f"the file {METADATA} of {checkpoint} is empty, as after a power loss at the first start, or in a copy "
            f"that was not finished: if the query has committed nothing there, remove the directory; else restore the "
            f"file from a copy of the checkpoint"
        )
    if text.startswith(UNFINISHED):
        raise UnsuitableCheckpoint(
            f"{checkpoint} is a copy of a checkpoint that was not finished (its file {METADATA} says so): remove "
            "the directory and make it again with the same `cec import`, `cec export` or `cec rescale`; what it was "
            "made from is as it was, but if it has cec/left.json, delete that file"
        )
