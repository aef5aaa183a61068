"""Inspects the checkpoint of a stopped query, and copies it without the state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.migration.files import HadoopFiles
from spark_cec.recovery.decide import refuse_stray_commits
from spark_cec.recovery.spark_logs import batch_not_run_again
from spark_cec.recovery.unfinished_copy import METADATA
from spark_cec.settings import PROVIDER_KEY

PARTITIONS_KEY = "spark.sql.shuffle.partitions"
PLANNED, COMMITTED = "offsets", "commits"

_STATE, _OWN = "state", "cec"
_SCHEMAS = ("_metadata", "_stateSchema")
_IDS = "stateUniqueIds"
_WITHOUT_IDS, _WITH_IDS = "v1", "v2"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that can be migrated.

    `batch` is V, the newest batch that Spark has committed; `conf` has the settings in its offset log. `alone`:
    operators with partition 0 only, because they have no key to partition by. `has_ids`: Spark's commit log names the
    state of V by ids (checkpoint format 2).
    """

    batch: int
    conf: Mapping[str, str]
    alone: frozenset[int] = frozenset()
    has_ids: bool = False

    @property
    def provider(self) -> str:
        """The class of its state store provider."""
        return self.conf[PROVIDER_KEY]

    @property
    def partitions(self) -> int:
        """The number of its operators' partitions."""
        return int(self.conf[PARTITIONS_KEY])


def inspect_checkpoint(files: HadoopFiles) -> Found:
    """Inspects the checkpoint. `UnsuitableCheckpoint` if it has no state, or state that only one provider supports."""
    committed = batches(files, COMMITTED)  # first, as a query plans a batch before it commits it
    planned = batches(files, PLANNED)
    if not planned:
        raise no_checkpoint(files.root)
    refuse_stray_commits(files.root, planned, committed)
    batch = batch_not_run_again(planned, committed)
    if batch not in committed or batch not in planned:
        raise UnsuitableCheckpoint(
            f"the query of {files.root} has committed no batch that could be carried: start a new checkpoint"
        )
    conf = _read_conf(files, batch)
    if PROVIDER_KEY not in conf:
        raise UnsuitableCheckpoint(
            f"{files.root} names no state store provider: start its query once with Spark 4.3, and stop it"
        )
    operators = [name for name in files.names(_STATE) if name.isascii() and name.isdigit()]
    if not operators:
        raise UnsuitableCheckpoint(f"the query of {files.root} has no state: nothing is to be carried")
    missing = {}
    for operator in operators:
        metadata = _read_operator_metadata(files, operator)
        _refuse_transform_with_state(files, operator, metadata)
        missing[operator] = _find_missing_partitions(files, operator, metadata)
    for operator, partitions in missing.items():
        if partitions and partitions != set(range(1, int(conf[PARTITIONS_KEY]))):
            raise lost_partitions(files.root, operator, partitions)
    alone = frozenset(int(operator) for operator, partitions in missing.items() if partitions)
    return Found(batch, conf, alone, bool(_read_json_line(files, f"{COMMITTED}/{batch}").get(_IDS)))


def no_checkpoint(root: str) -> UnsuitableCheckpoint:
    """The error for a place without a query."""
    return UnsuitableCheckpoint(f"{root} is not the checkpoint of a query: it has no offset log")


def taken(root: str) -> UnsuitableCheckpoint:
    """The error for a target that exists."""
    return UnsuitableCheckpoint(f"--to {root}: there is something already; give a new place")


def running(root: str) -> UnsuitableCheckpoint:
    """The error for a source whose query has a lease."""
    return UnsuitableCheckpoint(f"the query of {root} runs: stop it first")


def lost_partitions(root: str, operator: int | str, missing: Iterable[int]) -> UnsuitableCheckpoint:
    """The error for a state with missing partitions."""
    which = ", ".join(map(str, sorted(missing)))
    return UnsuitableCheckpoint(f"{root} has lost state: operator {operator} has no partition {which}; restore it")


def batches(files: HadoopFiles, log: str) -> list[int]:
    """The batches in one of Spark's logs, in order."""
    return sorted(int(name) for name in files.names(log) if name.isascii() and name.isdigit())


def copy_all_but_state(source: HadoopFiles, target: HadoopFiles, found: Found, conf: Mapping[str, str]) -> None:
    """Copies Spark's logs, with `conf` recorded from batch V on, and the state schemas; `metadata` stays unfinished."""
    for name in source.names():
        if name not in (METADATA, _STATE, _OWN):
            source.copy(name, target)
    for path in _list_schema_paths(source):
        source.copy(path, target)
    for batch in batches(source, PLANNED):
        if batch >= found.batch:
            _record_conf(target, batch, conf)
    if int(conf.get(PARTITIONS_KEY, found.partitions)) != found.partitions:
        for path in _list_operator_files(target):
            _record_partitions(target, path, int(conf[PARTITIONS_KEY]))


def record_state_ids(target: HadoopFiles, batch: int, ids: Mapping[str, Any] | None) -> None:
    """Records the checkpoint ids of the written state in Spark's commit log: by operator, partition, store (format 2).

    None: the state was written without ids. Then the entry says so, because Spark goes on in the format of this entry.
    """
    version, _, text = target.read(f"{COMMITTED}/{batch}").partition("\n")
    content = {key: value for key, value in json.loads(text).items() if key != _IDS}
    if ids is not None:
        content[_IDS] = ids
    elif version == _WITH_IDS:
        version = _WITHOUT_IDS
    target.write(f"{COMMITTED}/{batch}", f"{version}\n{json.dumps(content)}")


def finish(target: HadoopFiles, metadata: str) -> None:
    """Completes the copy, so that it can be started. `metadata`: the content of the source's file of that name."""
    target.write(METADATA, metadata)


def _read_conf(files: HadoopFiles, batch: int) -> dict[str, str]:
    """The settings in an entry of the offset log. Also checks all entries that a start reads, before the copy."""
    for log in (PLANNED, COMMITTED):
        for each in batches(files, log):
            if each >= batch:
                _read_json_line(files, f"{log}/{each}")
    conf = _read_json_line(files, f"{PLANNED}/{batch}").get("conf") or {}
    return {str(key): str(value) for key, value in conf.items()}


def _read_json_line(files: HadoopFiles, path: str) -> dict[str, Any]:
    """The second line of one of Spark's files; the first is its version. `UnsuitableCheckpoint` if it is damaged."""
    lines = files.read(path).split("\n")
    try:
        content = json.loads(lines[1])
    except (IndexError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise UnsuitableCheckpoint(f"{files.root}/{path} is damaged: it has no JSON in its second line; restore it")
    return content


def _record_conf(files: HadoopFiles, batch: int, conf: Mapping[str, str]) -> None:
    version, line, *rest = files.read(f"{PLANNED}/{batch}").split("\n")
    content = json.loads(line)
    content["conf"] = {**content["conf"], **conf}
    files.write(f"{PLANNED}/{batch}", "\n".join([version, json.dumps(content, separators=(",", ":")), *rest]))


def _list_schema_paths(files: HadoopFiles) -> list[str]:
    """The paths of Spark's operator files and state schemas: beside partition 0, or beside the operator."""
    found = []
    for operator in files.names(_STATE):
        found += [f"{_STATE}/{operator}/{name}" for name in _SCHEMAS]
        first = f"{_STATE}/{operator}/0"
        found += [f"{first}/_metadata", *(f"{first}/{store}/_metadata" for store in files.names(first))]
    return [path for path in found if files.exists(path)]


def _list_operator_files(files: HadoopFiles) -> list[str]:
    found = []
    for operator in files.names(_STATE):
        directory = f"{_STATE}/{operator}/_metadata"
        found += [f"{directory}/{name}" for name in files.names(directory) if name == METADATA]
        found += [f"{directory}/v2/{name}" for name in files.names(f"{directory}/v2")]
    return found


def _record_partitions(files: HadoopFiles, path: str, partitions: int) -> None:
    version, _, text = files.read(path).partition("\n")
    content = json.loads(text)
    for store in content["stateStoreInfo"]:
        store["numPartitions"] = partitions
    files.write(path, f"{version}\n{json.dumps(content, separators=(',', ':'))}")


def _find_missing_partitions(files: HadoopFiles, operator: str, metadata: Mapping[str, Any]) -> set[int]:
    """The partitions without a directory. An operator without a key has partition 0 only."""
    there = {int(name) for name in files.names(f"{_STATE}/{operator}") if name.isascii() and name.isdigit()}
    return set(range(max(int(store["numPartitions"]) for store in metadata["stateStoreInfo"]))) - there


def _read_operator_metadata(files: HadoopFiles, operator: str) -> dict[str, Any]:
    """Spark's metadata of an operator and its stores."""
    own = [path for path in _list_operator_files(files) if path.startswith(f"{_STATE}/{operator}/")]
    if not own:
        raise UnsuitableCheckpoint(
            f"{files.root} does not say what operator {operator} is, as no release of Spark before 3.5 did: start its "
            f"query once with Spark 4.3, and stop it"
        )
    return _read_json_line(files, own[-1])


def _refuse_transform_with_state(files: HadoopFiles, operator: str, metadata: Mapping[str, Any]) -> None:
    """Refuses transformWithState, by the operator's name in its metadata."""
    name = str(metadata["operatorInfo"]["operatorName"])
    if name.startswith("transformWithState"):
        raise UnsuitableCheckpoint(
            f"operator {operator} of {files.root} is {name}, which Spark 4.3 runs on its RocksDB provider only"
        )
