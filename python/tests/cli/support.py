"""What the tests of `cec` share: a small checkpoint whose log is sound, and a look at every file below a directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.cli.app import app
from spark_cec.ids import StoreId
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import FrameKind
from spark_cec.log.home import join_log
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import Manifest, publish
from spark_cec.log.storage import Storage
from spark_cec.settings import PREFIX
from tests.log.support import LOG_ID, commit_meta, make_writer, output_meta, payload_of

STORES = (StoreId(0, 0), StoreId(0, 1), StoreId(1, 0, "left"))
CONF = {PREFIX + "Q": "3x", PREFIX + "U": "25"}


def run(*arguments: str) -> Result:
    """`cec` with these arguments."""
    return CliRunner().invoke(app, list(arguments))


def answer(result: Result) -> dict[str, Any]:
    """The one JSON object on standard output."""
    assert result.stdout.count("\n") == 1, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


def files(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory: its bytes, and when it was written."""
    return {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


def write_log(storage: Storage, versions: int, stores: Sequence[StoreId] = STORES) -> None:
    """Every version of every store opens a window; batch b has two output frames, 2b and 2b + 1. One segment."""
    join_log(storage, LOG_ID)
    writer = make_writer(storage)
    for version in range(1, versions + 1):
        batch = version - 1
        frames = [output_meta(2 * batch + n + 1, batch=batch, partition=n) for n in (0, 1)]
        for frame in frames:
            writer.append(FrameKind.OUTPUT, frame, payload_of(version))
        for store in stores:
            meta = commit_meta(
                version, store=store, extent=version, replay=10 * version, dirty_from=1, dirty_windows=2,
                recovery_estimate_ms=1_100.0 * version + store.partition,
            )  # fmt: skip
            writer.append(FrameKind.COMMIT, meta, payload_of(version))
        publish(storage, Manifest(batch, tuple(f.frame_id.hex() for f in frames), 6, "{}", False, 1, 1_000 * version))
    writer.close()


def query_json(home: str, **changes: Any) -> str:
    """`query.json` as the driver's agent writes it."""
    fields = {
        "log_home": home, "log_id": LOG_ID, "generation": 7, "settings": "Q=3x U=25 CI=10ms CP=100ms mode=auto",
        "settings_conf": CONF, "release": "0.1.0", "mode": "deferred", "reason": "operator 0 (count) deferred",
        "provider": True, "operators": [],
    }  # fmt: skip
    return json.dumps({**fields, **changes})


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk, its log under it, with one segment."""

    path: Path

    @property
    def home(self) -> Path:
        """The log's home."""
        return self.path / "cec" / "log"

    @property
    def segment(self) -> Path:
        """The only segment."""
        (found,) = (self.home / "segments").iterdir()
        return found

    @property
    def storage(self) -> Storage:
        """The log's storage, for writing."""
        return open_storage(str(self.home))

    def flip(self, offset: int) -> None:
        """Damage one byte of the segment; a negative offset counts from its end."""
        data = bytearray(self.segment.read_bytes())
        data[offset] ^= 0x40
        self.segment.write_bytes(data)

    def lose(self, store: StoreId, version: int) -> None:
        """Damage the payload of a commit's frame."""
        catalog = Catalog(self.storage, MemoryIndex(LOG_ID))
        catalog.refresh()
        (entry,) = catalog.index.commits(store, version, version)
        self.flip(entry.location.end - 6)

    def cut(self, count: int) -> None:
        """Take so many bytes off the segment's end."""
        self.segment.write_bytes(self.segment.read_bytes()[:-count])

    def commit(self, batch: int) -> None:
        """Spark plans and commits a batch."""
        for log in ("offsets", "commits"):
            (self.path / log).mkdir(exist_ok=True)
            (self.path / log / str(batch)).write_text("v1\n{}")


def make_checkpoint(path: Path, versions: int = 4, last_commit: int = 3) -> Checkpoint:
    """A checkpoint with Spark's commits 0…last_commit, two recoveries, and a log of `versions` versions."""
    checkpoint = Checkpoint(path)
    for directory in ("commits", "offsets", "cec/recoveries"):
        (path / directory).mkdir(parents=True)
    for batch in range(last_commit + 1):
        checkpoint.commit(batch)
        (path / "commits" / f".{batch}.crc").write_bytes(b"crc")
    # Neither a name that only begins with a digit nor one in other digits is a batch.
    for stray in ("99.tmp", "1٣"):
        (path / "commits" / stray).write_text("")
    for name in ("1700000000000.json", "1700000001000.json"):
        (path / "cec" / "recoveries" / name).write_text("{}")
    (path / "cec" / "query.json").write_text(query_json(f"file:{checkpoint.home}"))
    write_log(checkpoint.storage, versions)
    return checkpoint
