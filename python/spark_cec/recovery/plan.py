"""The plan of a recovery: which batches the query must replay (docs/design.md, One recovery).

`recovery.decide` makes it from the facts of `recovery.facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_cec.ids import StoreId
from spark_cec.log.index import CommitEntry
from spark_cec.log.meta import CommitMeta

Allows: TypeAlias = "Callable[[CommitEntry], bool]"
"""Tells whether an attempt may be the committed one; see `recovery.attempts`."""

ANY_VERSION = 1 << 62
"""A number above every version."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """V, T, the version from which the stores begin, and each store's footer at that version.

    `base` is V+1. If a lost frame made the query fall back, `base` is an older version w (`recovery.fallback`).
    """

    committed_batch: int
    rewound_to: int
    base: int
    stores: tuple[StoreId, ...]
    heads: tuple[CommitMeta, ...]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> RecoveryPlan:
        """The inverse of `to_json`; ignores unknown fields."""
        stores = (StoreId(int(operator), int(partition), str(name)) for operator, partition, name in raw["stores"])
        heads = (CommitMeta.decode(bytes.fromhex(head)) for head in raw["heads"])
        committed, rewound_to, base = (int(raw[name]) for name in ("committed_batch", "rewound_to", "base"))
        return cls(committed, rewound_to, base, tuple(stores), tuple(heads))

    def to_json(self) -> dict[str, Any]:
        """The whole plan, so that another agent can use it after a restart. Footers are in hex, as the log has them."""
        return {
            "committed_batch": self.committed_batch,
            "rewound_to": self.rewound_to,
            "base": self.base,
            "stores": [[each.operator, each.partition, each.name] for each in self.stores],
            "heads": [head.encode().hex() for head in self.heads],
        }

    @property
    def replayed_batches(self) -> int:
        """The number of committed batches that run again: V - T."""
        return self.committed_batch - self.rewound_to
