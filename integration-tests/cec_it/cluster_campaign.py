"""The long form of the cluster tests: every scenario, several seeded runs each, on Spark's standalone cluster.

`python -m cec_it.cluster_campaign [--seed N] [--runs N] [--scenario NAME ...] [--out DIRECTORY]`

Prints a JSON line per run and one per scenario, then a table; the exit status is 1 if a row was lost, duplicate or
wrong, or a query failed that should have gone on. A run is repeated by its seed and its scenario.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cec_it import cluster, faults, feeds, scenarios
from cec_it.driver import CEC, FOREACH, Job, Query, session_builder
from cec_it.faults import Course, Verdict
from cec_it.references import References
from cec_it.scenarios import SCENARIOS, Scenario
from testbed.processes import exit_on_sigterm

BATCHES, ROWS = 24, 150
FAULTS_A_RUN = 3
PLANS = ("long-windows", "window-update", "sessions", "totals", "count-windows")
DEFAULTS = {CEC + "functions.orderFree": "on"}
OPENINGS_ONLY = {**DEFAULTS, CEC + "CI": "0ms"}


@dataclass(slots=True)
class Row:
    """What all runs of one scenario came to."""

    scenario: str
    faults: int = 0
    runs: int = 0
    rows: int = 0
    lost: int = 0
    duplicate: int = 0
    wrong: int = 0
    called_again: int = 0
    failures: int = 0
    moves: int = 0
    recoveries: int = 0
    replayed_batches: int = 0
    longest_recovery_s: float = 0.0
    longest_pause_s: float = 0.0
    objections: int = 0

    def add(self, course: Course, verdict: Verdict, objection: str) -> None:
        """Take in one run."""
        reports = course.reports()
        self.faults += len(course.faults)
        self.runs += 1
        for name in ("rows", "lost", "duplicate", "wrong", "called_again"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.failures += len(course.errors)
        self.moves += scenarios.moved(course.job.checkpoint(course.query))
        self.recoveries += len(reports)
        self.replayed_batches += sum(int(str(report["replayed_batches"])) for report in reports)
        took = [float(str(report["duration_ms"])) / 1000 for report in reports]
        self.longest_recovery_s = round(max([self.longest_recovery_s, *took]), 2)
        self.longest_pause_s = round(max([self.longest_pause_s, *course.pauses_s]), 2)
        self.objections += bool(objection)

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicate or self.wrong or self.called_again or self.objections)


def plan_of(scenario: Scenario, run: int, seed: int) -> tuple[Query, dict[str, str], list[faults.Fault]]:
    """The query of one run, its settings and its faults."""
    dice = random.Random(f"{scenario.name} {run} of {seed}")
    query = Query(dice.choice(PLANS), feeds.RATE, FOREACH)
    conf = dice.choice([OPENINGS_ONLY, DEFAULTS])
    kinds = [dice.choice(scenario.kinds) for _ in range(FAULTS_A_RUN)] if scenario.kinds else []
    return query, conf, faults.draw(dice.randrange(1 << 30), kinds, BATCHES)


def run_scenario(scenario: Scenario, seed: int, runs: Iterable[int], references: References, root: Path) -> Row:
    """Some runs of one scenario, on a cluster of its own."""
    row = Row(scenario.name)
    with cluster.running(root / "cluster", conf=scenarios.DECOMMISSION) as spark_cluster:
        for run in runs:
            query, conf, drawn = plan_of(scenario, run, seed)
            job = Job(
                str(root / f"run-{run}"),
                (query,),
                BATCHES,
                ROWS,
                master=spark_cluster.url,
                conf={**spark_cluster.conf(), **conf, **scenario.conf},
            )
            course = faults.run(spark_cluster, job, drawn, seed)
            verdict = faults.judge(course, references.get(query, job))
            objection = scenarios.objection(scenario, course)
            row.add(course, verdict, objection)
            told = {
                "scenario": scenario.name, "seed": seed, "run": run, "plan": query.plan, "conf": conf,
                "faults": [asdict(fault) for fault in course.faults], "lives": len(course.lives), **asdict(verdict),
                "pauses_s": [round(pause, 2) for pause in course.pauses_s], "objection": objection,
            }  # fmt: skip
            print(json.dumps(told), flush=True)
    return row


def table(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown."""
    titles = [name.replace("_", " ") for name in asdict(Row(""))]
    lines = [titles, ["---"] * len(titles), *([str(value) for value in asdict(row).values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    exit_on_sigterm()
    os.environ["PYSPARK_PYTHON"] = sys.executable  # of the undisturbed runs, which are in this process
    parser = argparse.ArgumentParser(prog="cec_it.cluster_campaign")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 20))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    out = given.out or Path(tempfile.mkdtemp(prefix="cec-cluster-"))
    print(json.dumps({"seed": given.seed, "runs": given.runs, "logs": str(out)}), flush=True)
    (out / "references").mkdir(parents=True)
    session = session_builder(out / "scratch", "local[2]").getOrCreate()
    references = References(session, out / "references")
    rows = []
    for name in given.scenario or list(SCENARIOS):
        rows.append(run_scenario(SCENARIOS[name], given.seed, range(given.runs), references, out / name))
        print(json.dumps(asdict(rows[-1])), flush=True)
    session.stop()
    print(table(rows))
    good = all(row.good for row in rows)
    if good and given.out is None:
        shutil.rmtree(out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
