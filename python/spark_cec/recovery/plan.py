"""The recovery plan: how far the query is rewound, and what must be replayed (design, section 6)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

from spark_cec.checkpoint.eventual import head_at
from spark_cec.errors import UnsuitableCheckpoint
from spark_cec.index import CommitEntry, Index
from spark_cec.log.storage import Storage

REPLAY_FILE = "replay.json"


@dataclass(frozen=True, slots=True)
class Recording:
    """The recorded offsets of the batches that a replay repeats.

    `committed_batch` is V. `offsets` maps a batch id to the JSON of each source's offset (None where it had none), for
    the batches T+1 to L, where L may be one batch that was never committed.
    """

    committed_batch: int
    rewound_to: int
    offsets: Mapping[int, tuple[str | None, ...]]

    def to_json(self) -> str:
        """The text of `replay.json`."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Recording:
        """The inverse of `to_json`; raises `UnsuitableCheckpoint` if the text is not a recording."""
        try:
            raw = json.loads(text)
            offsets = {int(batch): tuple(each) for batch, each in raw["offsets"].items()}
            return cls(int(raw["committed_batch"]), int(raw["rewound_to"]), offsets)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsuitableCheckpoint(
                f"cec/{REPLAY_FILE} cannot be read ({error}): restore it from a copy of the checkpoint"
            ) from error


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """V, T and the stores' commits at version V+1. `recording` is set where an earlier recovery was cut short."""

    committed_batch: int
    rewound_to: int
    heads: tuple[CommitEntry, ...]
    recording: Recording | None

    @property
    def replayed_batches(self) -> int:
        """How many committed batches will run again: V - T."""
        return self.committed_batch - self.rewound_to


def pending_recording(storage: Storage, commits: Collection[int], last_offset: int) -> Recording | None:
    """The recording of a recovery that was cut short, or None.

    A recording is obsolete, and removed, as soon as Spark's commit log has reached its V again *and* its offset log L:
    until then nothing else knows how far batch L went, which a sink may have already. To have reached V takes all
    batches up to it: a run that was thought dead may have committed a batch after the log was cut.
    `storage` is rooted at the checkpoint's `cec` directory, `commits` are the batches in Spark's commit log,
    `last_offset` is the newest one in its offset log (any that is known to be there will do), -1 if there is none.
    """
    if not storage.exists(REPLAY_FILE):
        return None
    recording = Recording.from_json(storage.read(REPLAY_FILE).decode())
    committed, last_commit = recording.committed_batch, max(commits, default=-1)
    # Spark forgets the oldest batches; from the oldest that it has, none may be missing.
    replayed = all(b in commits for b in range(max(recording.rewound_to, min(commits, default=0)), committed + 1))
    planned_again = last_offset >= max(recording.offsets, default=-1)
    if last_commit >= recording.rewound_to and not (replayed and planned_again):
        return recording
    storage.delete(REPLAY_FILE)
    return None


def save_recording(storage: Storage, recording: Recording) -> None:
    """Makes the recording durable: after this, and only after this, Spark's logs may be cut."""
    storage.replace(REPLAY_FILE, recording.to_json().encode())


def make_plan(index: Index, recording: Recording | None, last_commit: int) -> RecoveryPlan:
    """The plan of a recovery, from the newest commit of every store that the log knows.

    Where the newest run committed a version several times (a task ran again), the replay starts early enough for each
    of these attempts, since any of them may be loaded. Raises `DamagedLog` if a store's frame at version V+1 is missing
    although Spark committed batch V.
    """
    committed = recording.committed_batch if recording else last_commit
    if committed < 0:
        return RecoveryPlan(committed, committed, (), None)
    heads = tuple(head_at(index, store, committed + 1) for store in sorted(index.stores()))
    rewound_to = min((first_missed(index, head) for head in heads), default=committed + 1) - 1
    return RecoveryPlan(committed, rewound_to, heads, recording)


def refuse_a_log_that_is_ahead(index: Index, committed: int, generation: int) -> None:
    """Refuses a log that knows more than a crash after batch `committed` can leave; `generation`: the newest known run.

    A checkpoint that was restored from an older copy, without its log, would repeat the numbers of runs and versions:
    commits of the history that was given up could be taken for its own.
    """
    for store in index.stores():
        for entry in index.commits(store, 0, 1 << 62):
            meta = entry.meta
            if meta.generation > generation or (meta.generation == generation and meta.version > committed + 2):
                raise UnsuitableCheckpoint(
                    f"the log is ahead of the checkpoint: store {store} has version {meta.version} by run "
                    f"{meta.generation}, but the checkpoint ends at batch {committed} and run {generation}; restore "
                    f"both from one copy, or start a new checkpoint with a log of its own"
                )


def first_missed(index: Index, head: CommitEntry) -> int:
    """The lowest D of the attempts at the head's version, in its run: any of them may be loaded."""
    attempts = index.commits(head.meta.store, head.meta.version, head.meta.version)
    return min(e.meta.dirty_from for e in attempts if e.meta.generation == head.meta.generation)


def check_recording(recording: Recording, in_offset_log: Mapping[int, Sequence[str | None]]) -> None:
    """Refuses a recording that does not agree with Spark's offset log where both speak of a batch."""
    for batch, offsets in in_offset_log.items():
        recorded = recording.offsets.get(batch)
        if recorded is not None and tuple(offsets) != recorded:
            raise UnsuitableCheckpoint(
                f"cec/{REPLAY_FILE} records offsets for batch {batch} that differ from Spark's offset log: the "
                f"checkpoint was changed by hand; restore commits/, offsets/ and cec/ from one copy"
            )
