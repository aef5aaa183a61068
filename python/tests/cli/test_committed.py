"""How far Spark has come, of a flow under a protocol: where its next start takes it back to."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.admin.committed import Committed, committed
from spark_cec.admin.find_log import find_log
from spark_cec.admin.flush import flush_query
from spark_cec.errors import DamagedLog, UnsuitableCheckpoint
from spark_cec.log.home import join_log
from spark_cec.protocols.choose import Protocol
from spark_cec.protocols.messages import Checkpoint
from spark_cec.protocols.records import Record, read_records
from spark_cec.protocols.spec import Spec, write_spec
from spark_cec.recovery.query_files import QUERY
from spark_cec.settings import PREFIX

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
