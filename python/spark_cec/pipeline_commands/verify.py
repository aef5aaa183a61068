"""`cec pipeline verify`: the logs of all flows of a home, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.text import Text

from spark_cec.admin.check import Verification, verify_log
from spark_cec.admin.damage import error_finding
from spark_cec.admin.find_log import find_log
from spark_cec.admin.read_only import ReadOnlyStorage
from spark_cec.cli.progress import meter
from spark_cec.cli.show import console, print_findings, print_json, print_verification, verification_json
from spark_cec.errors import CecError, DamagedLog, LogLocationError, NoLogYet
from spark_cec.pipeline.home import open_homes

VERIFY_HELP = """Read every byte of the logs of a pipeline's flows, and rebuild every store, as `cec verify` does.

Writes nothing: it is safe while the pipeline runs. A flow that has begun no log yet is said to have none, and so is a
sink without state: its rows are where it writes them.

\b
Examples:
  cec pipeline verify /data/shop
  cec pipeline verify /data/shop --json | jq '.flows[] | select(.ok | not)'

\b
Exit codes:
  0  ok
  1  damage was found, or a flow has lost its log
  2  wrong usage, or there is no pipeline, or a log cannot be read; the others are read all the same
"""


def verify(
    home: Annotated[str, typer.Argument(metavar="HOME", help="The pipeline's home.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Verify the logs of all flows."""
    base = home.rstrip("/") or home
    found: list[dict[str, Any]] = []
    seen = set[str]()
    for replica, place in open_homes(base).items():
        for name, is_sink in place.recorded_flows().items():
            checkpoint = place.flow(name)
            if checkpoint not in seen:  # replicas share their sinks
                has_log = not is_sink and place.has_batch(name)
                found.append(_verified(f"{replica}/{name}".lstrip("/"), checkpoint, has_log=has_log, quiet=as_json))
            seen.add(checkpoint)
    damaged = [each["name"] for each in found if not each["ok"] and "error" not in each]
    unread = [each["name"] for each in found if "error" in each]
    if as_json:
        print_json({"home": base, "ok": not damaged and not unread, "flows": found})
    elif damaged:
        console().print(Text(f"damage in {', '.join(damaged)}: stop the pipeline, then `cec repair`", "bold red"))
    if damaged or unread:
        raise typer.Exit(1 if damaged else 2)


def _verified(name: str, checkpoint: str, *, has_log: bool, quiet: bool) -> dict[str, Any]:
    """Verifies the log of one flow, and prints the result unless `quiet`. `has_log`: the flow has committed batches."""
    if not quiet:
        console().print(Text(name, "bold"))
    try:
        result = _read(checkpoint)
    except NoLogYet as none:
        if has_log:
            return _tell_damage(name, DamagedLog(none.url, -1, "the flow's log is gone: restore it"), quiet=quiet)
        if not quiet:
            console().print("no log")
        return {"name": name, "ok": True, "log": False}
    except LogLocationError as error:
        return _tell_damage(name, DamagedLog(error.url, -1, str(error.args[1])), quiet=quiet)
    except DamagedLog as error:  # so that nothing tells which log it is
        return _tell_damage(name, error, quiet=quiet)
    except (CecError, OSError) as error:
        if not quiet:
            console().print(Text(f"cannot be read: {error}", "bold red"))
        return {"name": name, "ok": False, "log": True, "error": str(error)}
    if not quiet:
        print_verification(console(), result)
    return {"name": name, "log": True, **verification_json(result)}


def _tell_damage(name: str, error: DamagedLog, *, quiet: bool) -> dict[str, Any]:
    finding = error_finding(error)
    if not quiet:
        print_findings(console(), [finding])
    return {"name": name, "ok": False, "log": True, "damages": [finding.to_json()]}


def _read(checkpoint: str) -> Verification:
    place = find_log(checkpoint)
    with meter(place.storage) as progress:
        watched = replace(place, storage=ReadOnlyStorage(place.storage, progress.read))
        return verify_log(watched, progress.stores_begin, progress.store_done)
