"""Many runs of killed queries on Kafka: `python -m cec_it.long_kafka [--seed N] [--runs N] [--kills N] [--output DIR]`.

A row of the table for each history, which is what happens between two lives; one JSON line for each run and history.
Exit code 1 if a row is lost, duplicate or wrong, or a query failed that should not have.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "integration-tests"), str(ROOT / "support")]

from cec_it.driver import CEC  # noqa: E402
from cec_it.kafka_kills import CHANGES, KafkaHistory, Supervisor, draw  # noqa: E402
from cec_it.local import SETTINGS  # noqa: E402
from testbed.broker import Broker  # noqa: E402

HISTORIES: dict[str, tuple[str, ...]] = {
    "kills": ("nothing",),
    "kills, partitions added": ("partitions",),
    "kills, limit changed": ("limit",),
    "kills, broker away at restart": ("broker",),
    "kills and all of these": CHANGES,
}
_COUNTS = ("runs", "kills", "rows", "lost", "duplicate", "wrong", "repeated", "recoveries", "replayed", "failed")
_COLUMNS = ("faults", *_COUNTS, "longest_s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, or several added up. `rows`: rows compared; `repeated`: rows that Spark's Kafka sink wrote again;
    `replayed`: batches in all recoveries; `longest_s`: the longest recovery, from `start()` to the last store's return.
    """

    faults: str
    seed: int
    runs: int
    kills: int
    rows: int
    lost: int
    duplicate: int
    wrong: int
    repeated: int
    recoveries: int
    replayed: int
    longest_s: float
    failed: int

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicate or self.wrong or self.failed)


def outcome(faults: str, history: KafkaHistory) -> Outcome:
    """What one run came to."""
    counts = {
        name: sum(int(getattr(each, name)) for each in history.compared)
        for name in ("rows", "lost", "duplicate", "wrong", "repeated")
    }
    return Outcome(
        faults,
        history.seed,
        runs=1,
        kills=len(history.kills),
        **counts,
        recoveries=len(history.recoveries),
        replayed=sum(history.replayed()),
        longest_s=max((float(str(r["duration_ms"])) / 1000 for r in history.recoveries), default=0.0),
        failed=len(history.failed) + (not history.exact),
    )


def added_up(faults: str, seed: int, outcomes: Iterable[Outcome]) -> Outcome:
    """Several runs as one row."""
    each = list(outcomes)
    sums = {name: sum(int(getattr(one, name)) for one in each) for name in _COUNTS}
    return Outcome(faults, seed, **sums, longest_s=max((one.longest_s for one in each), default=0.0))


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table in Markdown."""
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS)]
    rows += [tuple(_shown(getattr(one, name)) for name in _COLUMNS) for one in outcomes]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def run(seed: int, runs: int, kills: int, rows: int, output: Path, histories: Sequence[str]) -> list[Outcome]:
    """`runs` runs of `kills` kills each, over the histories in turn; one broker for all of them."""
    found: list[Outcome] = []
    with Broker(output / "broker") as broker:
        for number in range(runs):
            faults = histories[number % len(histories)]
            conf = {CEC + key: value for key, value in SETTINGS[number % len(SETTINGS)].items()}
            found.append(_one(broker, output / f"run-{number}", seed + number, kills, rows, conf, faults))
            print(json.dumps({"event": "run", **asdict(found[-1])}), flush=True)
    return found


def _one(broker: Broker, root: Path, seed: int, kills: int, rows: int, conf: dict[str, str], faults: str) -> Outcome:
    queries, points = draw(seed, kills, HISTORIES[faults])
    try:
        history = Supervisor(broker, root, seed, rows, conf).run(queries, points)
    except Exception:
        print(f"seed {seed}, {points}, in {root}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        history = KafkaHistory(seed, points)
    for failure in history.failed:
        print(f"seed {seed}: {failure}", file=sys.stderr, flush=True)
    result = outcome(faults, history)
    if result.good:
        shutil.rmtree(root)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="of the first run; a new one if not given")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200, help="records in a step of the topic")
    parser.add_argument("--output", type=Path, default=None, help="kept where a run was not exact")
    parser.add_argument(
        "--faults", action="append", choices=list(HISTORIES), help="this history alone; may be repeated"
    )
    given = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    output = given.output or Path(tempfile.mkdtemp(prefix="long-kafka-"))
    print(f"seed {seed}, in {output}", file=sys.stderr, flush=True)
    found = run(seed, given.runs, given.kills, given.rows, output, given.faults or list(HISTORIES))
    by_faults = {one.faults: None for one in found}
    sums = [added_up(faults, seed, (one for one in found if one.faults == faults)) for faults in by_faults]
    for each in sums:
        print(json.dumps({"event": "history", **asdict(each)}), flush=True)
    print(table([*sums, added_up("all", seed, found)]))
    good = all(one.good for one in found)
    if good and given.output is None:
        shutil.rmtree(output)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
