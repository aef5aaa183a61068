"""The footprint ledger of one store: counts per version, without keys.

For every version that can still matter, it counts the commit's records, its input tuples, and the open windows whose
footprint is there. The counts give the paper's extent q and replay u.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Footprints:
    """Counts per version of one store; versions are Spark's.

    `records`, `inputs`: of the commit that made the version, in ascending order of versions. `live`: open windows whose
    footprint is the version. `dirty_from` is D, where a replay would start (the newest version if no window is dirty).
    """

    version: int = 0
    dirty_from: int = 0
    dirty_windows: int = 0
    records: dict[int, int] = field(default_factory=dict)
    inputs: dict[int, int] = field(default_factory=dict)
    live: dict[int, int] = field(default_factory=dict)

    @property
    def open_windows(self) -> int:
        """N, the number of open windows."""
        return sum(self.live.values())

    @property
    def oldest_footprint(self) -> int:
        """O: the version of the oldest footprint of an open window; the newest version if no window is open."""
        return min(self.live, default=self.version)

    @property
    def extent(self) -> int:
        """q: records from the oldest footprint of an open window to the end of the log."""
        oldest = self.oldest_footprint
        return sum(count for version, count in self.records.items() if version >= oldest) if self.live else 0

    @property
    def replay(self) -> int:
        """u: input tuples of the batches that a recovery would replay, D and later."""
        return sum(count for version, count in self.inputs.items() if version > self.dirty_from)

    def commit(
        self,
        version: int,
        *,
        records: int,
        inputs: int,
        live_changes: Mapping[int, int],
        dirty_from: int,
        dirty_windows: int,
    ) -> None:
        """Adds one commit; `live_changes` are the differences to `live`, per footprint version.

        Raises `ValueError` if a count would become negative.
        """
        self.version = version
        self.records[version] = records
        self.inputs[version] = inputs
        self.dirty_from = dirty_from
        self.dirty_windows = dirty_windows
        for at, change in live_changes.items():
            count = self.live.get(at, 0) + change
            if count < 0:
                raise ValueError(f"footprint ledger at version {version}: {count} open windows with footprint {at}")
            if count:
                self.live[at] = count
            else:
                self.live.pop(at, None)
        self._forget_before(min(self.oldest_footprint, dirty_from))

    def _forget_before(self, version: int) -> None:
        for counts in (self.records, self.inputs):
            while counts and (oldest := next(iter(counts))) < version:
                del counts[oldest]

    @classmethod
    def restore(
        cls,
        history: Iterable[tuple[int, int, int]],
        live: Mapping[int, int],
        dirty_from: int,
        dirty_windows: int,
    ) -> Footprints:
        """The ledger from the log: `history` has (version, records, inputs) per frame, `live` comes from the EC."""
        ledger = cls(dirty_from=dirty_from, dirty_windows=dirty_windows, live=dict(live))
        for version, records, inputs in sorted(history):
            # A commit and its flush have one version.
            ledger.records[version] = ledger.records.get(version, 0) + records
            ledger.inputs[version] = ledger.inputs.get(version, 0) + inputs
            ledger.version = max(ledger.version, version)
        return ledger
