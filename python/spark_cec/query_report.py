"""A report on a query for notebooks: how it keeps its bounds, what its checkpoints cost, and its recoveries.

`spark_cec.report(checkpoint)` reads the checkpoint and its log, and needs no Spark session.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, Any

from spark_cec.admin.find_log import find_log
from spark_cec.admin.history import BatchCommits, read_history
from spark_cec.admin.recoveries import read_recoveries
from spark_cec.admin.state import open_catalog, read_state
from spark_cec.admin.words import format_time
from spark_cec.extras import need
from spark_cec.recovery.past_recoveries import Recovery

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RECOVERIES = 20


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What the log says of a query.

    `batches`: oldest first, as far back as the log goes. `recoveries`: the newest 20, oldest first. `damages`: what the
    headers show, in words.
    """

    checkpoint: str
    mode: str
    reason: str
    settings: str
    batches: tuple[BatchCommits, ...]
    recoveries: tuple[Recovery, ...]
    damages: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it, in values that JSON knows."""
        return asdict(self)

    def plot(self) -> Figure:
        """q and u against their bounds, bytes of the log, and the recoveries, as a figure of matplotlib.

        Raises `ExtraMissing` without matplotlib.
        """
        need("Report.plot", "tune")
        from spark_cec.tuning.plots import new_figure

        figure = new_figure()  # it arranges its axes by itself
        figure.set_size_inches(9, 7)
        axes = figure.subplots(2, 2)
        numbers, done = [each.batch for each in self.batches], self.batches
        extents, replays = [e.extent_bound for e in done], [e.replay_bound for e in done]
        _draw_bounded(axes[0][0], "q, log records", numbers, [each.extent for each in done], "Q", extents)
        _draw_bounded(axes[0][1], "u, input tuples", numbers, [each.replay for each in done], "U", replays)
        _draw_bounded(axes[1][0], "bytes in the log", numbers, [each.stored_bytes for each in done])
        _draw_recoveries(axes[1][1], self.recoveries)
        return figure

    def _repr_html_(self) -> str:
        """What a notebook shows: tables, and the plot if matplotlib is there."""
        parts = [f"<h3>{escape(self.checkpoint)}</h3>", _make_table(("", ""), self._list_facts())]
        if self.recoveries:
            head = ("recovery of", "took", "foretold", "batches replayed", "proved right")
            parts.append(_make_table(head, map(_list_columns, self.recoveries)))
        parts += [f"<p><b>{escape(damage)}</b></p>" for damage in self.damages]
        if self.batches and find_spec("matplotlib") is not None:
            drawn = io.BytesIO()
            self.plot().savefig(drawn, format="png")
            picture = base64.b64encode(drawn.getvalue()).decode()
            parts.append(f'<img alt="bounds, bytes and recoveries" src="data:image/png;base64,{picture}"/>')
        return "\n".join(parts)

    def __repr__(self) -> str:
        """The facts as lines of text."""
        lines = [f"{name}: {value}" for name, value in self._list_facts()]
        for when, took, foretold, replayed, proof in map(_list_columns, self.recoveries):
            lines.append(f"recovery of {when}: {took}, foretold {foretold}, replayed {replayed}, proved right: {proof}")
        return "\n".join([self.checkpoint, *lines, *self.damages])

    def _list_facts(self) -> list[tuple[str, str]]:
        facts = [("mode", f"{self.mode}: {self.reason}"), ("settings", self.settings)]
        if not self.batches:
            return [*facts, ("batches", "no store has committed yet, or the query has no state in this log")]
        last = self.batches[-1]
        written, records = median(e.stored_bytes for e in self.batches), median(e.records for e in self.batches)
        inputs = median(each.inputs for each in self.batches)
        facts += [
            ("batches in the log", f"{len(self.batches):,}, up to {last.batch} ({format_time(last.wall_ms)})"),
            ("q, log records", _describe_bounded([(e.batch, e.extent, e.extent_bound) for e in self.batches])),
            ("u, input tuples", _describe_bounded([(e.batch, e.replay, e.replay_bound) for e in self.batches])),
            ("open windows", f"{last.open_windows:,}, of which dirty {last.dirty_windows:,}"),
            ("of a batch (median)", f"{written:,.0f} bytes, {records:,.0f} records for {inputs:,.0f} input tuples"),
        ]
        if last.recovery_ms:
            facts.append(("a recovery from here", f"{last.recovery_ms / 1000:.1f} s, as estimated"))
        return facts


def report(checkpoint: str) -> Report:
    """Reads the log of a query. `checkpoint`: its checkpoint location, or the home of its log; may be a URL.

    Writes nothing: it is safe while the query runs. Raises `LogLocationError` if there is no log, also for the home of
    a pipeline, and the errors of the storage.
    """
    place = find_log(checkpoint)
    catalog = open_catalog(place)
    state, query = read_state(place, catalog), place.query or {}
    return Report(
        checkpoint=checkpoint,
        mode=str(query.get("mode", "unknown")),
        reason=str(query.get("reason", "no reason recorded")),
        settings=str(query.get("settings", "unknown")),
        batches=read_history(place, catalog.index, state.committed),
        recoveries=read_recoveries(place, _RECOVERIES),
        damages=tuple(f"{each.kind.value}: {each.where}: {each.reason}" for each in state.findings),
    )


def _describe_bounded(values: Sequence[tuple[int, int, int | None]]) -> str:
    """The newest value, and the largest share of a bound. `values`: batch, value, and the bound of that batch."""
    _, now, bound = values[-1]
    shares = [(value / limit, batch, value, limit) for batch, value, limit in values if limit]
    if not shares:
        return f"{now:,}, at most {max(value for _, value, _ in values):,}"
    share, batch, value, limit = max(shares)
    most = f"at most {share:.0%} of the bound: {value:,} of {limit:,} at batch {batch}"
    return f"{now:,} of {bound:,} ({now / bound:.0%}), {most}" if bound else f"{now:,}, {most}"


def _list_columns(recovery: Recovery) -> tuple[str, str, str, str, str]:
    foretold = "-" if recovery.predicted_ms is None else f"{recovery.predicted_ms / 1000:.1f} s"
    proof = {True: "yes", False: "NO", None: "-"}[recovery.digest_ok]
    took = f"{recovery.duration_ms / 1000:.1f} s"
    return format_time(recovery.started_ms), took, foretold, f"{recovery.replayed_batches:,}", proof


def _make_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of HTML. Every value is text, also if it looks like HTML."""
    lines = ["<tr>" + "".join(f"<th>{escape(each)}</th>" for each in head) + "</tr>"] if any(head) else []
    lines += ["<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows]
    return "<table>" + "".join(lines) + "</table>"


def _draw_bounded(
    axes: Axes, title: str, batches: list[int], values: list[int], name: str = "", bounds: Sequence[int | None] = ()
) -> None:
    axes.plot(batches, values, label=name.lower() or None)
    known = [bound for bound in bounds if bound is not None]
    if len(known) == len(batches) and known:
        axes.plot(batches, known, linestyle="--", color="grey", label=name)
        axes.legend()
    axes.set_title(title)
    axes.set_xlabel("batch")
    axes.set_ylim(bottom=0)


def _draw_recoveries(axes: Axes, recoveries: Sequence[Recovery]) -> None:
    axes.set_title("recoveries, seconds")
    if not recoveries:
        axes.text(0.5, 0.5, "none", ha="center", va="center", transform=axes.transAxes)
        return
    places = range(len(recoveries))
    axes.bar([p - 0.2 for p in places], [e.duration_ms / 1000 for e in recoveries], 0.4, label="measured")
    foretold = [math.nan if e.predicted_ms is None else e.predicted_ms / 1000 for e in recoveries]
    axes.bar([p + 0.2 for p in places], foretold, 0.4, label="foretold")
    axes.set_xticks(list(places), [format_time(e.started_ms)[5:16] for e in recoveries], rotation=90, fontsize="small")
    axes.legend()
