"""`cec repair`: what it says is what it does."""

from __future__ import annotations

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_cec.adapters.fsspec_storage import open_storage
from spark_cec.adapters.local_storage import LocalStorage
from spark_cec.cli import repair_command
from spark_cec.cli.app import app
from spark_cec.ids import new_writer_id
from spark_cec.log.bundles import encode_bundle
from spark_cec.log.catalog import Catalog
from spark_cec.log.frame import PRELUDE_LENGTH, Buffer, FrameKind, Location, encode_frame
from spark_cec.log.home import join_log
from spark_cec.log.index import MemoryIndex
from spark_cec.log.manifest import RETIRED, Manifest, load, manifest_path, publish
from spark_cec.log.output_rollbacks import cut_path
from spark_cec.log.segment import SegmentName, bundle_name, encode_segment_frame, segment_path
from spark_cec.recovery.query_files import FALLBACK
from tests.cli.support import STORES, Checkpoint, answer, files, make_checkpoint, query_json, run
from tests.log.support import LOG_ID, commit_meta, frame_bytes, make_writer, output_meta, payload_of


def test_a_dry_run_announces_what_the_repair_then_does(checkpoint: Checkpoint) -> None:
    whole = checkpoint.segment.read_bytes()
    checkpoint.segment.write_bytes(whole + whole[: PRELUDE_LENGTH - 1])
    dry = run("repair", str(checkpoint.path), "--dry-run", "--json")
    assert dry.exit_code == 1
    done = run("repair", str(checkpoint.path), "--json")
    assert done.exit_code == 0
    assert answer(done) == {**answer(dry), "dry_run": False}
    assert answer(done)["replay"] == {"first": 1, "last": 3}, "dirty since batch 1 by the footers"
    (removed,) = answer(done)["removed"]
    assert (removed["kind"], removed["offset"], removed["bytes_lost"]) == ("torn", len(whole), PRELUDE_LENGTH - 1)
    assert (checkpoint.home / removed["kept_as"]).read_bytes() == whole[: PRELUDE_LENGTH - 1]
    assert checkpoint.segment.read_bytes() == whole
    assert run("verify", str(checkpoint.path)).exit_code == 0


def test_what_is_lost_for_good_stays_lost_and_verify_says_so(checkpoint: Checkpoint) -> None:
    checkpoint.flip(-6)
    for batch in range(3):
        (checkpoint.path / "offsets" / str(batch)).unlink()
    result = run("repair", str(checkpoint.path))
    assert result.exit_code == 1
    assert "the state of batch 3 is lost" in result.stdout
    assert "but Spark's offset log begins at batch 3; restore the checkpoint from a copy" in result.stdout
    assert not (checkpoint.path / "cec" / FALLBACK.name).exists()
    assert result.stdout.startswith("corrupt ")
    assert f"kept as {checkpoint.path}/cec/log/broken/" in result.stdout
    assert "run `cec verify` to see whether anything is still missing" in result.stdout
    found = answer(run("verify", str(checkpoint.path), "--json"))["damages"]
    assert [(each["kind"], each["where"]) for each in found] == [("lost", "store 1/0/left")]


def test_what_the_next_start_replays_is_said(checkpoint: Checkpoint) -> None:
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + b"torn")
    result = run("repair", str(checkpoint.path))
    assert result.exit_code == 0
    assert "every store can be rebuilt; the next start of the query replays batches 1 to 3" in result.stdout


def test_lost_output_is_named_by_every_repair(checkpoint: Checkpoint) -> None:
    """A start brings back state, and not rows of a sink that replays do not reach."""
    catalog = Catalog(checkpoint.storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    frame = load(checkpoint.storage, 1).frames[0]
    entry = catalog.index.output(bytes.fromhex(frame))
    assert entry is not None
    checkpoint.flip(entry.location.end - 6)
    for _ in range(2):
        result = run("repair", str(checkpoint.path))
        assert result.exit_code == 1
        assert f"{manifest_path(1)}: no segment holds 1 of its 2 output frames" in result.stdout
        assert "these rows of the sink's output are lost" in result.stdout
        assert "nothing to repair" not in result.stdout
    found = answer(run("repair", str(checkpoint.path), "--json"))["lost_output"]
    assert [(each["kind"], each["where"]) for each in found] == [("lost", manifest_path(1))]


def test_a_damaged_manifest_is_named_by_every_repair(checkpoint: Checkpoint) -> None:
    (checkpoint.home / manifest_path(2)).write_bytes(b"")
    for arguments in (("--dry-run",), (), ()):
        result = run("repair", str(checkpoint.path), *arguments)
        assert result.exit_code == 1
        assert f"corrupt {manifest_path(2)} at byte 0" in result.stdout


def test_what_was_let_go_is_said_anew(checkpoint: Checkpoint) -> None:
    """Emptied by a crash of its machine, say: every reader is refused until somebody says it."""
    retired = checkpoint.home / RETIRED
    retired.write_bytes(b"")
    assert run("verify", str(checkpoint.path)).exit_code == 1
    dry = run("repair", str(checkpoint.path), "--dry-run", "--json")
    assert (dry.exit_code, answer(dry)["kept_from"], retired.read_bytes()) == (1, 0, b"")
    done = run("repair", str(checkpoint.path))
    assert done.exit_code == 0
    assert f"{RETIRED} was written anew: output is kept from batch 0 on" in done.stdout
    assert run("verify", str(checkpoint.path)).exit_code == 0
    assert answer(run("repair", str(checkpoint.path), "--json"))["kept_from"] is None


def test_a_damaged_cut_is_not_said_to_be_lost_rows(checkpoint: Checkpoint) -> None:
    cut = checkpoint.home / cut_path(0)
    cut.parent.mkdir()
    cut.write_bytes(b"{}")
    result = run("repair", str(checkpoint.path))
    assert result.exit_code == 1
    assert "until it is restored from a copy" in result.stdout
    assert "are lost" not in result.stdout


def test_the_file_with_the_logs_id_is_written_anew(checkpoint: Checkpoint) -> None:
    for spoilt in (b"", b"{"):
        (checkpoint.home / "log.json").write_bytes(spoilt)
        assert run("verify", str(checkpoint.path)).exit_code == 1
        dry = run("repair", str(checkpoint.path), "--dry-run")
        assert (dry.exit_code, "log.json would be written anew" in dry.stdout) == (1, True)
        done = run("repair", str(checkpoint.path))
        assert (done.exit_code, f"log.json was written anew, with the id {LOG_ID}" in done.stdout) == (0, True)
        assert run("verify", str(checkpoint.path)).exit_code == 0


def test_a_sound_log_is_left_alone(checkpoint: Checkpoint) -> None:
    before = files(checkpoint.path)
    assert answer(run("verify", str(checkpoint.path), "--json"))["fallback"] is None
    for arguments in ((), ("--dry-run",)):
        result = run("repair", str(checkpoint.path), *arguments)
        assert (result.exit_code, result.stdout) == (0, "nothing to repair: all bytes of all segments are sound\n")
    left = files(checkpoint.path)
    assert left.pop("cec/lock", None), "no lease was held"
    assert left == before


def test_a_dry_run_says_how_to_go_on(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    checkpoint.cut(1)
    result = run("repair", str(checkpoint.path), "--dry-run")
    assert "would be kept as" in result.stdout
    assert "run `cec repair` without --dry-run to do it" in result.stdout


@pytest.mark.parametrize(("version", "base"), [(4, 3), (3, 2), (1, 0)])
def test_a_lost_frame_costs_a_longer_replay(checkpoint: Checkpoint, version: int, base: int) -> None:
    """Every window is dirty since batch 1 by the footers: from version 0 on all batches are run again."""
    checkpoint.lose(STORES[0], version)
    looked = run("repair", str(checkpoint.path), "--dry-run", "--json")
    assert looked.exit_code == 1
    assert not (checkpoint.path / "cec" / FALLBACK.name).exists()
    dry = answer(looked)
    first = 1 if base else 0
    assert dry["fallback"] == {
        "version": base, "committed_batch": 3, "replay_from": first, "batches": 4 - first,
        "input_tuples": 30 * (4 - first),
    }  # fmt: skip
    assert [(lost["operator"], lost["partition"], lost["store"]) for lost in dry["lost"]] == [(0, 0, "default")]
    done = run("repair", str(checkpoint.path), "--json")
    assert done.exit_code == 0
    assert answer(done) == {**dry, "dry_run": False}
    recorded = json.loads((checkpoint.path / "cec" / FALLBACK.name).read_text())
    assert (recorded["version"], recorded["committed_batch"]) == (base, 3)
    for command in ("verify", "inspect"):
        words = f"the next start begins from version {base}, and brings back what is lost with a replay up to batch 3"
        assert words in run(command, str(checkpoint.path)).stdout
        shown = answer(run(command, str(checkpoint.path), "--json"))
        assert shown["fallback"] == {"version": base, "committed_batch": 3}
    again = answer(run("repair", str(checkpoint.path), "--json"))
    assert (again["removed"], again["fallback"]["version"]) == ([], base), "the bytes are gone, the loss is not"


def append_commits(checkpoint: Checkpoint, version: int) -> None:
    """Commits without a dirty window, in a segment of their own."""
    writer = make_writer(checkpoint.storage, 1 << 20, new_writer_id(1_800_000_000_000))
    for store in STORES:
        writer.append(FrameKind.COMMIT, commit_meta(version, store=store), payload_of(version))
    writer.close()


def test_a_fallback_that_is_due_is_a_replay_that_is_due(checkpoint: Checkpoint) -> None:
    """A clean stop has left nothing to replay; the fallback that was decided after it has."""
    catalog = Catalog(checkpoint.storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    (entry,) = catalog.index.commits(STORES[0], 3, 3)
    data = bytearray(checkpoint.segment.read_bytes())
    data[entry.location.end - 6] ^= 1
    first = checkpoint.segment
    append_commits(checkpoint, 5)
    checkpoint.commit(4)
    assert run("flush", str(checkpoint.path)).exit_code == 0
    first.write_bytes(data)
    assert run("repair", str(checkpoint.path)).exit_code == 0
    refused = run("flush", str(checkpoint.path))
    assert refused.exit_code == 2
    assert "its next start replays batches 1 to 4" in refused.output


def test_a_fallback_is_withdrawn_if_what_was_lost_is_back(checkpoint: Checkpoint, tmp_path: Path) -> None:
    segments = checkpoint.path / "cec" / "log" / "segments"
    shutil.copytree(segments, tmp_path / "segments")
    checkpoint.lose(STORES[0], 4)
    assert answer(run("repair", str(checkpoint.path), "--json"))["fallback"]["version"] == 3
    assert (checkpoint.path / "cec" / FALLBACK.name).exists()
    shutil.rmtree(segments)
    shutil.copytree(tmp_path / "segments", segments)
    assert answer(run("repair", str(checkpoint.path), "--json"))["fallback"] is None
    assert not (checkpoint.path / "cec" / FALLBACK.name).exists()


def test_the_segments_of_a_damaged_bundle_are_not_lost(checkpoint: Checkpoint) -> None:
    """The repair takes them out of the bundle, so no fallback is needed. A later segment names the stores."""
    log, bundled = checkpoint.storage, checkpoint.segment
    data = bytearray(encode_bundle({bundled.stem: bundled.read_bytes()}))
    data[9] ^= 1
    append_commits(checkpoint, 5)
    log.create(segment_path(bundle_name(new_writer_id(1_700_000_000_000))), bytes(data))
    bundled.unlink()
    assert answer(run("repair", str(checkpoint.path), "--dry-run", "--json"))["fallback"] is not None, "until then"
    repaired = run("repair", str(checkpoint.path), "--json")
    assert (repaired.exit_code, answer(repaired)["fallback"]) == (0, None)
    assert not (checkpoint.path / "cec" / FALLBACK.name).exists()
    assert run("verify", str(checkpoint.path)).exit_code == 0


def test_what_falling_back_costs_is_said(checkpoint: Checkpoint) -> None:
    checkpoint.lose(STORES[1], 3)
    result = run("repair", str(checkpoint.path))
    assert result.exit_code == 0
    assert "lost    store 0/1/default: " in result.stdout
    assert (
        "the log still has all stores at version 2: the next start of the query begins from there, and a replay of "
        "batches 1 to 3 (3 batches, about 90 input tuples) brings back what is lost" in result.stdout
    )


def test_input_that_no_footer_counts_is_not_said_to_be_little(checkpoint: Checkpoint) -> None:
    """Half of the log is gone, and with it the counts of what a replay would have to take in again."""
    checkpoint.cut(checkpoint.segment.stat().st_size // 2)
    result = run("repair", str(checkpoint.path), "--json")
    assert answer(result)["fallback"]["input_tuples"] is None
    said = " ".join(run("repair", str(checkpoint.path)).stdout.split())
    assert "how much input is not known:" in said and "of them left no count)" in said
    assert "input tuples" not in said


def moved_outside(checkpoint: Checkpoint, owner: Path) -> Path:
    """Moves the log out of the checkpoint; it is of the query of that checkpoint. Its new home."""
    home, query = checkpoint.path.parent / "log", checkpoint.path / "cec" / "query.json"
    checkpoint.home.rename(home)
    query.write_text(json.dumps({**json.loads(query.read_text()), "log_home": str(home)}))
    (home / "owner.json").write_text(json.dumps({"checkpoint": str(owner)}))
    return home


def test_a_copy_of_a_checkpoint_does_not_repair_the_log_of_the_original(checkpoint: Checkpoint) -> None:
    checkpoint.lose(STORES[0], 3)
    home, copy = moved_outside(checkpoint, checkpoint.path), checkpoint.path.parent / "copy"
    shutil.copytree(checkpoint.path, copy)
    before = files(home)
    result = run("repair", str(copy))
    assert result.exit_code == 2 and "belongs to the checkpoint" in result.stderr
    assert {path: content for path, content in files(home).items() if path != "lock"} == before
    assert run("repair", str(checkpoint.path)).exit_code == 0


@pytest.mark.parametrize("named", ["checkpoint", "log"])
def test_a_log_whose_query_runs_is_not_repaired_by_whatever_name(checkpoint: Checkpoint, named: str) -> None:
    checkpoint.lose(STORES[0], 3)
    home = moved_outside(checkpoint, checkpoint.path)
    before = files(home)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("repair", str(home if named == "log" else checkpoint.path))
    assert result.exit_code == 2 and "is running already" in result.stderr
    assert {path: content for path, content in files(home).items() if path != "lock"} == before


@pytest.mark.parametrize("named", ["cec/log", "./cec/../cec/log/", "log", ".", "linked"])
def test_a_log_inside_the_checkpoint_is_not_repaired_while_its_query_runs(
    checkpoint: Checkpoint, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its query holds the lease of the checkpoint, and none of the log."""
    checkpoint.segment.write_bytes(checkpoint.segment.read_bytes() + bytes(40))
    monkeypatch.chdir({"log": checkpoint.path / "cec", ".": checkpoint.home}.get(named, checkpoint.path))
    if named == "linked":
        (checkpoint.path / "linked").symlink_to(checkpoint.home)
    before = files(checkpoint.home)
    with (checkpoint.path / "cec" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("repair", named)
    assert result.exit_code == 2 and "is running already" in result.stderr, result.output
    assert files(checkpoint.home) == before
    assert answer(run("verify", named, "--json"))["committed_batch"] == 3


def test_a_query_that_runs_is_not_repaired(checkpoint: Checkpoint) -> None:
    checkpoint.lose(STORES[0], 3)
    before = files(checkpoint.path)
    with (checkpoint.path / "cec" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("repair", str(checkpoint.path))
    assert result.exit_code == 2
    assert "is running already" in result.stderr
    left = files(checkpoint.path)
    left.pop("cec/lock")
    assert left == before


def add_stranger(checkpoint: Checkpoint, log_id: str = "ab" * 16) -> tuple[Path, bytes]:
    """A segment of another log, as a copy into the wrong directory leaves it: its path and its bytes."""
    name = SegmentName(new_writer_id(1_800_000_000_000), 0)
    frames = [frame_bytes(commit_meta(5, store=STORES[0]), payload_of(5))]
    data = b"".join([*map(bytes, encode_segment_frame(log_id, name, 5)), *frames])
    place = checkpoint.home / segment_path(str(name))
    place.write_bytes(data)
    return place, data


def test_a_segment_of_another_log_is_taken_out_whole(checkpoint: Checkpoint) -> None:
    undisturbed = answer(run("verify", str(checkpoint.path), "--json"))["stores"]
    place, data = add_stranger(checkpoint)
    own = checkpoint.home / segment_path(sorted({*(checkpoint.home / "segments").iterdir()} - {place})[0].name)
    before = own.read_bytes()
    for command in ("verify", "inspect"):
        (named,) = answer(run(command, str(checkpoint.path), "--json"))["damages"]
        assert (named["where"], named["offset"], named["bytes_lost"]) == (place.name, 0, len(data))
    dry = run("repair", str(checkpoint.path), "--dry-run", "--json")
    assert (dry.exit_code, place.read_bytes()) == (1, data)
    done = run("repair", str(checkpoint.path), "--json")
    assert (done.exit_code, answer(done)) == (0, {**answer(dry), "dry_run": False})
    (removed,) = answer(done)["removed"]
    assert removed["reason"] == f"the segment belongs to log {'ab' * 16}"
    assert (checkpoint.home / removed["kept_as"]).read_bytes() == data
    assert own.read_bytes() == before
    for command in ("verify", "inspect"):
        result = run(command, str(checkpoint.path), "--json")
        assert (result.exit_code, answer(result)["damages"]) == (0, [])
    assert answer(run("verify", str(checkpoint.path), "--json"))["stores"] == undisturbed
    assert "nothing to repair" in run("repair", str(checkpoint.path)).stdout


def test_a_log_of_which_every_segment_belongs_to_another_one_stays_as_it_is(tmp_path: Path) -> None:
    """Then its `log.json` is the stranger: nothing may take a whole log out."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    home = shutil.copytree(checkpoint.home, tmp_path / "log")
    (home / "log.json").unlink()
    join_log(open_storage(str(home)), "ab" * 16)
    before = files(home)
    for arguments in (("--dry-run",), ()):
        result = run("repair", str(home), *arguments)
        assert result.exit_code == 2 and f"every segment belongs to log {LOG_ID}" in result.stderr, result.output
    left = files(home)
    left.pop("lock", None)
    assert left == before
    (home / "log.json").unlink()
    assert run("repair", str(home)).exit_code == 0
    assert run("verify", str(home)).exit_code == 0


def test_a_stranger_does_not_give_a_log_its_id(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Without `log.json` the segments tell, and the first one may be the stranger."""
    append_commits(checkpoint, 5)
    place, data = add_stranger(checkpoint)
    first = place.with_name(str(SegmentName("0000c0ffee00-00112233445566ff", 0)))
    place.rename(first)
    home = shutil.copytree(checkpoint.home, tmp_path / "log")
    (home / "log.json").unlink()
    result = run("repair", str(home))
    assert result.exit_code == 0 and f"log.json was written anew, with the id {LOG_ID}" in result.stdout
    assert (home / "broken" / f"{first.name}-0").read_bytes() == data
    assert run("verify", str(home)).exit_code == 0


def test_a_frame_whose_meta_cannot_be_decoded_is_a_lost_frame(checkpoint: Checkpoint) -> None:
    """Its checksums are right. A start, `cec inspect` and `cec verify` cannot read it, so `cec repair` takes it out."""
    catalog = Catalog(checkpoint.storage, MemoryIndex(LOG_ID))
    catalog.refresh()
    (entry,) = catalog.index.commits(STORES[1], 4, 4)
    at, whole = entry.location, checkpoint.segment.read_bytes()
    short = b"".join(map(bytes, encode_frame(FrameKind.COMMIT, entry.meta.encode()[:9], payload_of(4))))
    checkpoint.segment.write_bytes(whole[: at.offset] + short + whole[at.end :])
    where = (checkpoint.segment.name, at.offset)
    for command in ("verify", "inspect"):
        damages = answer(run(command, str(checkpoint.path), "--json"))["damages"]
        assert where in [(each["where"], each["offset"]) for each in damages]
    dry = answer(run("repair", str(checkpoint.path), "--dry-run", "--json"))
    done = run("repair", str(checkpoint.path), "--json")
    assert (done.exit_code, answer(done)) == (0, {**dry, "dry_run": False})
    assert [(each["offset"], each["bytes_lost"]) for each in dry["removed"]] == [(at.offset, len(short))]
    assert [(each["operator"], each["partition"]) for each in dry["lost"]] == [(0, 1)]
    assert dry["fallback"]["version"] == 3
    assert checkpoint.segment.read_bytes() == whole[: at.offset] + whole[at.end :]
    assert {e["kind"] for e in answer(run("verify", str(checkpoint.path), "--json"))["damages"]} == {"lost"}


def without_lock(checkpoint: Checkpoint, kind: str) -> Path:
    """The place of a log whose query takes no lease: by its checkpoint, or by its home alone."""
    if kind == "no state":
        home = f"file:{checkpoint.home}"
        changed = query_json(home, provider=False, mode="stateless", reason="it has no state")
        (checkpoint.path / "cec" / "query.json").write_text(changed)
        return checkpoint.path
    alone = checkpoint.path.with_name("log")
    storage = open_storage(str(alone))
    join_log(storage, LOG_ID)
    writer = make_writer(storage)
    frame = output_meta(1, batch=0)
    writer.append(FrameKind.OUTPUT, frame, payload_of(1))
    writer.close()
    publish(storage, Manifest(0, (frame.frame_id.hex(),), 3, "{}", False, 1, 1_000))
    return alone


def tear(place: Path) -> Path:
    """Adds a torn end to the only segment."""
    (segment,) = place.rglob("segments/*")
    segment.write_bytes(segment.read_bytes() + b"torn")
    return segment


@pytest.mark.parametrize("kind", ["no state", "home alone"])
def test_a_query_without_a_lock_must_be_known_to_be_stopped(checkpoint: Checkpoint, kind: str) -> None:
    """Nothing here tells whether it runs, and a row that it appends meanwhile must not go."""
    place = without_lock(checkpoint, kind)
    assert run("repair", str(place)).exit_code == 0, "there is nothing to do, and nothing to ask"
    segment = tear(place)
    before = segment.read_bytes()
    for arguments in ((), ("--json",)):
        refused = run("repair", str(place), *arguments)
        assert (refused.exit_code, segment.read_bytes()) == (2, before)
        assert "takes no lock" in refused.stderr and "--yes" in refused.stderr
    dry = run("repair", str(place), "--dry-run", "--json")
    assert (dry.exit_code, segment.read_bytes()) == (1, before)
    done = run("repair", str(place), "--yes", "--json")
    assert (done.exit_code, answer(done)) == (0, {**answer(dry), "dry_run": False})
    assert run("verify", str(place)).exit_code == 0


@pytest.mark.parametrize("is_stopped", [True, False])
def test_somebody_at_a_terminal_is_asked(
    checkpoint: Checkpoint, is_stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = without_lock(checkpoint, "no state")
    segment = tear(place)
    before = segment.read_bytes()
    monkeypatch.setattr(repair_command, "can_ask", lambda: True)
    done = CliRunner().invoke(app, ["repair", str(place)], input="y\n" if is_stopped else "n\n")
    assert "nothing here tells whether the query runs" in done.output
    assert done.exit_code == (0 if is_stopped else 2)
    assert segment.read_bytes() == (before[: -len("torn")] if is_stopped else before)
    assert ("nothing was changed" in done.output) is not is_stopped


def test_a_row_that_a_running_query_appends_meanwhile_stays(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task appends to the segment that is replaced, after the last look at its size, and gets its acknowledgement."""
    home = checkpoint.path.with_name("log")
    storage = open_storage(str(home))
    join_log(storage, LOG_ID)
    writer = make_writer(storage)

    def write(batch: int) -> Location:
        frame = output_meta(batch + 1, batch=batch)
        location = writer.append(FrameKind.OUTPUT, frame, payload_of(batch)).location
        publish(storage, Manifest(batch, (frame.frame_id.hex(),), 3, "{}", False, 1, 1_000 + batch))
        return location

    damaged = [write(batch) for batch in range(3)][1]
    segment = home / segment_path(damaged.segment)
    data = bytearray(segment.read_bytes())
    data[damaged.end - 6] ^= 1
    with segment.open("r+b") as file:
        file.write(data)
    write_beside = LocalStorage._write_beside

    def write_slowly(self: LocalStorage, target: Path, content: Buffer) -> Path:
        beside = write_beside(self, target, content)
        if target == segment:
            monkeypatch.undo()
            write(3)
        return beside

    monkeypatch.setattr(LocalStorage, "_write_beside", write_slowly)
    result = run("repair", str(home), "--yes")
    assert result.exit_code == 2 and "stop the query, then repair again" in result.stderr
    write(4)
    again = run("repair", str(home), "--yes", "--json")
    assert [each["where"] for each in answer(again)["lost_output"]] == [manifest_path(1)]


def test_a_flush_of_a_query_without_state_does_not_say_that_it_is_stopped(checkpoint: Checkpoint) -> None:
    """It takes no lock, so that nothing tells. Nothing is ever dirty, whether it runs or not."""
    result = run("flush", str(without_lock(checkpoint, "no state")))
    assert (result.exit_code, result.stdout) == (
        0, "all is written up to batch 3, because each batch of this query writes all that it changes\n"
    )  # fmt: skip


def test_batches_that_had_another_sink_are_no_loss_once_that_is_said(tmp_path: Path) -> None:
    """The sink was changed after batch 3, and changed back after batch 7."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", versions=10, last_commit=9)
    for batch in range(4, 8):
        (checkpoint.home / manifest_path(batch)).unlink()
    place = str(checkpoint.path)
    lost = answer(run("repair", place, "--json"))["lost_output"]
    assert [each["where"] for each in lost] == [manifest_path(batch) for batch in range(4, 8)]
    assert "run `cec repair` with --other-sink FIRST-LAST" in run("repair", place).stdout.replace("\n", " ")
    before = files(checkpoint.home)
    for wrong in ("4-8", "7-4", "x", "10-11"):
        assert run("repair", place, "--other-sink", wrong).exit_code == 2
    dry = run("repair", place, "--other-sink", "4-7", "--dry-run", "--json")
    assert (dry.exit_code, files(checkpoint.home)) == (1, before)
    done = run("repair", place, "--other-sink", "4-7", "--json")
    assert (done.exit_code, answer(done)) == (0, {**answer(dry), "dry_run": False})
    assert (answer(done)["other_sink"], answer(done)["lost_output"]) == ({"first": 4, "last": 7}, [])
    assert run("verify", place).exit_code == 0
    assert "nothing to repair" in run("repair", place).stdout
    shown = answer(run("outputs", place, "--json"))["batches"]
    assert [each["batch"] for each in shown if each["other_sink"]] == [4, 5, 6, 7]
    (checkpoint.home / manifest_path(6)).unlink()
    (checkpoint.home / manifest_path(2)).unlink()
    damages = answer(run("verify", place, "--json"))["damages"]
    assert [each["where"] for each in damages] == [manifest_path(2), manifest_path(6)]
    said = run("repair", place, "--other-sink", "6").stdout
    assert "noted: another sink had batch 6, and readers pass over them" in said and manifest_path(2) in said
