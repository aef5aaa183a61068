"""A lost frame as a model: random histories of count windows lose frames, are recovered from what is left, compared.

Two rules. *Fall back whole*: begin from the newest version whose eventual checkpoint is whole, replay up to there
under the hold rule, and from there on run the batches as they were run first. *Patch*: take for every window the newest
record that is left, and replay under the hold rule. The first is right in every history, the second is not.

    PYTHONPATH=python python -m tests.recovery.test_fallback_model     # 20,000 histories
"""

from __future__ import annotations

from tests.hold_rule_model import random_run
from tests.recovery.fallback_model import Footer, base_of, fallen_back, footers, patched, random_loss

HISTORIES = 3_000


def wrong_after(histories: int) -> tuple[list[int], list[int], int]:
    """Seeds that come back wrong by falling back, and by patching; how many histories had to fall back."""
    by_fallback, by_patching, needed = [], [], 0
    for seed in range(histories):
        run = random_run(seed)
        lost = random_loss(run, seed)
        base, _ = base_of(run, lost)
        needed += base < len(run.batches)
        if fallen_back(run, lost) != run.state:
            by_fallback.append(seed)
        if base < len(run.batches) and patched(run, lost, footers(run)[base].dirty_from) != run.state:
            by_patching.append(seed)
    return by_fallback, by_patching, needed


def test_the_second_life_has_the_first_ones_footers() -> None:
    for seed in range(300):
        run = random_run(seed)
        assert footers(run)[-1] == Footer(len(run.state), run.dirty_from), f"seed {seed}"


def test_falling_back_as_a_whole_is_right_and_patching_is_not() -> None:
    by_fallback, by_patching, needed = wrong_after(HISTORIES)
    assert not by_fallback, f"seeds {by_fallback[:10]}"
    assert needed > HISTORIES // 4, "hardly a loss hurts: the model tells nothing"
    assert len(by_patching) > needed // 4, "the model cannot tell a right rule from a wrong one"


if __name__ == "__main__":
    fell_wrong, patched_wrong, had_to = wrong_after(20_000)
    print(f"of 20,000 histories that lost one to three frames, {had_to} need another base than the newest version")
    print(f"falling back as a whole: {len(fell_wrong)} wrong; patching: {len(patched_wrong)} wrong")
