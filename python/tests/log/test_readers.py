"""What streams say of how far they are, and what is kept for them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.log.home import LOG_FILE, join_log
from spark_cec.log.manifest import Manifest, manifest_path, publish, retire
from spark_cec.log.readers import IN_FLIGHT, NOTED_EVERY, ReaderTrail, forget_reads, slowest_reader
from spark_cec.log.storage import Storage

LOG_ID, OTHER = "1f" * 16, "2e" * 16
RETAINED = 5
KEPT = RETAINED + IN_FLIGHT
"""Batches of a stream that may run again."""


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made = open_storage(str(tmp_path))
    join_log(made, LOG_ID)
    return made


def run(storage: Storage, *ends: int, name: str = "alerts", stops: bool = True) -> ReaderTrail:
    """A run of the stream with batches that end there."""
    trail = ReaderTrail(storage, LOG_ID, name)
    for end in ends:
        trail.add(end, RETAINED)
    if stops:
        trail.save()
    return trail


def test_what_a_batch_may_still_ask_for_is_kept(storage: Storage) -> None:
    run(storage, *range(KEPT))
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0, "each of its batches may run again"
    run(storage, KEPT)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 1


def test_many_short_runs_are_as_good_as_a_long_one(storage: Storage) -> None:
    """As where a query is started each hour to take what is there."""
    for end in range(0, 300, 3):
        run(storage, end)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 300 - 3 * KEPT - 3 + 1


def test_a_reader_that_was_taken_back_keeps_as_much_as_one_that_never_went_further(storage: Storage) -> None:
    run(storage, *range(20))
    again = ReaderTrail(storage, LOG_ID, "alerts")
    again.resume(12)
    for end in range(30, 30 + KEPT - 2):  # as after a pause: its first batch reads all batches of the log
        again.add(end, RETAINED)
    again.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 12, "the start of its oldest batch that may run again"


def test_a_run_that_goes_on_where_it_was_changes_nothing(storage: Storage) -> None:
    run(storage, *range(20))
    before = storage.read("readers/alerts.json")
    ReaderTrail(storage, LOG_ID, "alerts").resume(19)
    assert storage.read("readers/alerts.json") == before


@pytest.mark.parametrize("seed", range(20))
def test_no_run_goes_behind_what_it_has_let_go(storage: Storage, seed: int) -> None:
    """Runs that are stopped or killed, whose next begins with batches that ran before, of one to three of the log's."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    ends: list[int] = []
    for _ in range(30):
        again = rng.randrange(min(KEPT, len(ends)) + 1)
        batches = ends[len(ends) - again :]
        for _ in range(rng.randrange(40)):
            batches.append((batches or ends or [-1])[-1] + rng.randrange(0, 4))
        ends = ends[: len(ends) - again] + batches
        run(storage, *batches, stops=rng.random() < 0.5)
        needed = ends[-KEPT - 1] + 1 if len(ends) > KEPT else 0
        assert slowest_reader(storage, LOG_ID, ["alerts"]) <= needed


def test_the_file_is_not_written_at_each_batch(storage: Storage) -> None:
    run(storage, *range(KEPT + NOTED_EVERY - 2), stops=False)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0
    run(storage, *range(KEPT + NOTED_EVERY), stops=False)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == NOTED_EVERY


def test_a_reader_that_begins_anew_takes_nothing_over(storage: Storage) -> None:
    trail = run(storage, *range(980, 1_000))
    trail.begin(970)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 971
    run(storage, *range(971, 971 + KEPT))
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 971


def test_all_is_kept_for_a_reader_that_has_not_begun(storage: Storage) -> None:
    run(storage, *range(20), name="fast")
    run(storage, *range(14), name="slow")
    assert slowest_reader(storage, LOG_ID, ["fast", "slow"]) == 14 - KEPT
    assert slowest_reader(storage, LOG_ID, ["fast", "slow", "new"]) == 0


def test_a_changed_byte_lets_nothing_go(storage: Storage) -> None:
    """Of 41 and 91 nobody could tell which it was."""
    run(storage, *range(41 + KEPT + 1))
    path = "readers/alerts.json"
    whole = storage.read(path)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 42
    for at in range(len(whole)):
        storage.replace(path, whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
        assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0, at


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b'{"batch": null}', b'{"batch": 1, "ends": ["x"]}', b'{"batch": Infinity}',
        b'{"batch": 41, "ends": []}',  # as an earlier release wrote it
    ],
)  # fmt: skip
def test_all_is_kept_where_it_cannot_be_read(
    storage: Storage, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """What is only noted for tidiness must stop nobody; the reader writes it anew."""
    storage.replace("readers/alerts.json", content)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0
    assert "readers/alerts.json cannot be read" in caplog.text
    run(storage, *range(KEPT + 1))
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 1


def test_what_was_noted_of_another_log_says_nothing(storage: Storage) -> None:
    """The log was deleted and begun anew, while its reader was stopped."""
    run(storage, *range(500))
    assert slowest_reader(storage, OTHER, ["alerts"]) == 0
    (Path(storage.url) / LOG_FILE).unlink()
    join_log(storage, OTHER)
    trail = ReaderTrail(storage, OTHER, "alerts")
    for end in range(KEPT + 2):
        trail.add(end, RETAINED)
    trail.save()
    assert slowest_reader(storage, OTHER, ["alerts"]) == 2


def test_nothing_is_noted_where_the_log_is_gone(storage: Storage) -> None:
    """It would be there when the log is begun anew, and say that much of it is not needed."""
    trail = run(storage, *range(500))
    home = Path(storage.url)
    shutil.rmtree(home)
    trail.save()
    assert not home.exists()
    join_log(storage, OTHER)
    trail.save()
    assert slowest_reader(storage, OTHER, ["alerts"]) == 0


def test_what_a_protocol_needs_no_more_is_let_go_whatever_spark_keeps(storage: Storage) -> None:
    trail = ReaderTrail(storage, LOG_ID, "alerts")
    for end in range(20):
        trail.add(end, 10**9, again_from=-1)
    trail.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0, "it may go back to its beginning"
    trail.add(20, 10**9, again_from=15)
    trail.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 16
    trail.add(21, 10**9, again_from=21)
    trail.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 22 - IN_FLIGHT, "Spark may run its newest ones again"


def put_batches(storage: Storage, batches: range, rows: int) -> None:
    for batch in batches:
        publish(storage, Manifest(batch, (), rows, "{}", False, 1, 7))


def bring_back(storage: Storage, batches: int, note: bytes | None) -> None:
    """The log has so many batches again, as in a copy, and the reader's note of then."""
    for path in sorted((Path(storage.url) / "manifests").glob("[0-9]*"))[batches:]:
        path.unlink()
    if note is not None:
        storage.replace("readers/alerts.json", note)


@pytest.mark.parametrize("again", [0, 10, 400], ids=["as in the copy", "some more", "further than before"])
@pytest.mark.parametrize("stops", [True, False])
def test_a_note_from_before_the_log_was_brought_back_lets_nothing_go(
    stops: bool, again: int, storage: Storage
) -> None:
    """The reader runs meanwhile. Its batches were others, so their numbers say nothing."""
    put_batches(storage, range(300), rows=1)
    run(storage, *range(100))
    copy = storage.read("readers/alerts.json")
    trail = run(storage, *range(100, 299), stops=False)
    bring_back(storage, 110, copy)
    put_batches(storage, range(110, 110 + again), rows=5)
    if stops:
        trail.save()
    else:
        for end in range(299, 302):  # the first one is due to be noted
            trail.add(end, RETAINED)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 100 - KEPT


def test_a_note_that_was_left_in_a_log_that_was_brought_back_counts_no_more(storage: Storage) -> None:
    put_batches(storage, range(300), rows=1)
    run(storage, *range(299))
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 299 - KEPT
    bring_back(storage, 110, note=None)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0
    put_batches(storage, range(110, 400), rows=5)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 0
    run(storage, *range(110, 200))
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 200 - KEPT


def test_a_mark_that_was_let_go_or_is_damaged_proves_nothing(storage: Storage) -> None:
    put_batches(storage, range(300), rows=1)
    trail = run(storage, *range(200))
    retire(storage, 250)
    trail.add(260, RETAINED)
    trail.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 201 - KEPT
    storage.replace(manifest_path(260), b"{")
    trail.add(261, RETAINED)
    trail.save()
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 202 - KEPT


def test_a_rollback_takes_a_note_back_with_its_mark(storage: Storage) -> None:
    put_batches(storage, range(300), rows=1)
    run(storage, *range(299))
    forget_reads(storage, 150)
    bring_back(storage, 151, note=None)
    assert slowest_reader(storage, LOG_ID, ["alerts"]) == 151
