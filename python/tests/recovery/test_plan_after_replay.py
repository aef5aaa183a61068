"""The plan after a crash at the end of a replay: what a later run has flushed completes an earlier run's commit."""

from __future__ import annotations

import pytest

from spark_cec.ids import StoreId, new_id
from spark_cec.log.frame import CommitFlags, FrameKind
from spark_cec.recovery.facts import read_plan
from tests.checkpoint.support import Log
from tests.log.support import commit_meta

STORES = (StoreId(0, 0), StoreId(0, 1))


@pytest.mark.parametrize(("flushed", "rewound_to"), [(0, 0), (1, 0), (2, 2)])
def test_stores_that_the_replay_had_flushed_when_it_was_killed(flushed: int, rewound_to: int) -> None:
    """Run 2 committed version 3 with D = 1; run 3 has replayed, and flushed so many of the two stores."""
    log, ids = Log(), {store: new_id() for store in STORES}
    for store in STORES:
        meta = commit_meta(3, store=store, dirty_from=1, dirty_windows=5, generation=2, checkpoint_id=ids[store])
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    for store in STORES[:flushed]:
        flush = int(CommitFlags.FLUSH)
        meta = commit_meta(3, store=store, dirty_from=3, generation=3, checkpoint_id=ids[store], flags=flush)
        log.catalog.note(*log.writer.append(FrameKind.COMMIT, meta))
    assert read_plan(log.catalog.index, log.catalog.index.stores(), 2, 3, lambda _: True).rewound_to == rewound_to
