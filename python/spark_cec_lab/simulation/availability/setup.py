"""What is simulated: the flows, what goes away when, and what each step costs. All times are ms."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cec.pipeline.options import Within


@dataclass(frozen=True, slots=True)
class Costs:
    """What each step takes. `source_ms`, `flow_ms`, `sink_ms`: a batch without rows of an input, a flow and the sink.

    `row_us`: a row more in a batch of a flow, in microseconds. `share`: the part of a batch after which its output is
    there. `fork_ms`: from the start of a fork until its first batch may begin. `look_ms`, `poll_ms`: between two
    looks of the keeper of epochs, and of a query that has no input.
    """

    source_ms: float
    flow_ms: float
    sink_ms: float
    row_us: float
    fork_ms: float
    share: float = 1.0
    look_ms: float = 200.0
    poll_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class Failure:
    """An input has no rows from `begin_ms` on, and has all of them at `end_ms`."""

    name: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs, a flow that unites them by buckets and counts, and `chain` flows in all, one after the other.

    `every_ms`: between two files of an input. `rows_per_s`: of all inputs together. `keys`: the rows of a window.
    `settled_ms`: for how long it goes on after all is corrected.
    """

    costs: Costs
    within: Within
    failures: tuple[Failure, ...]
    chain: int = 1
    inputs: tuple[str, ...] = ("north", "south", "east")
    rows_per_s: int = 3_000
    every_ms: int = 500
    window_ms: int = 1_000
    bucket_ms: int = 1_000
    keys: int = 100
    settled_ms: float = 10_000.0

    @property
    def cut_ms(self) -> int:
        """When the first input goes away."""
        return min(each.begin_ms for each in self.failures)

    @property
    def back_ms(self) -> int:
        """When the last input comes back."""
        return max(each.end_ms for each in self.failures)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run on Spark tells, too. `delay_new_ms`: the longest time from a window's end to its first row, without
    the time in which all inputs are away.

    `usual_ms`: its median before the failure. `tentative`: rows that the sink got. `first_tentative_ms`: after the
    first failure, None without one. `corrected_ms`: from the return of the last input until all rows are stable and no
    epoch is open; None if that never came. `wrong`: stable windows that lack rows, or came twice. `epochs`: how many.
    """

    delay_new_ms: float
    usual_ms: float
    tentative: int
    first_tentative_ms: float | None
    corrected_ms: float | None
    wrong: int
    epochs: int
