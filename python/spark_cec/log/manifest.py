"""Manifests: which output frames of a batch count (`FORMAT.md`, section 3)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from spark_cec.errors import AlreadyExists, DamagedLog, NewerFormat
from spark_cec.log.frame import crc32c
from spark_cec.log.storage import Storage

MANIFESTS = "manifests"
FORMAT_VERSION = 1

_DIGITS = 20
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The output of one batch.

    `frames`: ids of its output frames, 32 hex digits each, in order. `schema_json`: the rows' schema. `truncate`:
    earlier batches no longer count. `wall_ms`: ms since the epoch.
    """

    batch: int
    frames: tuple[str, ...]
    rows: int
    schema_json: str
    truncate: bool
    generation: int
    wall_ms: int


def publish(storage: Storage, manifest: Manifest) -> Manifest:
    """Make the manifest the one of its batch, unless there is one: returns the manifest that counts.

    Errors: `DamagedLog` if the one that is there cannot be read.
    """
    try:
        storage.create(manifest_path(manifest.batch), _encode(manifest))
    except AlreadyExists:
        return load(storage, manifest.batch)
    return manifest


def load(storage: Storage, batch: int) -> Manifest:
    """The manifest of a batch. Errors: `FileNotFoundError` if there is none, `DamagedLog`, `NewerFormat`."""
    path = manifest_path(batch)
    manifest = _decode(path, storage.read(path))
    if manifest.batch != batch:
        raise DamagedLog(path, 0, f"it is the manifest of batch {manifest.batch}")
    return manifest


def batches(storage: Storage) -> list[int]:
    """The batches that have a manifest, sorted; from one directory listing."""
    stems = [file.name.removesuffix(_SUFFIX) for file in storage.list(MANIFESTS) if file.name.endswith(_SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isascii() and stem.isdigit())


def retire(storage: Storage, before: int) -> list[int]:
    """Delete the manifests of batches below `before`; returns the batches, oldest first."""
    retired = [batch for batch in batches(storage) if batch < before]
    for batch in retired:
        storage.delete(manifest_path(batch))
    return retired


def manifest_path(batch: int) -> str:
    """Path of a batch's manifest below the log's home."""
    if batch < 0:
        raise ValueError(f"batch {batch} is negative; batches count from 0")
    return f"{MANIFESTS}/{batch:0{_DIGITS}d}{_SUFFIX}"


def _encode(manifest: Manifest) -> bytes:
    fields = {**asdict(manifest), "frames": list(manifest.frames), "format_version": FORMAT_VERSION}
    return _canonical({**fields, "crc32c": crc32c(_canonical(fields))})


def _decode(path: str, data: bytes) -> Manifest:
    try:
        fields = json.loads(data)
        crc, version = fields.pop("crc32c"), fields["format_version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedLog(path, 0, f"no manifest: {error}") from error
    if crc != crc32c(_canonical(fields)):
        raise DamagedLog(path, 0, "the manifest fails its checksum")
    if version != FORMAT_VERSION:
        raise NewerFormat(path, f"format version {version}")
    return Manifest(
        fields["batch"], tuple(fields["frames"]), fields["rows"], fields["schema_json"], fields["truncate"],
        fields["generation"], fields["wall_ms"],
    )  # fmt: skip


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
