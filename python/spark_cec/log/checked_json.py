"""JSON objects of the log with their own checksum: manifests, cuts, and notes (`FORMAT.md`, section 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_cec.errors import DamagedLog, NewerFormat
from spark_cec.log.frame import crc32c

FORMAT_VERSION = 1


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """The object with its format version and a checksum."""
    whole = {**fields, "format_version": FORMAT_VERSION}
    return canonical({**whole, "crc32c": crc32c(canonical(whole))})


def decode_object(path: str, data: bytes, what: str) -> tuple[dict[str, Any], int]:
    """The object's fields, unknown ones included, and its checksum. `what` names the object in errors.

    Errors: `DamagedLog` if the bytes are no such object or fail the checksum; `NewerFormat`.
    """
    try:
        fields = json.loads(data)
        crc, version = fields.pop("crc32c"), fields["format_version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedLog(path, 0, f"no {what}: {error}") from error
    if crc != crc32c(canonical(fields)):
        raise DamagedLog(path, 0, f"the {what} fails its checksum")
    if version != FORMAT_VERSION:
        raise NewerFormat(path, f"format version {version}")
    return fields, crc


def canonical(fields: Mapping[str, Any]) -> bytes:
    """The bytes that the checksum covers: sorted keys, no white space, ASCII."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
