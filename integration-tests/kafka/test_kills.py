"""A driver with three queries on Kafka, killed with SIGKILL; every row is compared with pandas over the whole topic."""

from __future__ import annotations

from pathlib import Path

from cec_it.driver import CEC, FOREACH
from cec_it.kafka_driver import CEC_SINK, KAFKA, KafkaQuery
from cec_it.kafka_kills import Compared, Supervisor, compare, draw
from cec_it.kafka_totals import OPENINGS_ONLY
from testbed.broker import Broker

SEED = 11
CONF = {CEC + key: value for key, value in OPENINGS_ONLY.items()}


def test_killed_queries_are_exact(broker: Broker, tmp_path: Path) -> None:
    queries, kills = draw(SEED, 2, changes=("partitions", "limit"))
    history = Supervisor(broker, tmp_path, SEED, rows=120, conf=CONF).run(queries, kills)
    assert not history.failed, f"{kills}: {history.failed}"
    assert history.exact, f"{kills}: {history.compared}"
    assert max(history.replayed()) >= 2, f"{kills}: {history.replayed()}"
    assert {report["digest_ok"] for report in history.recoveries} == {True}


def test_every_kind_of_fault_is_found() -> None:
    query = KafkaQuery("windows", CEC_SINK)
    rows = [(0, 1, 5, 50, 9), (0, 2, 5, 50, 9), (20, 1, 5, 50, 9)]
    assert compare(query, rows, rows) == Compared(query.name, 3, 0, 0, 0)
    assert compare(query, rows, rows[1:]) == Compared(query.name, 3, 1, 0, 0)
    assert compare(query, rows, [*rows, rows[0]]) == Compared(query.name, 3, 0, 1, 0)
    assert compare(query, rows, [*rows[1:], (0, 1, 6, 50, 9)]) == Compared(query.name, 3, 0, 0, 1)
    assert compare(query, rows, [*rows, (40, 1, 5, 50, 9)]) == Compared(query.name, 3, 0, 0, 1)
    assert not compare(query, [], []).exact


def test_spark_s_kafka_sink_may_repeat_rows_but_not_change_them() -> None:
    query = KafkaQuery("distinct", KAFKA)
    assert compare(query, [(1, 2, 3)], [(1, 2, 3)] * 3) == Compared(query.name, 1, 0, 0, 0, repeated=2)
    assert compare(query, [(1, 2, 3)], [(1, 2, 3), (1, 2, 4)]) == Compared(query.name, 1, 0, 1, 1)
    assert compare(KafkaQuery("distinct", FOREACH), [(1, 2, 3)], [(1, 2, 3)] * 3).duplicate == 2
