"""`cec repair`: what it says is what it does."""

from __future__ import annotations

from pathlib import Path

from spark_cec.log.frame import PRELUDE_LENGTH
from tests.cli.support import Checkpoint, answer, files, make_checkpoint, run


def test_a_dry_run_announces_what_the_repair_then_does(checkpoint: Checkpoint) -> None:
    whole = checkpoint.segment.read_bytes()
    checkpoint.segment.write_bytes(whole + whole[: PRELUDE_LENGTH - 1])
    dry = run("repair", str(checkpoint.path), "--dry-run", "--json")
    assert dry.exit_code == 1
    done = run("repair", str(checkpoint.path), "--json")
    assert done.exit_code == 0
    assert answer(done) == {**answer(dry), "dry_run": False}
    (removed,) = answer(done)["removed"]
    assert (removed["kind"], removed["offset"], removed["bytes_lost"]) == ("torn", len(whole), PRELUDE_LENGTH - 1)
    assert (checkpoint.home / removed["kept_as"]).read_bytes() == whole[: PRELUDE_LENGTH - 1]
    assert checkpoint.segment.read_bytes() == whole
    assert run("verify", str(checkpoint.path)).exit_code == 0


def test_what_is_lost_stays_lost_and_verify_says_so(checkpoint: Checkpoint) -> None:
    checkpoint.flip(-6)
    result = run("repair", str(checkpoint.path))
    assert result.exit_code == 0
    assert result.stdout.startswith("corrupt ")
    assert f"kept as {checkpoint.path}/cec/log/broken/" in result.stdout
    assert "run `cec verify` to see whether anything is still missing" in result.stdout
    found = answer(run("verify", str(checkpoint.path), "--json"))["damages"]
    assert [(each["kind"], each["where"]) for each in found] == [("lost", "store 1/0/left")]


def test_a_sound_log_is_left_alone(checkpoint: Checkpoint) -> None:
    before = files(checkpoint.path)
    for arguments in ((), ("--dry-run",)):
        result = run("repair", str(checkpoint.path), *arguments)
        assert (result.exit_code, result.stdout) == (0, "nothing to repair: all bytes of all segments are sound\n")
    assert files(checkpoint.path) == before


def test_a_dry_run_says_how_to_go_on(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    checkpoint.cut(1)
    result = run("repair", str(checkpoint.path), "--dry-run")
    assert "would be kept as" in result.stdout
    assert "run `cec repair` without --dry-run to do it" in result.stdout
