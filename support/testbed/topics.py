"""Topics of a broker: made, written, read back whole, and treated as an administrator treats them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic, with where it is, and when it came, in ms since 1970."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    came_ms: int


class Topics:
    """The topics of one broker."""

    def __init__(self, address: str) -> None:
        self._conf: dict[str, str | int | float | bool] = {"bootstrap.servers": address, "log_level": 2}
        self._admin = AdminClient(self._conf)

    def create(self, name: str, partitions: int, **config: str) -> None:
        """A new topic; `config` as `cleanup_policy="compact"`."""
        given = {key.replace("_", "."): value for key, value in config.items()}
        futures = self._admin.create_topics([NewTopic(name, partitions, 1, config=given)])
        futures[name].result(_TIMEOUT_S)
        deadline = time.monotonic() + _TIMEOUT_S
        while not self._is_led(name, partitions):  # what has been made is not what a broker tells of at once
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name} has no leaders after {_TIMEOUT_S:.0f} s")

    def _is_led(self, name: str, partitions: int) -> bool:
        """Whether the broker tells of a topic with all its partitions, each with a leader."""
        known = self._admin.list_topics(timeout=_TIMEOUT_S).topics.get(name)
        return known is not None and sum(each.leader >= 0 for each in known.partitions.values()) == partitions

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self._admin.delete_topics([name])[name].result(_TIMEOUT_S)

    def allow_reading_only(self, name: str) -> None:
        """Let everybody read a topic, and do nothing else with it; needs a broker with an authorizer."""
        read, allow = AclOperation.READ, AclPermissionType.ALLOW
        binding = AclBinding(ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:*", "*", read, allow)
        for future in self._admin.create_acls([binding]).values():
            future.result(_TIMEOUT_S)

    def grow(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions in all."""
        self._admin.create_partitions([NewPartitions(name, partitions)])[name].result(_TIMEOUT_S)

    def delete_before(self, name: str, offsets: Mapping[int, int]) -> None:
        """Delete the records of each partition before an offset, as retention does."""
        until = [TopicPartition(name, partition, offset) for partition, offset in offsets.items()]
        for future in self._admin.delete_records(until).values():
            future.result(_TIMEOUT_S)

    def partitions(self, name: str) -> list[int]:
        """The topic's partitions."""
        return sorted(self._admin.list_topics(name, timeout=_TIMEOUT_S).topics[name].partitions)

    def ends(self, name: str) -> dict[int, tuple[int, int]]:
        """Each partition's first offset and the one after its last."""
        consumer = self._consumer()
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=_TIMEOUT_S)
                for partition in self.partitions(name)
            }
        finally:
            consumer.close()

    def produce(self, name: str, records: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Write records, each with partition, key and value, and wait until the broker has them all."""
        producer = Producer({**self._conf, "enable.idempotence": True, "linger.ms": 5})
        for partition, key, value in records:
            producer.produce(name, value, key, partition)
        self._flush(producer)

    def produce_transaction(
        self, name: str, writer: str, records: Iterable[tuple[int, bytes, bytes]], commit: bool = True
    ) -> None:
        """As `produce`, in one transaction, which is then committed or aborted."""
        producer = Producer({**self._conf, "transactional.id": writer})
        producer.init_transactions(_TIMEOUT_S)
        producer.begin_transaction()
        for partition, key, value in records:
            producer.produce(name, value, key, partition)
        self._flush(producer)
        if commit:
            producer.commit_transaction(_TIMEOUT_S)
        else:
            producer.abort_transaction(_TIMEOUT_S)

    def read(self, name: str, committed_only: bool = True) -> list[Record]:
        """Every record that a topic has, partition by partition, in the order of offsets."""
        consumer = self._consumer("read_committed" if committed_only else "read_uncommitted")
        try:
            return [
                record
                for partition, (first, end) in sorted(self.ends(name).items())
                for record in _read_partition(consumer, TopicPartition(name, partition, first), end)
            ]
        finally:
            consumer.close()

    def _consumer(self, isolation: str = "read_committed") -> Consumer:
        return Consumer(
            {
                **self._conf,
                "group.id": "spark-cec-example",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )

    def _flush(self, producer: Producer) -> None:
        left = producer.flush(_TIMEOUT_S)
        if left:
            raise TimeoutError(f"the broker has not taken {left} records in {_TIMEOUT_S:.0f} s")


def _read_partition(consumer: Consumer, start: TopicPartition, end: int) -> list[Record]:
    """The records from `start` up to `end`: offsets may have gaps, so the end is the broker's word, not a count."""
    found: list[Record] = []
    if start.offset >= end:
        return found
    consumer.assign([start])
    while (message := consumer.poll(_TIMEOUT_S)) is not None:
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                return found
            raise RuntimeError(f"{start.topic}: {error}")
        offset = message.offset()
        assert offset is not None
        found.append(Record(start.partition, offset, message.key(), message.value(), message.timestamp()[1]))
    raise TimeoutError(f"{start.topic}, partition {start.partition}: nothing more for {_TIMEOUT_S:.0f} s")
