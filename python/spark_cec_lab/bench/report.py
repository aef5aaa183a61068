"""The results as JSON lines: one per run, then the summary and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_cec_lab.bench.measure import Measured
from spark_cec_lab.bench.providers import Provider, Rival
from spark_cec_lab.bench.ratios import Ratio, medians, ratio
from spark_cec_lab.bench.verdict import judge, ratios_against, verdict
from spark_cec_lab.bench.workloads import Workload

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

    def ratio(self, measure: str, against: Provider | None, ours: Provider = Provider.CEC) -> Ratio | None:
        """Ours over another provider's, over all rounds; None if it was not measured, or theirs is 0.

        Against None: ours by itself.
        """
        values = self._by_round(ours, measure)
        return ratio(values, self._by_round(against, measure) if against else dict.fromkeys(values, 1.0))

    def closing(self) -> list[dict[str, Any]]:
        """The summary and the verdict."""
        summary = {
            "kind": "summary",
            **self._about(),
            "medians": {p.value: rounded(medians(list(runs.values()))) for p, runs in self.runs.items()},
            "ratios": rounded(self._ratios(Provider.CEC)),
            "best": rounded(self._best()),
            **({"eager_ratios": rounded(self._ratios(Provider.EAGER))} if Provider.EAGER in self.runs else {}),
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

    def _ratios(self, ours: Provider) -> dict[str, dict[str, Any]]:
        """Each measure of `ours` over that of each other provider."""
        return {
            other.value: {
                measure: asdict(each)
                for measure in self._measures()
                if (each := self.ratio(measure, other, ours)) is not None
            }
            for other in self.runs
            if other is not ours
        }

    def _best(self) -> dict[str, dict[str, Any]]:
        """For each rival in several settings and each measure: the peer that counts, and the ratio against it."""
        return {
            rival.peers[0].value: {
                measure: {"against": next(iter(found)), **asdict(next(iter(found.values())))}
                for measure in self._measures()
                if (found := ratios_against(rival, measure, self.ratio))
            }
            for rival in Rival
            if len(rival.peers) > 1 and self.runs.keys() & set(rival.peers)
        }


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
