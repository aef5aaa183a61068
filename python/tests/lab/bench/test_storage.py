"""What `cec bench storage` makes of its runs."""

from __future__ import annotations

from spark_cec_lab.bench.storage import ASYNC, BEST, OURS, Manager, Variant, _judge, _Part
from spark_cec_lab.storage.proxy import Kind, Order, Request, Seen

ABORTABLE = Variant(BEST[0].provider, Manager.ABORTABLE)


def test_the_best_of_the_peers_managers_counts_in_each_round() -> None:
    found = {
        OURS: {0: {"batch_ms_delayed": 6.0}, 1: {"batch_ms_delayed": 8.0}},
        ASYNC: {0: {"batch_ms_delayed": 3.0}},
        BEST[0]: {0: {"batch_ms_delayed": 10.0}, 1: {"batch_ms_delayed": 40.0}},
        ABORTABLE: {0: {"batch_ms_delayed": 20.0}, 1: {"batch_ms_delayed": 16.0}},
    }
    ours, written_behind = _judge(found)
    assert (ours["lowest"], ours["ratio"], ours["highest"]) == (0.5, 0.55, 0.6) and ours["holds"]
    assert (written_behind["ratio"], written_behind["holds"]) == (0.3, True)


def test_late_batches_are_compared_with_early_ones_of_the_same_run() -> None:
    (row,) = _judge({OURS: {0: {"late_over_early_aged": 1.06}}})
    assert (row["ratio"], row["holds"]) == (1.06, False)


def test_requests_by_the_clock_count_by_the_second() -> None:
    keys = ["cp/offsets/1"] * 300 + ["cp/cec/lease/7"] * 10
    asked = (Request(0, Kind.PUT, "bench", key, is_sparks=False, is_conditional=False) for key in keys)
    seen = [Seen(each, Order(), 200, 9) for each in asked]
    part = _Part([*seen, *seen], (0, 100.0), (len(seen), 150.0))
    assert (part.by_batch, part.by_clock, len(part.seen)) == (3.0, 0.2, 310)
