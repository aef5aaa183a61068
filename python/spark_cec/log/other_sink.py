"""Notes that another sink had the rows of some batches, so that their missing manifests are no loss.

A query may change its sink and come back. Then the log has no manifest of the batches between, and nothing in it
distinguishes them from batches whose manifests are lost. So only a person can say it: `cec repair --other-sink`.
"""

from __future__ import annotations

from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.log.manifest import Manifest, batches, load, publish, retired_before
from spark_cec.log.output_rollbacks import Cuts
from spark_cec.log.storage import Storage


def plan_other_sink(storage: Storage, wanted: range) -> list[Manifest]:
    """The manifests without rows that stand for the wanted batches; those that are there already are left out.

    They are like the first batch behind them: a rollback that takes them back takes that one back, too.

    Raises `UnsuitableCheckpoint` if one of the batches was published, or was let go, or if no published batch is on
    both sides. `DamagedLog` if a manifest or a cut is unreadable.
    """
    there, kept_from = batches(storage), retired_before(storage)
    first, last = wanted[0], wanted[-1]
    before = [batch for batch in there if batch < first]
    behind = [batch for batch in there if batch > last]
    no = f"{storage.url}: another sink cannot have had batches {first} to {last}: "
    if first < kept_from:
        raise UnsuitableCheckpoint(f"{no}output is kept from batch {kept_from} on; give that one, or a later one")
    if not behind or not (before or kept_from):
        at = f"up to batch {there[-1]}" if before else f"from batch {there[0]} on" if there else "of no batch"
        raise UnsuitableCheckpoint(f"{no}there is output {at}; give batches between two batches with output")
    known = {batch: load(storage, batch) for batch in there if batch in wanted}
    own = [batch for batch, each in known.items() if not each.other_sink]
    if own:
        raise UnsuitableCheckpoint(f"{no}batch {own[0]} was published here; give the batches without a manifest")
    like = load(storage, behind[0])
    # Times must not decrease from batch to batch: a reader from a time on searches by halves.
    wall_ms = load(storage, before[-1]).wall_ms if before else like.wall_ms
    return [
        Manifest(batch, (), 0, like.schema_json, False, like.generation, wall_ms, other_sink=True)
        for batch in wanted
        if batch not in known
    ]


def note_other_sink(storage: Storage, planned: list[Manifest]) -> None:
    """Publishes the manifests. After a crash the same plan is made of those that are left."""
    cuts = Cuts(storage)
    for each in planned:
        publish(storage, each, cuts)
