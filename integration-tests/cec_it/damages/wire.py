"""The same faults on the wire: an S3 server (moto) on loopback, behind a proxy that lets requests fail."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cec_it.damages.world import World, agent_on, build, check_stores, commit_batch, start_run, write_batch
from cec_it.s3a import S3Server, run_server
from spark_cec.adapters import hadoop_settings
from spark_cec_lab.storage.proxy import PASS, Kind, Order, Request
from tests.agent.support import Refused

_BUCKET = "campaign"


@dataclass(frozen=True, slots=True)
class WireKind:
    """A kind of fault: what happens to some requests, of which kinds, and whether it ends by itself."""

    order: Callable[[random.Random], Order]
    kinds: frozenset[Kind]
    at_write: bool = False
    passes: bool = True


_READS = frozenset({Kind.GET, Kind.HEAD, Kind.LIST})
_WRITES = frozenset({Kind.PUT})

WIRE_KINDS: dict[str, WireKind] = {
    "wire, load: 503, 500 or 429": WireKind(lambda dice: Order(status=dice.choice((503, 500, 429))), _READS),
    "wire, load: resets": WireKind(lambda _: Order(refused=True), _READS),
    "wire, load: bodies cut short": WireKind(
        lambda dice: Order(body_bytes=dice.randrange(20)), frozenset({Kind.GET, Kind.LIST})
    ),
    "wire, load: 503 for ever": WireKind(lambda _: Order(status=503), _READS, passes=False),
    "wire, write: answers are lost": WireKind(lambda _: Order(lost=True), _WRITES, at_write=True),
    "wire, write: 503": WireKind(lambda _: Order(status=503), _WRITES, at_write=True),
}


@contextmanager
def on_wire() -> Iterator[S3Server]:
    """Runs the server and its proxy, with a bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with run_server() as server:
        server.client().create_bucket(Bucket=_BUCKET)
        yield server


def run_on_wire(server: S3Server, name: str, number: int, dice: random.Random, scratch: Path) -> list[Refused]:
    """Builds a log, has the faults befall it, and loads each store: the refusals, as of `check_stores`."""
    kind, world = WIRE_KINDS[name], World(f"s3a://{_BUCKET}/query-{number}", has_ids=dice.random() < 0.5)
    settings = {key.removeprefix("spark.hadoop."): value for key, value in server.conf().items()}
    retry = "spark.sql.streaming.stateStore.cec.storage.retry"
    server.proxy.decide = lambda _: PASS
    hadoop_settings.use_settings({**settings, retry: "20s" if kind.passes else "1s"})
    try:
        build(world, dice.randrange(2, 5), dice, scratch / "built")
        if kind.at_write:
            agent = agent_on(world, scratch / "writer")
            start_run(world, agent)
            server.proxy.decide = _draw(kind, dice)
            for _ in range(2):
                commit_batch(world, write_batch(world, agent, dice))
            agent.calls.close()
        else:
            server.proxy.decide = _draw(kind, dice)
        return check_stores(world, dice, scratch / "reader")
    finally:
        server.proxy.decide = lambda _: PASS
        hadoop_settings.use_settings({})


def _draw(kind: WireKind, dice: random.Random) -> Callable[[Request], Order]:
    left = [4 if kind.passes else 1 << 30]

    def decide(request: Request) -> Order:
        if request.kind not in kind.kinds or not left[0] or (kind.passes and dice.random() > 0.4):
            return PASS
        left[0] -= 1
        return kind.order(dice)

    return decide
