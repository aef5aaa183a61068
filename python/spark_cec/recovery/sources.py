"""Compares the input that a recovery needs with the query's sources, at a start and while the query runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spark_cec.errors import InputGone
from spark_cec.recovery.margin import Available, Margin, kafka_margin, parse_available
from spark_cec.recovery.replay_input import SHOWN, ReplayInput
from spark_cec.recovery.start_messages import StartMessage
from spark_cec.settings import PREFIX

ACCEPT = f"{PREFIX}onDivergence=accept"


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a query, by Spark's name for it.

    `available`: the offsets that the source reported. `error`: the reason for a missing report. Both are None if the
    source's kind offers no such report.
    """

    name: str
    available: Available | None = None
    error: str | None = None

    @property
    def retention_text(self) -> str:
        """The retention time of the source, in words to append; empty if it is unknown."""
        times = sorted({t.retention_ms for t in (self.available or {}).values() if t.retention_ms is not None})
        return f" (retention.ms={', '.join(map(str, times))})" if times else ""


def parse_sources(states: Iterable[tuple[str, str | None, str | None]]) -> tuple[Source, ...]:
    """Parses the states of sources. A state has the name, the available offsets as JSON text or None, and the error.

    Raises `ValueError` if the JSON has another form.
    """
    return tuple(
        Source(name, None if available is None else parse_available(available), error)
        for name, available, error in states
    )


def compare_margins(replay: ReplayInput, sources: Sequence[Source]) -> tuple[tuple[Source, Margin], ...]:
    """Each source's margin, for the sources whose needed and available offsets are both known.

    `sources` are in Spark's order. If their number differs from the offset log's, the query has changed, and the result
    is empty.
    """
    if len(sources) != len(replay.sources):
        return ()
    return tuple(
        (source, kafka_margin(source.available, read.start, read.end))
        for source, read in zip(sources, replay.sources, strict=True)
        if source.available is not None and read.partitions is not None and read.start and read.end
    )


@dataclass(frozen=True, slots=True)
class SeenSources:
    """What the sources of a query said at `at_ms`, ms since the epoch, in Spark's order."""

    at_ms: int
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class SourceStanding:
    """What a source still has, against what a recovery would read of it.

    `needed`: offsets that the recovery would read. `spare`: offsets that the source has before these, in the partition
    that is nearest to a loss; `share` is its share. Both are None if no such partition has lost an offset so far.
    `gone`: a needed offset is lost. `text`: all of it, in words.
    """

    source: str
    needed: int
    spare: int | None
    share: float | None
    gone: bool
    text: str


def stand_sources(replay: ReplayInput, sources: Sequence[Source]) -> tuple[SourceStanding, ...]:
    """The standing of each source that a recovery would read, and that told what it has; no other source is named.

    The sources may have told it before the newest batches ran. So an answer without a partition, or with an end that
    was read over since, is no loss.
    """
    known = ((source, _drop_unknown(_raise_ends(margin))) for source, margin in compare_margins(replay, sources))
    return tuple(_stand_source(source, margin) for source, margin in known if margin.needed)


def _raise_ends(margin: Margin) -> Margin:
    return Margin(tuple(replace(each, latest=max(each.latest, each.end)) for each in margin.partitions))


def _drop_unknown(margin: Margin) -> Margin:
    return Margin(tuple(each for each in margin.partitions if each.exists))


def _stand_source(source: Source, margin: Margin) -> SourceStanding:
    needed = margin.needed
    if margin.lost:
        text = f"{source.name} has lost a part of that: {_describe_gone(margin)}"
        return SourceStanding(source.name, needed, 0, 0.0, True, text)
    nearest = margin.nearest
    if nearest is None:
        return SourceStanding(source.name, needed, None, None, False, f"{source.name} has lost nothing so far")
    where = f"{nearest.topic}-{nearest.partition}"
    spare = f"{nearest.spare} offset{'' if nearest.spare == 1 else 's'}"
    text = f"{source.name} still has {spare} before that in {where}, which is nearest to a loss"
    return SourceStanding(source.name, needed, nearest.spare, nearest.share, False, text + source.retention_text)


def check_at_start(
    replay: ReplayInput, sources: Sequence[Source], share: float, accepts: bool, now_ms: int
) -> StartMessage:
    """Checks the sources at a start, before a replay, and returns the message on them.

    `share` is `cec.sources.margin`. `accepts`: the user accepts a replay that diverges. Raises `InputGone` if a replay
    is due, some of its input is gone, and the user does not accept that.
    """
    if not replay.is_due:
        return _check_without_replay(replay, sources, share, now_ms)
    known = compare_margins(replay, sources)
    gone = [f"{source.name}: {_describe_gone(margin)}" for source, margin in known if margin.lost]
    what = f"input that the recovery of batch {replay.committed} needs, from batch {replay.first} on, is gone: "
    if gone and not accepts:
        raise InputGone(
            f"{what}{'; '.join(gone)}. Nothing was changed: give the input back and start again, or start once with "
            f"{ACCEPT}, which takes the state as a replay of what is left makes it, and reports which windows may "
            "differ"
        )
    news = [f"{what}{'; '.join(gone)}; that is accepted ({ACCEPT})"] if gone else []
    thin = [(source, margin) for source, margin in known if not margin.lost and margin.share < share]
    news += [f"{source.name} has little more than that: {margin}{source.retention_text}" for source, margin in thin]
    news += _describe_silent(sources, "the replay will tell whether it has all that")
    return _make_message(replay, news, now_ms)


def _check_without_replay(replay: ReplayInput, sources: Sequence[Source], share: float, now_ms: int) -> StartMessage:
    news = []
    for source, margin in compare_margins(replay, sources):
        unread = margin.unread
        if unread.lost:
            news.append(f"{source.name} has lost input that the query has not read: {_describe_gone(unread)}")
        elif unread.share < share:
            news.append(
                f"{source.name} has nearly lost input that the query has not read: {unread}{source.retention_text}"
            )
    return _make_message(replay, [*news, *_describe_silent(sources, "the next batch will tell")], now_ms)


def _describe_gone(margin: Margin) -> str:
    """Describes the loss, for as many partitions as fit into a line."""
    more = [f"and the same of {len(margin.gone) - SHOWN} more partitions"] if len(margin.gone) > SHOWN else []
    return "; ".join([*margin.gone[:SHOWN], *more])


def _describe_silent(sources: Iterable[Source], then: str) -> list[str]:
    return [
        f"{source.name} cannot be asked what it still has ({source.error}): {then}"
        for source in sources
        if source.error
    ]


def _make_message(replay: ReplayInput, news: Sequence[str], now_ms: int) -> StartMessage:
    return StartMessage("; ".join([replay.describe(now_ms), *news]), bool(news))


@dataclass(frozen=True, slots=True)
class ThinMargin:
    """Why the stores should write their dirty windows now. `deletes`: whether the source has ever deleted a record.

    A query that reads a topic from its first record begins with a margin of 0, which says nothing about retention.
    """

    why: str
    deletes: bool


def check_while_running(replay: ReplayInput, sources: Sequence[Source], share: float) -> ThinMargin | None:
    """The source with the smallest margin below `share`; None if no source is below.

    The sources may have told what they have before the newest batches read beyond that. If a topic was deleted or made
    again meanwhile, the query has gone on (`failOnDataLoss=false`), and a replay of those batches could not.
    """
    known = ((source, _raise_ends(margin)) for source, margin in compare_margins(replay, sources))
    thin = [(margin.share, source, margin) for source, margin in known if margin.share < share]
    if not thin:
        return None
    _, source, margin = min(thin, key=lambda each: each[0])
    why = f"{source.name}: {_describe_gone(margin) if margin.lost else margin}{source.retention_text}"
    return ThinMargin(why, any(each.earliest > 0 or each.lost for _, _, margin in thin for each in margin.partitions))
