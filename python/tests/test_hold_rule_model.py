"""The hold rule as a model: thousands of random histories of keyed count windows, crashed, recovered and compared.

D is the batch that first changed a window after its footprint, and not the footprint itself (docs/decisions/0003).
No history may recover wrongly, and no replay may be longer than one from the oldest footprint of a dirty window.
"""

from __future__ import annotations

from tests.hold_rule_model import random_run, recovered

HISTORIES = 6_000


def test_with_the_hold_rule_every_history_recovers() -> None:
    wrong = [
        seed for seed in range(HISTORIES) if recovered(run := random_run(seed), run.dirty_from, "hold") != run.state
    ]
    assert not wrong, f"seeds {wrong[:10]}"


def test_it_does_not_matter_that_others_of_the_query_need_an_earlier_replay() -> None:
    for seed in range(HISTORIES // 4):
        run = random_run(seed)
        for first in {0, run.dirty_from_of_the_design, run.dirty_from // 2}:
            assert recovered(run, first, "hold") == run.state, f"seed {seed}, replay from {first}"


def test_with_the_papers_rule_alone_some_go_wrong() -> None:
    wrong = sum(
        recovered(run := random_run(seed), run.dirty_from, "footprint") != run.state for seed in range(HISTORIES // 4)
    )
    assert wrong > HISTORIES // 4 // 20, "the model cannot tell a right rule from a wrong one"


def test_one_batch_less_is_too_few() -> None:
    """D is exact: a replay that begins one batch later misses something, unless whole windows came and went."""
    replays = [run for seed in range(HISTORIES // 4) if (run := random_run(seed)).dirty_from < len(run.batches)]
    wrong = sum(recovered(run, run.dirty_from + 1, "hold") != run.state for run in replays)
    assert wrong > 0.9 * len(replays) > 100


def test_the_replay_is_never_longer_than_the_designs_and_often_shorter() -> None:
    shorter = 0
    for seed in range(HISTORIES):
        run = random_run(seed)
        assert run.dirty_from >= run.dirty_from_of_the_design, f"seed {seed}"
        shorter += run.dirty_from > run.dirty_from_of_the_design
    assert shorter > HISTORIES // 5
