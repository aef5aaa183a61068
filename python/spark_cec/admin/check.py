"""The full check of a log: reads every byte, and rebuilds every store as a recovery would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from spark_cec.admin.committed import (
    Committed,
    committed,
    committed_attempts,
    decided_fallback,
    list_stores,
    note_unwritten,
)
from spark_cec.admin.damage import Finding, damage_findings, error_finding
from spark_cec.admin.find_log import Place
from spark_cec.admin.state import open_catalog
from spark_cec.checkpoint.eventual import head_at, rebuild
from spark_cec.errors import DamagedLog
from spark_cec.ids import StoreId
from spark_cec.log import manifest
from spark_cec.log.catalog import Catalog
from spark_cec.log.index import Index
from spark_cec.log.reader import FoundFrame, SegmentReport, Torn, VerifyReport, scan_whole, verify
from spark_cec.log.segment import segment_path
from spark_cec.log.storage import Storage
from spark_cec.recovery.attempts import Allows, newest_allowed
from spark_cec.recovery.query_files import Fallback

CountCallback = Callable[[int], None]
"""Takes the number of stores to check."""


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """One rebuilt eventual checkpoint, or the `damage` that prevents it. `scanned` counts log records read."""

    store: StoreId
    version: int
    open_windows: int = 0
    scanned: int = 0
    damage: Finding | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of the full check; `findings` includes the stores' damage.

    `decided`: the fallback that `cec repair` has decided for the next start.
    """

    place: Place
    committed: Committed | None
    segments: tuple[SegmentReport, ...]
    output_batches: int
    stores: tuple[StoreCheck, ...]
    findings: tuple[Finding, ...]
    decided: Fallback | None


def verify_log(place: Place, stores_begin: CountCallback, store_done: Callable[[], None]) -> Verification:
    """Checks the log at `place`; writes nothing.

    1. Read every byte of the segments, every manifest and `log.json`. Read frames again that were incomplete.
    2. Look for the output frames that manifests name.
    3. Rebuild every store at the version that Spark has committed, and at the newest in the log.

    If a running query trims its log meanwhile, the check reads the files that are left.

    Errors: `NewerFormat`.
    """
    storage = place.storage
    report = _rescan_tails(storage, verify(storage, place.log_id))  # 1
    batches, _ = manifest.readable_batches(storage)  # 2
    done = committed(place)
    catalog = open_catalog(place)
    catalog.refresh(asks_sizes=True)
    done = note_unwritten(place, catalog.index, done)
    outputs = [*_find_missing_manifests(storage, batches), *_find_missing_outputs(storage, catalog.index, batches)]
    stores = tuple(_check_stores(place, catalog, done, stores_begin, store_done))  # 3
    known = {error.segment for error in report.files}
    files = [*report.files, *([place.damage] if place.damage and place.damage.segment not in known else [])]
    findings = [
        *(error_finding(error) for error in files),
        *damage_findings(report.damages, catalog.damages),
        *outputs,
        *(check.damage for check in stores if check.damage),
    ]
    decided = decided_fallback(place, catalog.index, done)
    return Verification(place, done, report.segments, len(batches), stores, tuple(findings), decided)


def find_lost_output(place: Place, elsewhere: Collection[int] = ()) -> list[Finding]:
    """Finds the sink's rows that no reader can read: damaged cuts, damaged or missing manifests, lost frames.

    Existing frames count as sound: a repair has just removed the damaged ones. `elsewhere`: batches that had another
    sink, and need no manifest.
    """
    storage, catalog = place.storage, open_catalog(place)
    catalog.refresh()
    batches, damaged_cuts = manifest.readable_batches(storage)
    loaded = [each for _, each in manifest.load_each(storage, batches)]
    return [
        *map(error_finding, damaged_cuts),
        *(error_finding(each) for each in loaded if isinstance(each, DamagedLog)),
        *_find_missing_manifests(storage, batches, elsewhere),
        *_find_missing_outputs(storage, catalog.index, batches),
    ]


def _rescan_tails(storage: Storage, report: VerifyReport) -> VerifyReport:
    """The report after another read of segments that have grown since: a torn tail may have been an unfinished write.
    """
    again = (_rescan_tail(storage, segment) for segment in report.segments)
    return replace(report, segments=tuple(each for each in again if each is not None))


def _rescan_tail(storage: Storage, report: SegmentReport) -> SegmentReport | None:
    last = report.damages[-1] if report.damages else None
    if not isinstance(last, Torn):
        return report
    try:
        size = storage.size(segment_path(report.segment))
        if size <= report.size:
            return report
        again = [found for found, _ in scan_whole(storage, report.segment, last.offset, size)]
    except FileNotFoundError:
        return None
    damages = tuple(item for item in again if not isinstance(item, FoundFrame))
    frames = report.frames + len(again) - len(damages)
    return SegmentReport(report.segment, size, frames, (*report.damages[:-1], *damages))


def _find_missing_manifests(
    storage: Storage, batches: Sequence[int], elsewhere: Collection[int] = ()
) -> Iterator[Finding]:
    """Each batch without a manifest.

    Every batch has a manifest, also without rows, and only the oldest are retired. So a gap is a loss, unless somebody
    says that these batches had another sink.
    """
    if batches:
        try:
            begins = manifest.retired_before(storage) or batches[0]
        except DamagedLog:
            begins = batches[0]
        for batch in sorted(set(range(begins, batches[-1])) - {*batches, *elsewhere}):
            if storage.exists(manifest.manifest_path(batch)):
                continue  # published during the listing
            reason = f"the manifest of batch {batch} is missing, so that the rows of that batch are not seen"
            yield error_finding(DamagedLog(manifest.manifest_path(batch), -1, reason))


def _find_missing_outputs(storage: Storage, index: Index, batches: list[int]) -> Iterator[Finding]:
    for batch, found in manifest.load_each(storage, batches):
        if not isinstance(found, manifest.Manifest):
            continue  # The report already has a damaged manifest. A missing one was retired by the query.
        frames = found.frames
        missing = [frame for frame in frames if index.output(bytes.fromhex(frame)) is None]
        if missing and storage.exists(manifest.manifest_path(batch)):
            reason = f"no segment holds {len(missing)} of its {len(frames)} output frames, {missing[0]} first"
            yield error_finding(DamagedLog(manifest.manifest_path(batch), -1, reason))


def _check_stores(
    place: Place, catalog: Catalog, done: Committed | None, stores_begin: CountCallback, store_done: Callable[[], None]
) -> Iterator[StoreCheck]:
    is_known = done is not None and done.version is not None
    stores = list_stores(place, catalog.index) if is_known else catalog.index.stores()
    stores_begin(len(stores))
    for store in stores:
        checks = _check_store(place, catalog.index, store, done)
        if any(check.damage for check in checks):
            # A running query may have moved on and trimmed its log: check again, and report only damage that remains.
            now = committed(place)
            catalog.refresh(asks_sizes=True)
            checks = _check_store(place, catalog.index, store, note_unwritten(place, catalog.index, now))
        yield from checks
        store_done()


def _check_store(place: Place, index: Index, store: StoreId, done: Committed | None) -> list[StoreCheck]:
    """Checks the committed version, which must exist, and the newest version if that is later."""
    allows = committed_attempts(place, done)
    head = newest_allowed(index, store, allows)
    newest = head.meta.version if head is not None else 0
    wanted = newest if done is None or done.version is None else done.version
    versions = {wanted, max(wanted, newest)} - {0}
    return [_rebuild_store(place.storage, index, store, version, allows) for version in sorted(versions)]


def _rebuild_store(storage: Storage, index: Index, store: StoreId, version: int, allows: Allows) -> StoreCheck:
    try:
        head = head_at(index, store, version, allows=allows)
        checkpoint = rebuild(storage, index, head)
    except DamagedLog as error:
        place = f"{error.segment} at byte {error.offset}: " if error.offset >= 0 else ""
        reason = f"version {version} cannot be rebuilt: {place}{error.reason}"
        return StoreCheck(store, version, damage=error_finding(DamagedLog(f"store {store}", -1, reason)))
    return StoreCheck(store, version, head.meta.open_windows, checkpoint.scanned)
