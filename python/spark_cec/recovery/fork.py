"""Forks a query: a second checkpoint, from which another query goes on with the same state.

The first query may run meanwhile. Its files stay as they are. The fork has copies of Spark's small files. Its log
borrows the segments and manifests of the first query's log (`log.borrowed`), so no state is copied. A start of the fork
is a recovery after the last batch that the first query had committed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from spark_cec.errors import CecError
from spark_cec.log.borrowed import Loan
from spark_cec.log.bundles import Bundles
from spark_cec.log.home import begin_fork
from spark_cec.log.manifest import RETIRED
from spark_cec.log.output_rollbacks import CUTS
from spark_cec.log.segment import list_segments
from spark_cec.log.storage import Storage, reads_at_once
from spark_cec.recovery.facts import Places
from spark_cec.recovery.generations import DIRECTORY as GENERATIONS
from spark_cec.recovery.query_files import CARRIED, QUERY, SESSION_FILE
from spark_cec.recovery.spark_logs import committed_batch, operator_files, source_files
from spark_cec.recovery.unfinished_copy import METADATA

_ATTEMPTS = 20


class ForkError(CecError):
    """A query cannot be forked: see the message."""


def fork_query(source: Places, target: Places, lender: str, log_home: str) -> int:
    """Makes a fork, and answers V, the last batch of its past; -1 if the query has committed nothing.

    1. Read V, and list the segments of the log. The log has all that V needs, because it came before V's commit.
    2. If V has changed meanwhile, list again: the log may have frames that no crash after V can leave.
    3. Copy Spark's files up to V, and ours. `query.json` names the fork's own log.
    4. Begin the log, with the borrowed segments.
    5. Write `metadata`, with an id of its own: Spark runs one query for each id.

    `lender`: the URL of the first query's log. `log_home`: the fork's log, as `query.json` names it. Raises `ForkError`
    if the query commits batches faster than the log can be listed.
    """
    for _ in range(_ATTEMPTS):
        committed = committed_batch(source.checkpoint)  # 1
        sizes = {file.name: file.size for file in list_segments(Bundles(source.log))}
        if committed == committed_batch(source.checkpoint):  # 2
            break
    else:
        raise ForkError(f"{source.checkpoint.url} commits batches too fast to be forked: fork it again later")
    query = QUERY.read(source.own)
    if committed < 0 or query is None:
        return -1
    _copy(source.checkpoint, target.checkpoint, _list_spark_files(source.checkpoint, committed))  # 3
    _copy(source.own, target.own, [SESSION_FILE, CARRIED.name, *_list(source.own, GENERATIONS)])
    _copy(source.log, target.log, [RETIRED, *_list(source.log, CUTS)])
    QUERY.write(target.own, {**query, "log_home": log_home})
    begin_fork(target.log, query["log_id"], Loan(lender, sizes, committed))  # 4
    target.checkpoint.create(METADATA, json.dumps({"id": str(uuid.uuid4())}).encode())  # 5
    return committed


def _list_spark_files(checkpoint: Storage, committed: int) -> Iterator[str]:
    for log in ("offsets", "commits"):
        names = (file.name for file in checkpoint.list(log))
        yield from (f"{log}/{name}" for name in names if name.isascii() and name.isdigit() and int(name) <= committed)
    yield from operator_files(checkpoint)
    # Behind its version and its metadata an entry has a line for each source.
    sources = len(checkpoint.read(f"offsets/{committed}").decode(errors="replace").splitlines()) - 2
    yield from source_files(checkpoint, sources)


def _list(storage: Storage, directory: str) -> list[str]:
    return [f"{directory}/{file.name}" for file in storage.list(directory)]


def _copy(source: Storage, target: Storage, paths: Iterable[str]) -> None:
    """Copies the files that are there. The query deletes old entries of its logs while it runs."""

    def copy(path: str) -> None:
        with suppress(FileNotFoundError):
            target.create(path, source.read(path))

    with ThreadPoolExecutor(reads_at_once(source)) as pool:
        for done in [pool.submit(copy, path) for path in paths]:
            done.result()
