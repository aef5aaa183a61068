"""The damage of a log, each with its place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from spark_cec.errors import DamagedLog
from spark_cec.log.scan import Damage, Torn

_TORN = "unfinished, as a crash leaves it, or a writer at work; nothing acknowledged is in it, if no store is lost"


class FindingKind(str, Enum):
    """Torn: short or zeroed at a segment's end. Corrupt: changed bytes. Lost: missing."""

    TORN = "torn"
    CORRUPT = "corrupt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage. `where`: a segment, another file of the log, or a store. `bytes_lost` is for segments only."""

    kind: FindingKind
    where: str
    reason: str
    offset: int | None = None
    bytes_lost: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, ready for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value}


def damage_finding(damage: Damage) -> Finding:
    """The finding for a segment's damage."""
    if isinstance(damage, Torn):
        return Finding(FindingKind.TORN, damage.segment, _TORN, damage.offset, damage.bytes_lost)
    return Finding(FindingKind.CORRUPT, damage.segment, damage.reason, damage.offset, damage.bytes_lost)


def error_finding(error: DamagedLog) -> Finding:
    """The finding for damage that stopped a reader: in a file at an offset, or a missing file or frame."""
    if error.offset < 0:
        return Finding(FindingKind.LOST, error.segment, error.reason)
    return Finding(FindingKind.CORRUPT, error.segment, error.reason, error.offset)


def damage_findings(*groups: Iterable[Damage]) -> list[Finding]:
    """The findings of several reads, each place once, by segment and offset."""
    by_place = {(d.segment, d.offset): d for group in reversed(groups) for d in group}
    return [damage_finding(by_place[place]) for place in sorted(by_place)]
