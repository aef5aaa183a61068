"""How far back a recovery reaches, by Spark's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.storage import Storage
from spark_cec.recovery.margin import Needed
from spark_cec.recovery.replay_input import ReplayInput, SourceRange, describe_batches, read_planned, read_replay_input

PLANNED_MS = 1_700_000_000_000


class Logs:
    """Spark's files in a checkpoint, as Spark writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "offsets").mkdir()

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.path))

    def plan(self, batch: int, *offsets: str) -> None:
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": PLANNED_MS + batch * 1000, "conf": {}}
        (self.path / "offsets" / str(batch)).write_text("\n".join(["v1", json.dumps(metadata), *offsets]))

    def note(self, source: int, text: str) -> None:
        (self.path / "sources" / str(source)).mkdir(parents=True)
        (self.path / "sources" / str(source) / "0").write_bytes(b"\0v1\n" + text.encode())


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_from_the_end_of_the_batch_before(logs: Logs) -> None:
    for batch in range(4):
        logs.plan(batch, json.dumps({"t": {"0": 10 * batch + 10, "1": batch}}))
    reach = read_replay_input(logs.storage, 2, 3)
    assert (reach.first, reach.committed, reach.timestamp_ms) == (2, 3, PLANNED_MS + 2000)
    assert reach.sources[0].partitions == (Needed("t", 0, 20, 40), Needed("t", 1, 1, 3))
    words = "a recovery now would need input since batch 2 (t-0 from offset 20, t-1 from offset 1), 4 minutes ago"
    assert reach.describe(PLANNED_MS + 2000 + 240_500) == words


def test_batch_0_begins_where_the_source_did(logs: Logs) -> None:
    logs.plan(0, '{"offset":5}', '{"u":{"0":9}}')
    logs.note(1, '{"u":{"0":4}}')
    rate, kafka = read_replay_input(logs.storage, 0, 0).sources
    assert (rate.start, rate.end, rate.partitions) == (None, '{"offset":5}', None)
    assert (kafka.start, kafka.partitions) == ('{"u":{"0":4}}', (Needed("u", 0, 4, 9),))


def test_a_source_that_had_nothing_before_begins_where_it_did(logs: Logs) -> None:
    logs.plan(0, "-")
    logs.plan(1, '{"u":{"0":9}}')
    logs.note(0, '{"u":{"0":4}}')
    assert read_replay_input(logs.storage, 1, 1).sources[0].partitions == (Needed("u", 0, 4, 9),)
    assert read_replay_input(logs.storage, 0, 0).sources == (SourceRange(None, None, None),)


def test_a_source_that_occurs_twice_has_one_directory(logs: Logs) -> None:
    logs.plan(0, '{"t":{"0":7}}', '{"t":{"0":7}}', '{"u":{"0":9}}')
    logs.note(0, '{"t":{"0":3}}')
    logs.note(1, '{"u":{"0":4}}')
    found = [source.partitions for source in read_replay_input(logs.storage, 0, 0).sources]
    assert found == [(Needed("t", 0, 3, 7),), (Needed("t", 0, 3, 7),), (Needed("u", 0, 4, 9),)]


def test_where_nobody_noted_a_beginning_none_is_made_up(logs: Logs) -> None:
    logs.plan(0, '{"t":{"0":7}}')
    reach = read_replay_input(logs.storage, 0, 0)
    assert reach.sources == (SourceRange(None, '{"t":{"0":7}}', None),)
    assert reach.describe(PLANNED_MS) == "a recovery now would need input since batch 0, 0 seconds ago"


def test_with_nothing_to_replay_the_newest_offset_is_needed(logs: Logs) -> None:
    logs.plan(0, '{"t":{"0":7}}')
    reach = read_replay_input(logs.storage, 1, 0)
    assert not reach.is_due
    assert reach.timestamp_ms is None
    assert reach.sources[0].partitions == (Needed("t", 0, 7, 7),)
    assert reach.describe(0) == "a recovery now would replay nothing: it goes on with batch 1 (t-0 from offset 7)"


def test_what_spark_has_forgotten_is_not_made_up(logs: Logs) -> None:
    logs.plan(3, '{"t":{"0":7}}')
    assert read_replay_input(logs.storage, 2, 3) == ReplayInput(2, 3, None, ())
    assert read_replay_input(logs.storage, 4, 9) == ReplayInput(4, 9, None, ())


@pytest.mark.parametrize("text", ["", "v1", "v1\nnot json", "v2\n{}\n{}", "v1\n[]", "v1\n{}"])
def test_a_strange_entry_says_nothing(logs: Logs, text: str) -> None:
    (logs.path / "offsets" / "0").write_text(text)
    planned = read_planned(logs.storage, 0)
    assert planned is not None
    assert (planned.timestamp_ms, planned.offsets) == (None, ())


def test_many_partitions_are_counted_those_with_most_to_read_are_named() -> None:
    needed = tuple(Needed("orders", n, 100 * n, 100 * n + n) for n in range(16))
    reach = ReplayInput(56, 60, None, (SourceRange("", "", needed),))
    words = "orders-15 from offset 1500, orders-14 from offset 1400, orders-13 from offset 1300 and 13 more"
    assert reach.describe(0) == f"a recovery now would need input since batch 56 ({words})"


@pytest.mark.parametrize(
    ("ms", "words"),
    [(-5, "0 seconds"), (1_999, "1 second"), (119_000, "119 seconds"), (120_000, "2 minutes"), (7_200_000, "2 hours"),
     (172_800_000, "2 days")],
)  # fmt: skip
def test_times_are_rounded_down(ms: int, words: str) -> None:
    assert ReplayInput(1, 1, PLANNED_MS, ()).describe(PLANNED_MS + ms).endswith(f"batch 1, {words} ago")


def test_what_one_batch_reads(logs: Logs) -> None:
    logs.plan(0, '{"t":{"0":7,"1":1}}', '{"logOffset":0}')
    logs.plan(1, '{"t":{"0":9,"1":1,"2":4}}', '{"logOffset":1}')
    words = describe_batches(logs.storage, 1, 1, ["KafkaV2[Subscribe[t]]", "FileStreamSource[file:/in]"])
    assert words == (
        "batch 1 reads KafkaV2[Subscribe[t]], where 6 rows are expected (t-0 7 to 8, t-2 0 to 3); "
        'FileStreamSource[file:/in] from {"logOffset":0} to {"logOffset":1}'
    )
    logs.plan(2, '{"t":{"0":9,"1":1,"2":4}}', '{"logOffset":1}')
    assert describe_batches(logs.storage, 2, 2, ["A", "B"]).startswith(
        "batch 2 reads A, where 0 rows are expected (nothing)"
    )
    words = "batches 1 to 2 read A, where 6 rows are expected (t-0 7 to 8, t-2 0 to 3)"
    assert describe_batches(logs.storage, 1, 2, ["A", "B"]).startswith(words)
    assert describe_batches(logs.storage, 6, 7, ["A", "B"]) == "batches 6 to 7 read A, B"
    assert "to 6, t-1 0 to 0)" not in describe_batches(logs.storage, 0, 0, ["A", "B"]), "nobody noted a beginning"
