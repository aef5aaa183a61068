"""The command: `cec bench`."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from spark_cec.toolchain import BuildError
from spark_cec_lab.bench.bound import run_grid
from spark_cec_lab.bench.growth import GROWS, Growth, write_csv
from spark_cec_lab.bench.job import JobSpec
from spark_cec_lab.bench.measure import Schedule
from spark_cec_lab.bench.options import (
    check_flink_of,
    check_long,
    check_nexmark,
    check_options,
    check_outages,
    check_protocols,
    check_scales,
    check_simulation,
    chosen_providers,
    growth_of,
    parse_part,
    workloads_of,
)
from spark_cec_lab.bench.paper import FIGURES
from spark_cec_lab.bench.paper_run import Found, run_figures
from spark_cec_lab.bench.pipelines.availability import LARGE_WINDOWS, QUICK_WINDOWS, WINDOWS, availability, heap
from spark_cec_lab.bench.pipelines.chain import Amount, compare_ways
from spark_cec_lab.bench.pipelines.failover import Course, Run, Way, failover
from spark_cec_lab.bench.pipelines.outage import MEASURED, OUTAGES, QUICK, Selection, measure_process_us, outages
from spark_cec_lab.bench.pipelines.outage import Part as OutagePart
from spark_cec_lab.bench.pipelines.outage_simulated import SIMULATED
from spark_cec_lab.bench.pipelines.reconcile import (
    find_constants,
    find_process_us,
    table_of_constants,
    table_of_points,
    with_formulas,
)
from spark_cec_lab.bench.pipelines.simulated_report import SEED as FAILURE_SEED
from spark_cec_lab.bench.pipelines.simulated_report import simulate_parts
from spark_cec_lab.bench.pipelines.switch import switches
from spark_cec_lab.bench.pipelines.topology import Load
from spark_cec_lab.bench.processes import BenchError
from spark_cec_lab.bench.protocols.compare import Part, compare, plan_of
from spark_cec_lab.bench.protocols.simulated_tables import simulated_tables
from spark_cec_lab.bench.protocols.spec import Outcome
from spark_cec_lab.bench.protocols.tables import tables
from spark_cec_lab.bench.providers import Provider
from spark_cec_lab.bench.storage import storage
from spark_cec_lab.bench.tasks import Plan, Task, run_all
from spark_cec_lab.bench.ui import BATCHES as UI_BATCHES
from spark_cec_lab.bench.ui import compare_uis
from spark_cec_lab.bench.workloads import SEED, Size

_HELP = """Compare Spark CEC with Spark's own state stores, in one run on this machine.

Each round runs every provider once, in a process of its own: it opens all windows, lets the providers settle, then
measures. One JSON line for each run goes to standard output, then a summary with the ratios (ours over theirs: the
median over the rounds, the lowest and the highest), then a verdict by the budgets of the design. How far it is goes to
standard error. The machine should have nothing else to do: `load` in each line shows whether that was so.

\b
cec            Spark CEC with its defaults; its codec is zstd
cec-eager      with mode=eager, as a query runs that is not known to be safe to defer
cec-lazy       with effort=0
rocksdb        Spark's RocksDB store with changelog checkpointing, else Spark's defaults; its codec is lz4
rocksdb-zstd   the same with zstd for the changelog
rocksdb-tuned  the same with zstd, boundedMemoryUsage, and without trackTotalNumberOfRows, as Spark's guide recommends
hdfs           Spark's HDFS-backed store with its defaults; its codec is lz4
hdfs-zstd      the same with zstd
stateless      the same rows, shuffled by key, and no state: for the task pace
hashmap        a hash map of rows (java.util.HashMap) that keeps nothing durable: no lower bound, but a store to know
flink-...      Flink's backends, for the task flink

Of the settings of one store the best counts, for each measure by itself: `best` in the summary and `against` in the
verdict name it. `eager_ratios` are those of cec-eager over each other one.

\b
uniform   300,000 updates a batch, spread over 2,000,000 windows
slow      300,000 updates a batch on 200,000 windows, 1 in 1000 opens one: bytes written per batch
fast      300,000 tuples a batch, each opens a window, and as many close (deduplication within the watermark)
stores    20,000 updates a batch on 200,000 windows in 200 partitions
pace      uniform for ten minutes (--minutes): the batch time's 99th percentile over its median, and the longest pause
          for garbage collection; ours alone, or beside hashmap and stateless
flink     uniform, ours and Flink SQL's: microseconds for a tuple, Flink with a checkpoint every second (--flink-python)
recovery  SIGKILL in the middle of a batch of uniform; start() to the end of the first new batch
agent     commits of stores in which nothing happens, in the agent alone, without Spark
bound     q and u against Q and U at every commit, a point where a crash may come: each Q with each U, per round a seed
paper     the experiments of the paper's section IV (figures 5 to 9), its numbers beside ours
failover  a pipeline of 15 queries on a cluster of processes; 8 of 10 workers are lost at once and come back one by one:
          relative latency and available queries, for each way to recover (--way)
chain     the same work as a pipeline of three flows, as one query, as three queries joined by Parquet files
union     two flows into one that counts their rows: by buckets of a second with and without within, and as rows come
availability  an input that is away. cost: of two inputs, one for 20 seconds; the first tentative row, the time to catch
          up, and the heap, beside the same flow that waits, and one that goes back, with 100,000 windows (--keys;
          --quick: 20,000). heap: the heap alone, with 1,000,000. fig9 to fig12, table2, table3: the experiments of
          Balazinska et al. (SIGMOD 2005) with three inputs; the paper's two ways to go back are formulas with
          measured constants. switch: of two replicas one is killed, and the other one takes its sink over.
          --part: one of them. --quick without --part: the experiments, each with few runs, but fig12.
          --simulate: fig9 to fig12 and table2 on a simulated clock, at the paper's scale and at that of Spark, and
          bound, 50 random failures at each pace, by the product's own decisions; prints tables
nexmark   queries of that benchmark (--query), 200,000 events a batch, 10,000 to a second of event time
protocols checkpointing protocols on pipelines of NexMark's queries and a cyclic one: throughput, a failure, skew, and
          simulated up to 100 workers; the tables go to standard output, the runs to --json-out (--quick: in 10 minutes)
storage   an emulated S3: requests of a batch, its time and a restart where each request takes 50 ms longer, objects
          that are left; peers at their best, without renames, and with their defaults (--quick leaves out the runs of
          1,000 batches). The packages of S3A come from Maven Central
ui        a query without a user interface, with one that nobody sees, and with somebody who loads the overview and the
          query's page each second; 150 batches of 50,000 updates on 100,000 windows

\b
In a run's line: batch_ms is the median; cpu_ms (processor time of all processes), gc_ms, bytes_per_batch and
files_per_batch (what the provider writes under the checkpoint; checkpoint_… with Spark's own logs) are means; metrics
are medians of sums over the partitions.

\b
Examples:
  cec bench
  cec bench slow --partitions 32
  cec bench recovery --rounds 1 --provider cec --provider rocksdb
  cec bench uniform --keys 200000 --updates 30000 --json-out uniform.jsonl
  cec bench recovery --keys 400 --updates 100 --provider cec --provider cec-eager --provider cec-lazy
  cec bench uniform --grow keys=100000,500000,2000000,5000000 --csv keys.csv --png plots
  cec bench stores --grow partitions=2,20,200 --rounds 1
  cec bench flink --flink-python flink/bin/python
  cec bench paper --figure 6 --rounds 1 --png figures
  cec bench pace --keys 5000000 --minutes 3 --provider cec --provider stateless
  cec bench nexmark --query q4 --query q8 --provider cec --provider rocksdb
  cec bench protocols --quick --json-out protocols.jsonl
  cec bench protocols --part nexmark --query q3 --instances 2 --protocol cec --protocol none
  cec bench protocols --from protocols.jsonl --from more.jsonl --png figures
  cec bench availability --quick --png figures
  cec bench availability --part fig10 --alpha 0.6 --at 5 --at 15 --json-out fig10.jsonl
  cec bench availability --simulate --part fig10 --against fig10.jsonl --png figures
  cec bench ui --rounds 3
  cec bench storage --long 10000 --partitions 8 --provider cec --rounds 1
  cec bench failover --png docs/images
  cec bench failover --rounds 1 --way progressive --way at-once --scale 0.1

\b
Exit codes:
  0  it ran, whatever the verdict
  1  a query failed
  2  wrong usage
"""


OUTPUT = Path("build/bench")
BATCHES = 12

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
def bench(
    task: Annotated[Task, typer.Argument(metavar="[TASK]", help="What to measure: see above.")] = Task.UNIFORM,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each provider.")] = 3,
    keys: Annotated[int | None, typer.Option(min=1, help="Open windows; default: the design's.")] = None,
    updates: Annotated[int | None, typer.Option(min=1, help="Input tuples a batch; default: the design's.")] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the state; default: 2, or 200 for stores.")
    ] = None,
    warm_up: Annotated[int, typer.Option(min=2, help="Batches after the fill that are not measured.")] = 8,
    batches: Annotated[
        int | None, typer.Option(min=1, help=f"Batches that are measured; default: {BATCHES}, or {UI_BATCHES} for ui.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="For pace: how long to measure.")] = 10.0,
    provider: Annotated[
        list[Provider] | None, typer.Option(help="May be given more than once; default: those above but cec-lazy.")
    ] = None,
    memory: Annotated[str, typer.Option(help="The JVM's heap.")] = "8g",
    value_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of text in each window's value, besides its count and sum.")
    ] = 0,
    grow: Annotated[
        str | None, typer.Option(metavar="WHAT=A,B,...", help=f"All of it at each size; WHAT is {GROWS}.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="More Spark conf, for all.")] = None,
    java_options: Annotated[str, typer.Option(help="More options for the JVM.")] = "",
    json_out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON lines there too.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a row for each run there.")] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="For checkpoints; removed at the end.")] = OUTPUT,
    figure: Annotated[
        list[int] | None, typer.Option(help="Of the paper: 5, 6, 7, 8 (with 9); more than once; default: all.")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw there: a paper's figures; else how it grows.")
    ] = None,
    flink_python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="For flink: a Python that has apache-flink 2.x.")
    ] = None,
    way: Annotated[
        list[Way] | None, typer.Option(help="For failover: how it is recovered; more than once; default: each.")
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(
            help="For nexmark: q0 to q22, default: each that keeps state; for protocols: q1, q3, q8, q12, and "
            "reachability, default: all. More than once."
        ),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="For protocols: none, coordinated, uncoordinated, communication-induced, cec; default: all."),
    ] = None,
    instances: Annotated[
        list[int] | None, typer.Option(min=1, help="For protocols: of each query; default: 1, 2 and 4.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="For protocols: nexmark (figures 7 to 11), skew (12, 13), cycle (table IV); for availability: cost, "
            "heap, fig9, fig10, fig11, fig12, table2, table3, switch, bound; default: all."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="For availability: no Spark, but the same decisions on a simulated clock: fig9 to fig12, table2, and "
            "bound, random failures; at the paper's scale and at that of Spark.",
        ),
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For --simulate: with the costs of the runs in such a file of --json-out, and beside them.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For --simulate: the first seed of bound.")] = FAILURE_SEED,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="For protocols: no runs, but those, and what was simulated, in such a file of --json-out.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="For protocols: less, in 10 minutes; availability: fewer; storage: no long run."),
    ] = False,
    long: Annotated[
        int | None, typer.Option(min=400, help="For storage: only the long runs, of so many batches; default: 1,000.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="For failover: of the paper's 2 to 6 minutes until a worker comes; for availability: seconds for a "
            "second of the paper, default: the least that suffices.",
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="For availability: of the flows; default: 0.9 as the paper's, or 0.6 with --quick."),
    ] = None,
    at: Annotated[
        list[float] | None,
        typer.Option(help="For availability: these points on the axis of a figure alone; more than once."),
    ] = None,
) -> None:
    growth, size = growth_of(grow), Size(keys, updates, partitions)
    batches = batches or (UI_BATCHES if task is Task.UI else BATCHES)
    check_options(task, figure, png, growth, value_bytes)
    check_scales(task, bool(way), scale is not None, part is not None)
    check_nexmark(task, query, keys, growth)
    is_quick = quick and task not in (Task.STORAGE, Task.AVAILABILITY)
    check_long(task, long)
    check_simulation(task, part, [each.value for each in SIMULATED], simulate, against is not None)
    outage = parse_part(task, part, Task.AVAILABILITY, OutagePart)
    only = parse_part(task, part, Task.PROTOCOLS, Part)
    parts = ([*QUICK] if quick else [*MEASURED]) if outage is None else [outage]
    selection = Selection(tuple(parts), scale, alpha, tuple(at or ()), 1 if quick else rounds, quick)
    check_outages(task, alpha, at, simulate, selection.find_unknown)
    check_protocols(task, is_quick or bool(earlier), protocol, instances)
    workload = replace(size.of(task.workload), value_bytes=value_bytes)
    spec = JobSpec(
        provider=Provider.CEC, workload=workload, checkpoint="", scratch="", jar="", memory=memory,
        java_options=java_options, conf=tuple(_pair(each) for each in conf or ()), last_batch=None,
    )  # fmt: skip
    chosen = chosen_providers(task, provider)
    _check_flink(chosen, flink_python)
    lines: list[dict[str, Any]] = []
    signal.signal(signal.SIGTERM, _exit_once)
    try:
        has_tables = task is Task.PROTOCOLS or simulate
        with _lines(json_out, lines, echo=not has_tables) as write, _work_directory(output) as work:
            if task is Task.PROTOCOLS:
                plan = plan_of(quick, query or (), protocol or (), instances or (), 1 if quick else rounds, only)
                _show_protocols(*compare(plan, earlier or (), work, write, _say), png)
            elif task is Task.BOUND:
                run_grid(workload, spec, Schedule(workload.fill_batches, warm_up, batches), rounds, work, write, _say)
            elif task is Task.FAILOVER:
                course = Course() if scale is None else Course(scale=scale)
                runs = failover(way or list(Way), Load(), course, rounds, SEED, work, write, _say)
                _draw_failover(runs, png)
            elif task is Task.AVAILABILITY:
                simulates = partial(simulate_parts, outage, scale, against, seed, write, _say) if simulate else None
                measures = partial(_measure_outages, selection, size.keys, memory, work, write)
                _show_outages(simulates, measures, png)
            elif task in (Task.CHAIN, Task.UNION, Task.STORAGE, Task.UI):
                schedule = Schedule(workload.fill_batches, warm_up, batches)
                _run_alone(task, spec, schedule, chosen, rounds, work, write, size, quick=quick, long=long)
            elif task is Task.PAPER:
                numbers = figure or [each.number for each in FIGURES]
                _draw(run_figures(numbers, size, spec, warm_up, batches, rounds, work, write, _say), png)
            else:
                for each in workloads_of(task, workload, growth, query):
                    schedule = Schedule(each.fill_batches, warm_up, batches, minutes)
                    grown = Plan(task, replace(spec, workload=each), schedule, rounds, chosen, flink_python)
                    run_all(grown, work, write, _say)
                _draw_growth(lines, growth, png)
        if csv:
            write_csv(lines, csv)
    except (BenchError, BuildError) as error:
        _say(f"error: {error}")
        raise typer.Exit(1) from None


def _check_flink(chosen: tuple[Provider, ...], python: str | None) -> None:
    version = check_flink_of(chosen, python)
    if version:
        _say(f"apache-flink {version}")


def _run_alone(
    task: Task, spec: JobSpec, schedule: Schedule, chosen: Sequence[Provider], rounds: int, work: Path,
    write: Callable[[dict[str, Any]], None], size: Size, *, quick: bool, long: int | None,
) -> None:  # fmt: skip
    """Runs a task that has workloads of its own."""
    if task is Task.STORAGE:
        storage(spec, chosen, rounds, work, write, _say, quick=quick, long=long, partitions=size.partitions)
    elif task is Task.UI:
        compare_uis(spec, schedule, rounds, work, write, _say)
    else:
        amount = Amount(batch_rows=60_000) if task is Task.UNION else Amount()
        compare_ways(task.value, amount, rounds, spec.memory, work, write, _say)


def _measure_outages(
    chosen: Selection, windows: int | None, memory: str, work: Path, write: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Answers what can be drawn."""
    parts = chosen.parts
    if OutagePart.COST in parts:
        usual = QUICK_WINDOWS if chosen.quick else WINDOWS
        outages_of_a_run = 1 if chosen.quick else 2
        availability(windows or usual, chosen.rounds, memory, work, write, _say, outages=outages_of_a_run)
    if OutagePart.HEAP in parts:
        heap(windows or LARGE_WINDOWS, chosen.rounds, memory, work, write, _say)
    if OutagePart.SWITCH in parts:
        switches(chosen.rounds, memory, work, write, _say)
    figures = tuple(each for each in parts if each in OUTAGES)
    if OutagePart.TABLE_2 in parts:
        constants = find_constants(measure_process_us(memory, work, write, _say))
        write({"kind": "constants", "task": "availability", "part": OutagePart.TABLE_2.value, **asdict(constants)})
        print(table_of_constants(constants, "a run on Spark: a row more of the batch that catches up"))
    summaries = list[dict[str, Any]]()
    if figures:
        summaries = outages(replace(chosen, parts=figures), memory, work, write, _say)
        if OutagePart.FIGURE_12 in figures:
            reconciled = with_formulas(summaries, find_constants(find_process_us(summaries)), "measured on Spark")
            for each in reconciled:
                write(each)
            print(table_of_points(reconciled))
    return summaries


def _show_outages(
    simulate: Callable[[], tuple[list[dict[str, Any]], list[str]]] | None,
    measure: Callable[[], list[dict[str, Any]]], png: Path | None,
) -> None:  # fmt: skip
    """Simulates, or measures if there is no simulation; prints tables, and draws."""
    if simulate is None:
        _draw_outages(measure(), png)
        return
    lines, tables = simulate()
    print("\n".join(tables))
    for world in dict.fromkeys(each["world"] for each in lines):
        _draw_outages([each for each in lines if each["world"] == world], png and png / world.replace("=", ""))


def _draw_outages(summaries: Sequence[dict[str, Any]], png: Path | None) -> None:
    if png and summaries:
        from spark_cec_lab.bench.pipelines.outage_plots import draw_outages

        for path in draw_outages(summaries, png):
            _say(f"drawn: {path}")


def _show_protocols(outcomes: Sequence[Outcome], simulation: Sequence[dict[str, Any]], png: Path | None) -> None:
    print("\n".join([*tables(outcomes), *simulated_tables(simulation, outcomes)]))
    if png:
        from spark_cec_lab.bench.protocols.plots import draw

        for path in draw(outcomes, simulation, png):
            _say(f"drawn: {path}")


def _draw(found: Found, png: Path | None) -> None:
    if png:
        from spark_cec_lab.bench.paper_plots import draw

        for path in draw(found, png):
            _say(f"drawn: {path}")


def _draw_failover(runs: list[Run], png: Path | None) -> None:
    if png:
        from spark_cec_lab.bench.pipelines.plots import draw_failover

        _say(f"drawn: {draw_failover(runs, png)}")


def _draw_growth(lines: list[dict[str, Any]], growth: Growth | None, png: Path | None) -> None:
    if growth and png:
        from spark_cec_lab.bench.growth_plots import draw_growth

        _say(f"drawn: {draw_growth(lines, growth, png)}")


def _exit_once(number: int, _: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the cleaning up short
    sys.exit(128 + number)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise typer.BadParameter(f"{text!r}: give KEY=VALUE", param_hint="--conf")
    return key, value


@contextmanager
def _work_directory(output: Path) -> Iterator[Path]:
    """A directory of this benchmark's own below `output`, removed at the end."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=output.resolve(), ignore_cleanup_errors=True) as work:
        yield Path(work)


@contextmanager
def _lines(path: Path | None, kept: list[dict[str, Any]], *, echo: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Writes JSON lines to standard output, if `echo`, and to the file at `path`; keeps what they were made of."""
    file = path.open("w") if path else None

    def write(line: dict[str, Any]) -> None:
        kept.append(line)
        text = json.dumps(line)
        if echo:
            print(text, flush=True)
        if file:
            print(text, file=file, flush=True)

    try:
        yield write
    finally:
        if file:
            file.close()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
