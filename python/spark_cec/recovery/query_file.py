"""`query.json`: what the last start of a query decided, in the `cec` directory of its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.storage import Storage
from spark_cec.settings import PREFIX

QUERY_FILE = "query.json"
PIPELINE_FILE = "pipeline.json"
"""The home of a pipeline has this; `query.json` is in the checkpoints of its flows."""


def read_query(own: Storage) -> dict[str, Any] | None:
    """The file's content; None if there is none, as before the first start. `own` is rooted at the `cec` directory.

    Raises `UnsuitableCheckpoint` if it cannot be read.
    """
    if not own.exists(QUERY_FILE):
        return None
    try:
        query = json.loads(own.read(QUERY_FILE))
        bytes.fromhex(query["log_id"])
        str(query["log_home"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnsuitableCheckpoint(
            f"{own.url.rstrip('/')}/{QUERY_FILE} cannot be read ({error}): restore it from a copy of the checkpoint; "
            "or, where the log lies inside the checkpoint, delete it, and the next start of the query writes it anew"
        ) from error
    assert isinstance(query, dict)
    return query


def is_under_protocol(query: Mapping[str, Any] | None) -> bool:
    """Of what the file has: whether it is a flow whose stores write at the checkpoints of a pipeline's protocol."""
    return query is not None and PREFIX + "protocol" in (query.get("settings_conf") or {})


def write_query(own: Storage, query: dict[str, Any]) -> None:
    """Replaces the file, in one step."""
    own.replace(QUERY_FILE, json.dumps(query, indent=1).encode())
