"""What a recovery needs of a query's sources against what these still have: at a start, and while the query runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cec.errors import InputGone
from spark_cec.recovery.margin import Available, Margin, kafka_margin, parse_available
from spark_cec.recovery.reach import SHOWN, Reach
from spark_cec.recovery.start import Word
from spark_cec.settings import PREFIX

ACCEPT = f"{PREFIX}onDivergence=accept"


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a query, by the name that Spark has for it, and what it said when it was asked what it has.

    `available`: that; `error`: why it did not say. Neither, if it is of a kind that nobody can ask.
    """

    name: str
    available: Available | None = None
    error: str | None = None

    @property
    def keeps(self) -> str:
        """For how long it keeps what it has, in words to append; empty if that is not known."""
        times = sorted({t.retention_ms for t in (self.available or {}).values() if t.retention_ms is not None})
        return f" (retention.ms={', '.join(map(str, times))})" if times else ""


def parse_sources(raw: Iterable[Mapping[str, Any]]) -> tuple[Source, ...]:
    """What the shim sends: `name`, and one of `available` (JSON as text) and `error`, or none.

    `ValueError` if it is something else.
    """
    return tuple(
        Source(
            str(each["name"]),
            None if each.get("available") is None else parse_available(each["available"]),
            each.get("error"),
        )
        for each in raw
    )


def margins(reach: Reach, sources: Sequence[Source]) -> tuple[tuple[Source, Margin], ...]:
    """What a recovery needs of each source against what that has; of those where both are known.

    `sources` in Spark's order. If there are more or fewer than in the offset log the query is another one: none.
    """
    if len(sources) != len(reach.sources):
        return ()
    return tuple(
        (source, kafka_margin(source.available, read.start, read.end))
        for source, read in zip(sources, reach.sources, strict=True)
        if source.available is not None and read.partitions is not None and read.start and read.end
    )


def at_start(reach: Reach, sources: Sequence[Source], share: float, accepts: bool, now_ms: int) -> Word:
    """What is said of the sources at a start, before anything is replayed.

    `share` is `cec.sources.margin`; `accepts`: whether a replay is taken as it comes out. Raises `InputGone` if a
    replay is due, something that it needs is gone, and that is not accepted.
    """
    if not reach.is_due:
        return _without_replay(reach, sources, share, now_ms)
    known = margins(reach, sources)
    gone = [f"{source.name}: {_gone(margin)}" for source, margin in known if margin.lost]
    what = f"input that the recovery of batch {reach.committed} needs, from batch {reach.first} on, is gone: "
    if gone and not accepts:
        raise InputGone(
            f"{what}{'; '.join(gone)}. Nothing was changed: give the input back and start again, or start once with "
            f"{ACCEPT}, which takes the state as a replay of what is left makes it, and reports which windows may "
            "differ"
        )
    news = [f"{what}{'; '.join(gone)}; that is accepted ({ACCEPT})"] if gone else []
    thin = [(source, margin) for source, margin in known if not margin.lost and margin.share < share]
    news += [f"{source.name} has little more than that: {margin}{source.keeps}" for source, margin in thin]
    news += _silent(sources, "the replay will tell whether it has all that")
    return _word(reach, news, now_ms)


def _without_replay(reach: Reach, sources: Sequence[Source], share: float, now_ms: int) -> Word:
    news = []
    for source, margin in margins(reach, sources):
        unread = margin.unread
        if unread.lost:
            news.append(f"{source.name} has lost input that the query has not read: {_gone(unread)}")
        elif unread.share < share:
            news.append(f"{source.name} has nearly lost input that the query has not read: {unread}{source.keeps}")
    return _word(reach, [*news, *_silent(sources, "the next batch will tell")], now_ms)


def _gone(margin: Margin) -> str:
    """What is gone, of so many partitions as fit into a line."""
    more = [f"and the same of {len(margin.gone) - SHOWN} more partitions"] if len(margin.gone) > SHOWN else []
    return "; ".join([*margin.gone[:SHOWN], *more])


def _silent(sources: Iterable[Source], then: str) -> list[str]:
    return [
        f"{source.name} cannot be asked what it still has ({source.error}): {then}"
        for source in sources
        if source.error
    ]


def _word(reach: Reach, news: Sequence[str], now_ms: int) -> Word:
    return Word("; ".join([reach.describe(now_ms), *news]), bool(news))


@dataclass(frozen=True, slots=True)
class Thin:
    """Why what is dirty should be written now. `deletes`: whether the source has ever deleted anything.

    A query that reads a topic from its first record has a margin of 0 at first, which says nothing of the retention.
    """

    why: str
    deletes: bool


def while_running(reach: Reach, sources: Sequence[Source], share: float) -> Thin | None:
    """Whether a source has less than `share` of its past beyond what is needed."""
    thin = [(margin.share, source, margin) for source, margin in margins(reach, sources) if margin.share < share]
    if not thin:
        return None
    _, source, margin = min(thin, key=lambda each: each[0])
    why = f"{source.name}: {_gone(margin) if margin.lost else margin}{source.keeps}"
    return Thin(why, any(each.earliest > 0 for _, _, margin in thin for each in margin.partitions))
