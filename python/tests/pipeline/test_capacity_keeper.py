"""Which flows get the next core: those that keep up, and those that replace tentative rows."""

from __future__ import annotations

import threading
from typing import Any

from spark_cec.pipeline.capacity_keeper import CapacityKeeper
from spark_cec.pipeline.status import FlowStatus, State


class Flow:
    """A supervisor whose flow is behind by so many batches."""

    def __init__(self, name: str) -> None:
        self.name, self.behind = name, 0

    def status(self) -> FlowStatus:
        return FlowStatus(self.name, State.RUNNING, behind=self.behind)


class Cluster:
    """Notes which flows go first."""

    def __init__(self) -> None:
        self.told = dict[str, bool]()

    def precede(self, flow: str, others: bool) -> None:
        self.told[flow] = others


def test_a_flow_that_is_behind_gives_way_unless_it_replaces_tentative_rows() -> None:
    flows, cluster, corrected = {name: Flow(name) for name in ("totals", "bills")}, Cluster(), set[str]()
    supervisors: Any = flows
    made: Any = cluster
    capacity: Any = None
    keeper = CapacityKeeper(
        "shop", made, capacity, supervisors, threading.Event(), prioritizes=True, corrects=corrected.__contains__
    )
    keeper.prioritize_caught_up_flows()
    assert cluster.told == {"totals": True, "bills": True}
    for flow in flows.values():
        flow.behind = 3
    corrected.add("totals")
    keeper.prioritize_caught_up_flows()
    assert cluster.told == {"totals": True, "bills": False}
    corrected.clear()
    keeper.prioritize_caught_up_flows()
    assert cluster.told == {"totals": False, "bills": False}
