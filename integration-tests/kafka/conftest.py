"""Fixtures of the tests with Kafka: one broker for all of them, and topics by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from testbed.broker import Broker
from testbed.topics import Topics

_numbers = itertools.count()
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that runs. Whoever stops it starts it again."""
    with Broker(tmp_path_factory.mktemp("broker"), ACLS) as running:
        yield running


@pytest.fixture(scope="session")
def topics(broker: Broker) -> Topics:
    return Topics(broker.address)


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{next(_numbers)}"
