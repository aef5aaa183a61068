"""How far Spark has come, of a flow under a protocol: where its next start takes it back to."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin import committed as committed_module
from spark_cec.admin.committed import Committed, committed
from spark_cec.admin.find_log import find_log, open_to_read
from spark_cec.admin.flush import flush_query
from spark_cec.errors import DamagedLog, NoLine, TransientError, UnsuitableCheckpoint
from spark_cec.log.home import join_log
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Checkpoint
from spark_cec.protocols.records import Record, read_records
from spark_cec.protocols.spec import Spec, write_spec
from spark_cec.recovery.query_files import QUERY
from spark_cec.settings import PREFIX
from tests.cli.support import run

INPUTS = {"a": (), "b": ("a",)}


def flow(home: Path, name: str, *records: tuple[int, Checkpoint]) -> Path:
    """Has committed batches 0 to 5; with checkpoints behind some of them."""
    place = home / "flows" / name
    for log in ("offsets", "commits"):
        (place / log).mkdir(parents=True)
        for batch in range(6):
            (place / log / str(batch)).write_text("v1\n{}\n")
    own = open_storage(f"{place}/cec")
    log_id = join_log(open_storage(f"{place}/cec/log"), None)
    conf = {PREFIX + "protocol": "uncoordinated", PREFIX + "protocol.flow": name}
    QUERY.write(own, {"log_home": "cec/log", "log_id": log_id, "generation": 1, "settings_conf": conf})
    for batch, at in records:
        read_records(own, name, INPUTS[name]).add(Record(at, batch))
    return place


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """b's newest checkpoint has read what a has sent behind its own: it is in no line."""
    flow(tmp_path, "a", (2, Checkpoint("a", 1, 3)), (4, Checkpoint("a", 2, 5)))
    received = [{"a": 2}, {"a": 5}, {"a": 6}]
    at = [Checkpoint("b", number + 1, 2 * number + 2, read) for number, read in enumerate(received)]
    flow(tmp_path, "b", *((each.sent - 1, each) for each in at))
    write_spec(open_storage(str(tmp_path)), Spec(Protocol.UNCOORDINATED, 5.0, INPUTS, 1, "run"))
    return tmp_path


def of(home: Path, name: str) -> Committed:
    found = committed(find_log(str(home / "flows" / name)))
    assert found is not None
    return found


def test_it_is_the_line_and_not_the_newest_checkpoint(home: Path) -> None:
    """So `cec repair` decides for a state that the next start comes to."""
    assert (of(home, "a").batch, of(home, "a").last, of(home, "a").version) == (5, 4, 5)
    assert (of(home, "b").batch, of(home, "b").last, of(home, "b").version) == (5, 3, 4)


def test_of_a_copy_of_a_flow_alone_it_is_the_newest_checkpoint(home: Path) -> None:
    (home / "flows/b").rename(home / "copy")
    found = committed(find_log(str(home / "copy")))
    assert found is not None and found.last == 5


def test_a_flow_is_not_flushed_alone(home: Path) -> None:
    """It would be answered that a recovery needs nothing older."""
    with pytest.raises(UnsuitableCheckpoint, match="goes back to the last line, whatever it has written"):
        flush_query(str(home / "flows/b"), find_log(str(home / "flows/b")), 0.1)


def test_with_all_checkpoints_damaged_that_is_said(home: Path) -> None:
    own = open_storage(str(home / "flows/a/cec"))
    read_records(own, "a", ()).forget_before(2)
    own.replace("checkpoints/0000000002.json", b"{")
    with pytest.raises(DamagedLog, match="none of the 1 checkpoints of flow a can be read"):
        of(home, "a")


class Rounds:
    """A pipeline that takes coordinated checkpoints, and deletes all but the last two of each flow."""

    def __init__(self, home: Path) -> None:
        self.home, self.round = home, 0
        for name in INPUTS:
            flow(home, name)
        write_spec(open_storage(str(home)), Spec(Protocol.COORDINATED, 5.0, INPUTS, 1, "run"))
        for _ in range(6):
            self.go_on()

    def go_on(self) -> None:
        """Takes a round, after one more batch of each flow."""
        self.round += 1
        for name, read in INPUTS.items():
            records = read_records(open_storage(f"{self.home}/flows/{name}/cec"), name, read)
            at = Checkpoint(name, self.round, self.round, dict.fromkeys(read, self.round), round=self.round)
            records.add(Record(at, self.round - 1))
            records.forget_before(self.round - 1)

    def go_on_within_looks(self, monkeypatch: pytest.MonkeyPatch, looks: int) -> list[int]:
        """The run is two rounds on when a look comes from one flow to the next, at so many looks.

        Answers the number of the looks, as it grows.
        """
        seen = [0]

        def open_slowly(url: str) -> Any:
            if url.endswith("/flows/b/cec") and "records_in" in {frame.name for frame in traceback.extract_stack()}:
                seen[0] += 1
                if seen[0] <= looks:
                    self.go_on()
                    self.go_on()
            return open_to_read(url)

        monkeypatch.setattr(committed_module, "open_to_read", open_slowly)
        return seen


@pytest.mark.parametrize("looks", [1, 3])
def test_a_pipeline_that_goes_on_while_its_checkpoints_are_read_has_a_line(
    looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow storage: what was read of one flow is deleted when the next one is read."""
    rounds = Rounds(tmp_path)
    assert [of(tmp_path, name).last for name in INPUTS] == [5, 5]
    rounds.go_on_within_looks(monkeypatch, looks)
    during = of(tmp_path, "a").last
    monkeypatch.undo()
    assert during == of(tmp_path, "a").last == 5 + 2 * looks


def test_a_pipeline_that_is_faster_than_the_reads_is_not_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(tmp_path)
    seen = rounds.go_on_within_looks(monkeypatch, 1_000)
    with pytest.raises(TransientError, match=f"{tmp_path}: its flows go on faster than their checkpoints can be read"):
        of(tmp_path, "a")
    assert seen[0] < 10
    result = run("verify", str(tmp_path / "flows/a"))
    assert result.exit_code == 2 and "go on faster" in result.stderr


def test_checkpoints_that_make_no_line_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing changes them, and no start can go on from there."""
    rounds = Rounds(tmp_path)
    own = read_records(open_storage(str(tmp_path / "flows/a/cec")), "a", ())
    own.forget_before(6)
    read_records(open_storage(str(tmp_path / "flows/b/cec")), "b", ("a",)).forget_after(5)
    seen = rounds.go_on_within_looks(monkeypatch, 0)
    with pytest.raises(NoLine, match="a, b make no consistent line"):
        of(tmp_path, "a")
    assert seen == [2]
    result = run("verify", str(tmp_path / "flows/a"))
    assert result.exit_code == 2 and "make no consistent line" in result.stderr


def test_checkpoints_that_are_all_deleted_between_their_listing_and_their_read_are_not_damaged(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    own = open_storage(str(tmp_path / "flows/a/cec"))

    class Slow:
        """The run goes on after the first listing."""

        url, is_listed = own.url, False

        def list(self, directory: str) -> Any:
            found = own.list(directory)
            if not self.is_listed:
                self.is_listed = True
                rounds.go_on()
                rounds.go_on()
            return found

        def read(self, path: str) -> bytes:
            return own.read(path)

    slow: Any = Slow()
    during = [each.checkpoint for each in read_records(slow, "a", ()).known]
    assert during == [each.checkpoint for each in read_records(own, "a", ()).known]


def test_a_damaged_query_file_is_left_to_those_who_need_it(home: Path) -> None:
    place = find_log(str(home / "flows/a"))
    (home / "flows/a/cec/query.json").write_text("{")
    found = committed(place)
    assert found is not None and (found.batch, found.checkpoint) == (5, None)
