"""What is wrong with a log, with a place, whoever found it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from spark_cec.errors import DamagedLog
from spark_cec.log.scan import Damage, Torn

_TORN = "unfinished, as a crash leaves it, or a writer at work; nothing acknowledged is in it, if no store is lost"


class FindingKind(str, Enum):
    """Torn: short or zeroed at a segment's end. Corrupt: not what was written. Lost: not there, but should be."""

    TORN = "torn"
    CORRUPT = "corrupt"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Finding:
    """One damage. `where`: a segment, another file of the log, or a store. `bytes_lost` only of segments."""

    kind: FindingKind
    where: str
    reason: str
    offset: int | None = None
    bytes_lost: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, ready for `json.dumps`."""
        return {**asdict(self), "kind": self.kind.value}


def of_damage(damage: Damage) -> Finding:
    """What a scan found in a segment."""
    if isinstance(damage, Torn):
        return Finding(FindingKind.TORN, damage.segment, _TORN, damage.offset, damage.bytes_lost)
    return Finding(FindingKind.CORRUPT, damage.segment, damage.reason, damage.offset, damage.bytes_lost)


def of_error(error: DamagedLog) -> Finding:
    """Damage that stopped a reader: in the file at an offset, or something missing as a whole."""
    if error.offset < 0:
        return Finding(FindingKind.LOST, error.segment, error.reason)
    return Finding(FindingKind.CORRUPT, error.segment, error.reason, error.offset)


def of_damages(*groups: Iterable[Damage]) -> list[Finding]:
    """The damages of several readers, each place once, by segment and offset."""
    by_place = {(d.segment, d.offset): d for group in reversed(groups) for d in group}
    return [of_damage(by_place[place]) for place in sorted(by_place)]
