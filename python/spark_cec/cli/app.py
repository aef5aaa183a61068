"""The commands and their help."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_cec.cli import migrate_commands, repair_command, rollback_command
from spark_cec.cli.failures import ExitCode, explain_errors
from spark_cec.cli.options import AsJson, Checkpoint
from spark_cec.cli.subcommands import HANDED_OVER, HELP_OPTIONS, add_commands, hand_over
from spark_cec.extras import need
from spark_cec.version import __version__

_EXIT_CODES = """\b
Exit codes:
  0  ok
  1  damage was found
  2  wrong usage, or the log cannot be read
"""

_HELP = f"""Look at the log of a query that runs on Spark CEC, verify it, repair it.

CHECKPOINT is the query's checkpoint location, or the home of its log: a directory, or a URL that fsspec knows.

{_EXIT_CODES}"""

_INSPECT = f"""Show the state of each store: open windows (N), extent (q, against Q) in log records, replay (u,
against U) in input tuples, the version D from which a replay would start, dirty windows, bytes and segments.

Numbers are those of the last batch that Spark has committed. Only frame headers are read, nothing is written: it is
safe while the query runs. A torn end, which a crash leaves, is shown, but is no damage for the exit code.

\b
Examples:
  cec inspect /checkpoints/clicks
  cec inspect s3://bucket/checkpoints/clicks --json | jq '.stores[].replay_inputs'

{_EXIT_CODES}"""

_OUTPUTS = f"""Show the batches that the sink has published: rows, when, the watermark, and what of each source went in.

What a source wrote as `to` is read; a batch begins where the one before it ended. For a topic these are its offsets,
for the log of another query the ids of batches. Writes nothing: it is safe while the query runs.

\b
Examples:
  cec outputs /checkpoints/clicks --last 3
  cec outputs /checkpoints/clicks --json | jq '.batches[-1].inputs'

{_EXIT_CODES}"""

_VERIFY = f"""Read every byte of the log, and rebuild every store as a recovery would.

Checks all frames, manifests and log.json, that every output frame which a manifest names is there, and, for each store,
that the chain of commits from the newest one down to its oldest footprint is whole. Writes nothing: it is safe while
the query runs. Anything torn, corrupt or lost is named with its place.

\b
Examples:
  cec verify /checkpoints/clicks
  cec verify /checkpoints/clicks --json | jq '.damages'

{_EXIT_CODES}"""

_FLUSH = """Have a running query write what is dirty, so that a recovery from here replays nothing.

The query does it between two batches, and goes on. Before a planned kill of its machines, a copy of its checkpoint, or
a look at its state with Spark's statestore reader. A query that is stopped does it by itself.

\b
Examples:
  cec flush /checkpoints/clicks
  cec flush s3://bucket/checkpoints/clicks --timeout 300

\b
Exit codes:
  0  all is written, also where the query was stopped
  1  not all is written: no answer in time, or an executor is gone
  2  wrong usage, or the query is not running, and its next start has something to replay
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)


def main() -> None:
    """Entry point of the script `cec`; ends the process with an `ExitCode`."""
    app(prog_name="cec")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cec {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def cec(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Holds the options of all commands. Keys and endpoints of a store may be in Hadoop's files, as for Spark."""
    directory = os.environ.get("HADOOP_CONF_DIR")
    if directory:
        with explain_errors("with HADOOP_CONF_DIR", directory):
            from spark_cec.adapters.hadoop_settings import read_hadoop_files, use_settings

            use_settings(read_hadoop_files(Path(directory)))


@app.command(help=_INSPECT, short_help="Show the state of the log, store by store.")
def inspect(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Shows the state from frame headers."""
    with explain_errors("inspect", checkpoint):
        from spark_cec.admin.damage import FindingKind
        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.state import read_state
        from spark_cec.cli.show import console, print_json
        from spark_cec.cli.show_state import print_state, state_json

        state = read_state(find_log(checkpoint))
        if as_json:
            print_json(state_json(state))
        else:
            print_state(console(), state)
        _exit(any(finding.kind is not FindingKind.TORN for finding in state.findings))


@app.command(help=_OUTPUTS, short_help="Show the newest batches of output, and what went into each.")
def outputs(
    checkpoint: Checkpoint,
    last: Annotated[int, typer.Option("--last", metavar="BATCHES", min=1, help="How many batches.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Shows the batches, from the manifests alone."""
    with explain_errors("outputs", checkpoint):
        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.outputs import read_outputs
        from spark_cec.cli.show import console, print_json
        from spark_cec.cli.show_outputs import outputs_json, print_outputs

        found = read_outputs(find_log(checkpoint), last)
        if as_json:
            print_json(outputs_json(found))
        else:
            print_outputs(console(), found)
        _exit(bool(found.findings))


@app.command(help=_VERIFY, short_help="Read every byte; say what is torn, corrupt or lost, and where.")
def verify(checkpoint: Checkpoint, as_json: AsJson = False) -> None:
    """Runs the full check."""
    with explain_errors("verify", checkpoint):
        from dataclasses import replace

        from spark_cec.admin.check import verify_log
        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.read_only import ReadOnlyStorage
        from spark_cec.cli.progress import meter
        from spark_cec.cli.show import console, print_json, print_verification, verification_json

        place = find_log(checkpoint)
        with meter(place.storage) as progress:
            watched = replace(place, storage=ReadOnlyStorage(place.storage, progress.read))
            result = verify_log(watched, progress.stores_begin, progress.store_done)
        if as_json:
            print_json(verification_json(result))
        else:
            print_verification(console(), result)
        _exit(bool(result.findings))


repair_command.register(app)


@app.command(help=_FLUSH, short_help="Have a running query write what is dirty.")
def flush(
    checkpoint: Checkpoint,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait.")] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Asks for a flush, and waits for the answer."""
    with explain_errors("flush", checkpoint, "read and write"):
        from rich.console import Console

        from spark_cec.admin.find_log import find_log
        from spark_cec.admin.flush import flush_query
        from spark_cec.cli.show import print_json

        with Console(stderr=True).status("waiting for the query to come to the end of a batch"):
            result = flush_query(checkpoint, find_log(checkpoint), timeout)
        answer = result.answer
        failed = (
            list(answer.failed) if answer else [f"the query has not answered within {timeout:g} s: is a batch so long?"]
        )
        if as_json:
            version = answer.version if answer else None
            print_json({"version": version, "failed": failed, "seconds": round(result.seconds, 3)})
        elif not failed and answer:
            when = "since the query was stopped"
            if result.is_written_always:
                when = "because each batch of this query writes all that it changes"
            elif answer.request:
                when = f"after {result.seconds:.1f} s"
            print(f"all is written up to batch {answer.version - 1}, {when}")
        else:
            print("\n".join(f"not written: {line}" for line in failed))
        _exit(bool(failed))


migrate_commands.register(app)
rollback_command.register(app)

@app.command(short_help="Advise on the checkpoint interval.", **HANDED_OVER)
def tune(context: typer.Context) -> None:
    """Hands over to the advice's own command."""
    with explain_errors("tune", "", "read and write"):
        need("`cec tune`", "tune")
        from spark_cec.admin.commits import read_commits
        from spark_cec.tuning.command import tune_app

        advice = tune_app(read_commits)
        add_commands(advice, "tune")
        hand_over(advice, context)


add_commands(app)


def _exit(damaged: bool) -> None:
    # Flush while a closed pipe is still an error that we can explain.
    sys.stdout.flush()
    raise typer.Exit(ExitCode.DAMAGE if damaged else ExitCode.OK)
