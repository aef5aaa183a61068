"""A dataflow on workers of one core each, under a protocol: what happens when, through a failure and after it.

Each operator has an instance, a process, on every worker. A process takes all that has come for it as one batch, and
answers with one message, which each of its readers takes its part of; so do the flows of a pipeline on Spark. Channels
keep what was sent; what a failure takes back is sent anew. Every process keeps a sum over all that it has processed,
which is linear in the records: so it does not depend on how they were put into batches, and shows what was lost, or
processed twice.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from spark_cec.protocols.choose import Inputs, Protocol, check_inputs, make_machine, recovery_line
from spark_cec.protocols.messages import (
    Action,
    Block,
    Checkpoint,
    PassMarker,
    Process,
    TakeCheckpoint,
)
from spark_cec_lab.simulation.protocols.dataflow import Dataflow, part_of
from spark_cec_lab.simulation.protocols.outcome import Arrived, Outcome, Recovery, Taken
from spark_cec_lab.simulation.protocols.plan import Costs, Plan
from spark_cec_lab.simulation.protocols.process import Entry, Message, Payload, Saved, Simulated

MODULUS = (1 << 61) - 1
_MOST_ENTRIES = 256


class Simulation:
    """One run. Raises `CycleRefused` where the protocol cannot be had on the dataflow."""

    def __init__(self, dataflow: Dataflow, protocol: Protocol, plan: Plan, costs: Costs) -> None:
        self._dataflow, self._protocol, self._plan, self._costs = dataflow, protocol, plan, costs
        self._random = random.Random(plan.seed)
        inputs = _inputs(dataflow, plan.workers)
        check_inputs(protocol, inputs)
        readers: dict[Process, list[Process]] = {name: [] for name in inputs}
        for reader, read in inputs.items():
            for sender in read:
                readers[sender].append(reader)
        self._readers = readers
        operators = dataflow.by_name
        self._order = {each.name: place for place, each in enumerate(dataflow.operators)}
        self._processes = {
            name: Simulated(
                name, operators[_operator(name)], _worker(name), make_machine(protocol, name, inputs, readers[name]),
                tuple(inputs[name]), (0,) * (dataflow.hops + 1),
            )
            for name in inputs
        }  # fmt: skip
        for each in self._processes.values():
            each.at, each.there = dict.fromkeys(each.inputs, 0), dict.fromkeys(each.inputs, 0)
            each.received = dict.fromkeys(each.inputs, 0)
            self._save(each, TakeCheckpoint(), 0.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._now = 0.0
        self._ready: list[deque[Simulated]] = [deque() for _ in range(plan.workers)]
        self._busy = [False] * plan.workers
        self._lost: set[int] = set()
        self._arrived: list[Arrived] = []
        self._taken: list[Taken] = []
        self._payload = self._added = 0.0
        self._recovery: Recovery | None = None
        self._sizes: dict[Process, float] = {}

    def run(self) -> Outcome:
        """From the beginning to the end of the plan."""
        plan = self._plan
        for each in self._processes.values():
            self._first_timer(each)
            if not each.inputs:
                self._wake(each)
        if plan.fails_s is not None:
            self._at(plan.fails_s, self._fail)
        while self._events and self._events[0][0] <= plan.seconds:
            self._now, _, act = heapq.heappop(self._events)
            act()
        behind = sum(map(self._behind, self._processes.values()))
        return Outcome(
            self._arrived, self._taken, self._payload, self._added, self._recovery,
            {name: each.state for name, each in self._processes.items()}, behind,
        )  # fmt: skip

    def _behind(self, process: Simulated) -> float:
        """Records that it has yet to process."""
        if not process.inputs:
            return self._records_at(process, min(self._plan.seconds, self._plan.ends_s)) - process.position
        waiting = (each for sender in process.inputs for each in self._processes[sender].log[process.at[sender] :])
        records = sum(count for each in waiting if isinstance(each, Message) for count, _ in each.payload)
        return records * self._part(process)[0]

    # What happens in a worker.

    def _wake(self, process: Simulated) -> None:
        """It may have something to do."""
        if process.worker in self._lost or process.queued:
            return
        process.queued = True
        self._ready[process.worker].append(process)
        self._next(process.worker)

    def _next(self, worker: int) -> None:
        while not self._busy[worker] and worker not in self._lost and self._ready[worker]:
            process = self._ready[worker].popleft()
            process.queued = False
            self._step(process)

    def _step(self, process: Simulated) -> None:
        """A checkpoint whose time has come, markers, then a batch; the worker is busy until it is done."""
        took_s = 0.0
        if process.due:
            process.due = False
            took_s += self._do(process, process.machine.timer())
        took_s += self._take_markers(process)
        entries: dict[Process, list[Message]] = {}
        source: int | None = None
        if self._now < process.next_s - 1e-9:
            self._wake_later(process, process.next_s)
        elif process.inputs:
            entries = {sender: found for sender in process.inputs if (found := self._messages(process, sender))}
        else:
            source = self._read_source(process)
        if entries or source is not None:
            process.next_s = self._now + self._costs.trigger_s
            messages = [(sender, each.added) for sender, found in entries.items() for each in found]
            took_s += self._do(process, process.machine.arrives(*messages))
            payload, created_s = self._input(process, entries, source)
            took_s += self._work_s(process, entries, payload)
            life = process.life
            self._busy[process.worker] = True
            self._at(self._now + took_s, lambda: self._done(process, life, entries, source, payload, created_s))
        elif took_s:
            self._busy[process.worker] = True
            life = process.life
            self._at(self._now + took_s, lambda: self._idle(process, life))

    def _idle(self, process: Simulated, life: int) -> None:
        if process.life == life:
            self._busy[process.worker] = False
            self._wake(process)
            self._next(process.worker)

    def _done(
        self, process: Simulated, life: int, entries: Mapping[Process, Sequence[Message]], source: int | None,
        payload: Payload, created_s: float,
    ) -> None:  # fmt: skip
        """The batch is over: its records are in the state, and its answer is on its way."""
        if process.life != life:
            return
        self._busy[process.worker] = False
        for sender, found in entries.items():
            process.at[sender] += len(found)
            process.received[sender] += len(found)
        if source is not None:
            process.position = source
        records = sum(each for each, _ in payload)
        process.state = tuple((old + new) % MODULUS for old, (_, new) in zip(process.state, payload, strict=True))
        touched, most = records * process.operator.kept_bytes, process.operator.most_bytes
        process.kept_bytes = min(process.kept_bytes + touched, most)
        process.changed_bytes = min(process.changed_bytes + touched, most)
        if self._readers[process.name]:
            self._send(process, payload, created_s)
        elif records:
            self._arrived.append(Arrived(self._now, records, self._now - created_s))
        if self._protocol is Protocol.CEC:
            process.saved = [self._snapshot(process, TakeCheckpoint())]
        self._wake(process)
        self._next(process.worker)

    def _messages(self, process: Simulated, sender: Process) -> list[Message]:
        """What has come of an input, up to the next marker."""
        if sender in process.blocked:
            return []
        begin = process.at[sender]
        end = min(process.there[sender], begin + _MOST_ENTRIES)
        found = itertools.takewhile(lambda each: isinstance(each, Message), self._processes[sender].log[begin:end])
        return [each for each in found if isinstance(each, Message)]

    def _take_markers(self, process: Simulated) -> float:
        took_s, again = 0.0, True
        while again:
            again = False
            for sender in process.inputs:
                at = process.at[sender]
                if sender in process.blocked or at >= process.there[sender]:
                    continue
                entry = self._processes[sender].log[at]
                if not isinstance(entry, Message):
                    process.at[sender] += 1
                    took_s += self._do(process, process.machine.marker(sender, entry))
                    again = True
        return took_s

    def _read_source(self, process: Simulated) -> int | None:
        """Up to where the source reads; None if nothing is there, and then it looks again when something is."""
        end = self._records_at(process, min(self._now, self._plan.ends_s))
        if end > process.position:
            return min(end, process.position + max(int(self._costs.catch_up_s * self._rate(process)), 1))
        if self._now < self._plan.ends_s:
            self._wake_later(process, self._now + self._costs.trigger_s)
        return None

    def _wake_later(self, process: Simulated, at_s: float) -> None:
        if process.woken:
            return
        process.woken, life = True, process.life

        def wake() -> None:
            if process.life == life:
                process.woken = False
                self._wake(process)

        self._at(at_s, wake)

    def _rate(self, process: Simulated) -> float:
        return self._plan.rate * process.operator.share / self._plan.workers

    def _records_at(self, process: Simulated, at_s: float) -> int:
        return int(at_s * self._rate(process))

    def _input(
        self, process: Simulated, entries: Mapping[Process, Sequence[Message]], source: int | None
    ) -> tuple[Payload, float]:
        """The process's part of what it reads, by hops, and when that came into being, on average."""
        hops = self._dataflow.hops + 1
        if source is not None:
            read, rate = source - process.position, self._rate(process)
            sums = _sum_to(source, process.worker) - _sum_to(process.position, process.worker)
            first: Payload = ((float(read), sums % MODULUS), *((0.0, 0) for _ in range(hops - 1)))
            return first, (process.position + source) / 2 / rate
        counts, values, ages = [0.0] * hops, [0] * hops, 0.0
        share, factor = self._part(process)
        for sender, found in entries.items():
            shift = int(self._order[_operator(sender)] >= self._order[process.operator.name])  # around the cycle
            for each in found:
                for hop, (records, value) in enumerate(each.payload):
                    if hop + shift < hops:
                        counts[hop + shift] += records * share
                        values[hop + shift] += value * factor
                        ages += records * share * each.created_s
        whole = sum(counts)
        return tuple(
            (c, v % MODULUS) for c, v in zip(counts, values, strict=True)
        ), ages / whole if whole else self._now

    def _part(self, process: Simulated) -> tuple[float, int]:
        """Its share of what its inputs send, of records and of their sum."""
        if not process.operator.keyed:
            return 1.0, 1
        return part_of(process.worker, self._plan.workers, self._plan.skew), 2 * process.worker + 3

    def _work_s(self, process: Simulated, entries: Mapping[Process, Sequence[Message]], payload: Payload) -> float:
        costs = self._costs
        records = sum(each for each, _ in payload)
        share, _ = self._part(process)
        read = sum(each.size * share + self._size(sender) for sender, found in entries.items() for each in found)
        sent = records * process.operator.out * costs.record_bytes + self._size(process.name)
        per_byte = costs.byte_us + (costs.log_us if self._protocol.keeps_messages else 0.0)
        durable = costs.commit_us * records if self._protocol is Protocol.CEC and process.operator.kept_bytes else 0.0
        return costs.batch_s + 1e-6 * (records * process.operator.us + read * costs.byte_us + sent * per_byte + durable)

    def _send(self, process: Simulated, payload: Payload, created_s: float) -> None:
        out = process.operator.out
        answer = tuple((records * out, value) for records, value in payload)
        size = sum(records for records, _ in answer) * self._costs.record_bytes
        process.sent += 1
        self._payload += size
        self._added += self._size(process.name)  # it is written once, whoever reads it
        self._put(process, Message(answer, created_s, process.machine.sends(), size))

    def _put(self, process: Simulated, entry: Entry) -> None:
        """Into the channel; readers have it a little later."""
        process.log.append(entry)
        count, life = len(process.log), process.life

        def arrive() -> None:
            if process.life != life:
                return
            for name in self._readers[process.name]:
                reader = self._processes[name]
                if reader.there[process.name] < count:
                    reader.there[process.name] = count
                    self._wake(reader)

        self._at(self._now + self._costs.network_s, arrive)

    def _size(self, process: Process) -> float:
        """Bytes that the protocol adds to a message of a process: as JSON, as in a manifest."""
        if not self._protocol.adds_to_messages:
            return 0.0
        if process not in self._sizes:
            self._sizes[process] = float(len(json.dumps(dict(copy.deepcopy(self._processes[process].machine).sends()))))
        return self._sizes[process]

    # Checkpoints.

    def _first_timer(self, process: Simulated) -> None:
        interval = self._plan.interval_s
        coordinated = self._protocol is Protocol.COORDINATED
        if coordinated and process.inputs:
            return
        self._timer(process, interval if coordinated else interval * (0.5 + self._random.random()))

    def _timer(self, process: Simulated, at_s: float) -> None:
        life = process.life

        def ring() -> None:
            if process.life == life:
                process.due = True
                self._wake(process)
                self._timer(process, self._now + self._plan.interval_s)

        self._at(at_s, ring)

    def _do(self, process: Simulated, actions: Sequence[Action]) -> float:
        """What the machine asks for; the processor time that it takes."""
        took_s = 0.0
        for action in actions:
            if isinstance(action, TakeCheckpoint):
                took_s += self._costs.checkpoint_s + 1e-6 * self._costs.snapshot_us * process.changed_bytes
                self._save(process, action, self._now + took_s + 1e-6 * self._costs.write_us * process.changed_bytes)
                process.changed_bytes = 0.0
            elif isinstance(action, Block):
                process.blocked.add(action.sender)
            elif isinstance(action, PassMarker):
                self._put(process, action.round)
            else:
                process.blocked.clear()
        return took_s

    def _save(self, process: Simulated, action: TakeCheckpoint, durable_s: float) -> None:
        saved = self._snapshot(process, action)
        saved.durable_s = durable_s
        process.saved.append(saved)
        if saved.checkpoint.number:
            number = saved.checkpoint.number
            self._taken.append(Taken(process.name, number, self._now, durable_s, action.forced, action.round))

    def _snapshot(self, process: Simulated, action: TakeCheckpoint) -> Saved:
        number = process.saved[-1].checkpoint.number + 1 if process.saved else 0
        told = Checkpoint(process.name, number, process.sent, dict(process.received), action.forced, action.round)
        machine = process.machine if self._protocol is Protocol.CEC else copy.deepcopy(process.machine)
        return Saved(told, process.state, process.kept_bytes, process.position, machine)

    # Failure and recovery.

    def _fail(self) -> None:
        failed = {each.name for each in self._processes.values() if each.worker == self._plan.failed}
        self._lost.add(self._plan.failed)
        for name in failed:
            self._processes[name].life += 1
        failed_s = self._now
        self._at(self._now + self._costs.detect_s, lambda: self._recover(failed, failed_s))

    def _recover(self, failed: set[Process], failed_s: float) -> None:
        """All who go back stop, load what the line says, fetch what is to be processed again, and run together."""
        durable = {
            name: [saved for saved in each.saved if saved.durable_s <= (failed_s if name in failed else self._now)]
            for name, each in self._processes.items()
        }
        known = {name: [saved.checkpoint for saved in own] for name, own in durable.items()}
        now = {
            name: Checkpoint(name, own[-1].number, self._processes[name].sent, dict(self._processes[name].received))
            for name, own in known.items()
        }
        line = recovery_line(self._protocol, known, now, failed)
        back = [name for name in self._processes if name in failed or self._protocol is not Protocol.CEC]
        invalid = sum(len(known[name]) - 1 - known[name].index(line[name]) for name in back)
        for name in back:
            saved = next(each for each in durable[name] if each.checkpoint == line[name])
            self._go_back(self._processes[name], saved, durable[name])
        ready_s = self._now + self._costs.restart_s + max(self._load_s(back, w) for w in range(self._plan.workers))
        self._lost |= {self._processes[name].worker for name in back}
        self._recovery = Recovery(ready_s - failed_s, len(back), invalid)
        self._at(ready_s, lambda: self._begin_again(back))

    def _go_back(self, process: Simulated, saved: Saved, durable: list[Saved]) -> None:
        process.life += 1
        process.state, process.kept_bytes, process.position = saved.state, saved.kept_bytes, saved.position
        process.changed_bytes = 0.0
        process.machine = copy.deepcopy(saved.machine)
        process.sent, process.received = saved.checkpoint.sent, dict(saved.checkpoint.received)
        process.saved = durable[: durable.index(saved) + 1]
        process.blocked.clear()
        process.due = process.queued = process.woken = False
        process.next_s = 0.0
        # Markers are of rounds that are given up; what was sent since is sent anew.
        messages = [each for each in process.log if isinstance(each, Message)]
        process.log = list(messages[: process.sent])

    def _load_s(self, back: Sequence[Process], worker: int) -> float:
        """The state of the worker's processes, and what they process again."""
        own = [each for name in back if (each := self._processes[name]).worker == worker]
        fetched = sum(
            sum(
                each.size
                for each in self._processes[sender].log[reader.received[sender] :]
                if isinstance(each, Message)
            )
            * self._part(reader)[0]
            for reader in own
            for sender in reader.inputs
        )
        return 1e-6 * (self._costs.load_us * sum(each.kept_bytes for each in own) + self._costs.fetch_us * fetched)

    def _begin_again(self, back: Sequence[Process]) -> None:
        returned = [self._processes[name] for name in back]
        for each in returned:
            self._lost.discard(each.worker)
            self._busy[each.worker] = False
            self._ready[each.worker].clear()
        for each in returned:
            for sender in each.inputs:
                each.at[sender] = each.received[sender]
                each.there[sender] = len(self._processes[sender].log)
            for name in self._readers[each.name]:  # those that have gone on, too: a channel is durable
                self._processes[name].there[each.name] = len(each.log)
        for each in returned:
            if each.inputs == () or self._protocol is not Protocol.COORDINATED:
                self._timer(each, self._now + self._plan.interval_s)
            self._wake(each)
            for name in self._readers[each.name]:
                self._wake(self._processes[name])

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._number), act))


def _inputs(dataflow: Dataflow, workers: int) -> Inputs:
    """What each instance reads: all instances of an input where its records are spread by key, else its neighbour."""
    return {
        f"{each.name}#{worker}": [
            f"{read}#{other}" for read in each.inputs for other in (range(workers) if each.keyed else (worker,))
        ]
        for each in dataflow.operators
        for worker in range(workers)
    }


def _operator(process: Process) -> str:
    return process.partition("#")[0]


def _worker(process: Process) -> int:
    return int(process.partition("#")[2])


def _sum_to(position: int, worker: int) -> int:
    """The sum over a source's records before a position: record n counts (n + 1) (n + 2 + worker)."""
    n = position
    return n * (n + 1) * (2 * n + 1) // 6 + (worker + 1) * n * (n + 1) // 2
