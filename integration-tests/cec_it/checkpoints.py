"""How far a query is, by the files of its checkpoint, wherever that lies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from spark_cec.adapters import hadoop_settings
from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.segment import is_bundle
from spark_cec.recovery.generations import newest_generation
from spark_cec.recovery.report import read_progress
from spark_cec.recovery.spark_logs import planned_batches

_HADOOP = "spark.hadoop."


class Checkpoint:
    """A query's checkpoint. A part that does not exist yet is empty."""

    def __init__(self, location: str) -> None:
        self._all = open_storage(location)
        self._own = open_storage(f"{location}/cec")
        self._log = open_storage(f"{location}/cec/log")

    def planned(self) -> int:
        """The newest batch in Spark's log of offsets, -1 if there is none."""
        return max(planned_batches(self._all), default=-1)

    def committed(self) -> int:
        """The newest batch in Spark's log of commits, -1 if there is none: Spark may run it again."""
        names = (each.name for each in self._all.list("commits"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def log_bytes(self) -> int:
        """Bytes in all segments of the log below the checkpoint."""
        return sum(each.size for each in self._log.list("segments"))

    def bundles(self) -> int:
        """Objects of the log that hold several segments."""
        return sum(is_bundle(each.name) for each in self._log.list("segments"))

    def runs(self) -> int:
        """The number of the newest run that the query has begun, 0 before the first."""
        return newest_generation(self._own)

    def is_replaying(self) -> bool:
        """Whether the replay of the newest run is under way."""
        progress = read_progress(self._own, self.runs())
        return progress is not None and not progress.over

    def reports(self) -> dict[str, dict[str, object]]:
        """The recovery reports by their names, oldest first."""
        names = sorted(each.name for each in self._own.list("recoveries") if each.name.endswith(".json"))
        return {name: json.loads(self._own.read(f"recoveries/{name}")) for name in names}


@contextmanager
def settings_of(settings: Mapping[str, str]) -> Iterator[None]:
    """These settings of Hadoop are those of this process meanwhile."""
    known = dict(hadoop_settings._settings)
    hadoop_settings.use_settings(settings)
    try:
        yield
    finally:
        hadoop_settings.use_settings(known)


def hadoop_of(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings of Hadoop among those of Spark."""
    return {key.removeprefix(_HADOOP): value for key, value in conf.items() if key.startswith(_HADOOP)}


def for_spark(hadoop: Mapping[str, str]) -> dict[str, str]:
    """Settings of Hadoop as Spark takes them."""
    return {_HADOOP + key: value for key, value in hadoop.items()}
