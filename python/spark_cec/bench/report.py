"""The results as JSON lines: one per run, then the summary and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_cec.bench.measure import Measured
from spark_cec.bench.providers import Provider
from spark_cec.bench.ratios import Ratio, medians, ratio
from spark_cec.bench.verdict import judge, verdict
from spark_cec.bench.workloads import Workload

_DECIMALS = 4


@dataclass(slots=True)
class Report:
    """The runs of one task, by provider and round."""

    task: str
    workload: Workload
    as_in_the_design: bool
    runs: dict[Provider, dict[int, Mapping[str, float]]] = field(default_factory=dict)

    def add(
        self, provider: Provider, round_number: int, measured: Measured, load: tuple[float, float]
    ) -> dict[str, Any]:
        """Take in a run and give its line. `load` is the machine's load average before and after."""
        self.runs.setdefault(provider, {})[round_number] = measured.values
        return {
            "kind": "run",
            **self._about(),
            "provider": provider.value,
            "round": round_number + 1,
            **rounded(measured.values),
            **rounded(measured.details),
            "load": rounded(list(load)),
        }

    def ratio(self, measure: str, against: Provider | None) -> Ratio | None:
        """Ours over another provider's, over all rounds; None if it was not measured, or theirs is 0.

        Against None: ours by itself.
        """
        ours = self._by_round(Provider.CEC, measure)
        return ratio(ours, self._by_round(against, measure) if against else dict.fromkeys(ours, 1.0))

    def closing(self) -> list[dict[str, Any]]:
        """The summary and the verdict."""
        others = [provider for provider in self.runs if provider is not Provider.CEC]
        summary = {
            "kind": "summary",
            **self._about(),
            "medians": {p.value: rounded(medians(list(runs.values()))) for p, runs in self.runs.items()},
            "ratios": {other.value: rounded(self._ratios(other)) for other in others},
        }
        judged = judge(self.task, self.workload.partitions, self.ratio)
        decision = {"kind": "verdict", **self._about(), "sizes_of_the_design": self.as_in_the_design}
        return [summary, {**decision, **rounded(verdict(judged))}]

    def _about(self) -> dict[str, Any]:
        sizes = self.workload
        what = {"query": sizes.nexmark} if sizes.nexmark else {"keys": sizes.keys}
        about = {"task": self.task, **what, "updates": sizes.updates, "partitions": sizes.partitions}
        return {**about, **({"value_bytes": sizes.value_bytes} if sizes.value_bytes else {})}

    def _measures(self) -> list[str]:
        return sorted({name for runs in self.runs.values() for values in runs.values() for name in values})

    def _by_round(self, provider: Provider, measure: str) -> dict[int, float]:
        runs = self.runs.get(provider, {})
        return {number: values[measure] for number, values in runs.items() if measure in values}

    def _ratios(self, against: Provider) -> dict[str, Any]:
        found = {measure: self.ratio(measure, against) for measure in self._measures()}
        return {measure: asdict(each) for measure, each in found.items() if each is not None}


def rounded(value: Any) -> Any:
    """The same value with every float in it rounded to four decimals, and whole numbers without a point."""
    if isinstance(value, float):
        short = round(value, _DECIMALS)
        return int(short) if short.is_integer() else short
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
