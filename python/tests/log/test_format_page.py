"""FORMAT.md: nothing that the code knows is missing from it, and its example is true."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import spark_cec.log
from spark_cec.agent.messages import EpochReading
from spark_cec.agent.object_lease import Beat
from spark_cec.ids import StoreId
from spark_cec.log.frame import (
    MAGIC,
    CommitFlags,
    CommitMeta,
    Frame,
    FrameFlags,
    FrameKind,
    LoadedMeta,
    OutputMeta,
    parse_frame,
)
from spark_cec.log.manifest import Manifest
from spark_cec.log.output_rollbacks import Cut
from spark_cec.log.record import RecordKind

PAGE = (Path(spark_cec.log.__path__[0]) / "FORMAT.md").read_text()


@pytest.mark.parametrize("kind", [*FrameKind, *RecordKind], ids=lambda kind: kind.name)
def test_each_kind_is_in_a_table_with_its_number(kind: FrameKind | RecordKind) -> None:
    assert f"| `{kind.name}` | {kind.value} |" in PAGE


@pytest.mark.parametrize("flag", CommitFlags, ids=lambda flag: flag.name)
def test_each_flag_has_its_bit(flag: CommitFlags) -> None:
    assert f"bit {flag.value.bit_length() - 1} `{flag.name}`" in PAGE


@pytest.mark.parametrize("flag", FrameFlags, ids=lambda flag: flag.name)
def test_each_flag_of_a_frame_has_its_value(flag: FrameFlags) -> None:
    assert f"{flag.value} `{flag.name}`" in PAGE


@pytest.mark.parametrize("kind", [CommitMeta, OutputMeta, LoadedMeta, Manifest, Cut])
def test_each_field_is_named(kind: type) -> None:
    for field in dataclasses.fields(kind):
        assert re.search(rf"\b{field.name}\b", PAGE), field.name


def test_the_worked_example_is_a_frame() -> None:
    example = PAGE.split("### Worked example")[1].split("```")[1]
    lines = [line for line in example.splitlines() if line.strip()]
    data, offsets = b"", []
    for line in lines:
        at, text, _ = re.split(r"\s{2,}", line.strip(), maxsplit=2)
        offsets.append((int(at), len(data)))
        data += bytes.fromhex(text)
    assert all(said == true for said, true in offsets)
    assert data.startswith(MAGIC)
    frame = parse_frame(data)
    assert isinstance(frame, Frame)
    assert frame.header.total_length == len(data)
    assert frame.meta == LoadedMeta(StoreId(1, 2, "left"), 42, 3, 1_700_000_000_000)
    assert bytes(frame.payload) == b'{"held":5}'
    assert f"The frame is {len(data)} bytes long" in PAGE


def test_what_a_lease_and_an_agreement_have_is_named() -> None:
    lease = json.loads(Beat("token", 1, is_released=False, host="here", process=None).encode())
    missing = [field for field in (*lease, "start", "end", "replica") if f'"{field}"' not in PAGE]
    assert not missing


def test_what_an_offset_has_of_an_epoch_is_named() -> None:
    assert [field for field in EpochReading.__struct_fields__ if f'"{field}": ' not in PAGE] == []
