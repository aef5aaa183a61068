"""The flows upstream of one for which too much waits are held, and let go, whatever fails meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from spark_cec.availability.keep import LEAST_S, Unread
from spark_cec.pipeline import block_keeper
from spark_cec.pipeline.block_keeper import BlockKeeper
from spark_cec.pipeline.graph import Graph, Node
from spark_cec.pipeline.status import FlowStatus, HeldFor, State

KEEP = 1_000


class Flow:
    """Stands for a supervisor. `unread`: what its query has measured; None if it has not looked."""

    def __init__(self, name: str, calls: list[tuple[str, str, str]]) -> None:
        self.name, self.calls, self.state = name, calls, State.RUNNING
        self.unread: tuple[Unread, ...] | None = None
        self.holders: set[str] = set()

    def running_query(self) -> Flow | None:
        return self if self.state is State.RUNNING and not self.holders else None

    def status(self) -> FlowStatus:
        return FlowStatus(self.name, State.WAITING if self.holders else self.state)

    @property
    def is_over(self) -> bool:
        return self.state.is_over

    def hold(self, by: str) -> None:
        self.holders.add(by)
        self.calls.append(("hold", self.name, by))

    def let_go(self, by: str) -> None:
        self.holders.discard(by)
        self.calls.append(("let go", self.name, by))


class Shop:
    """raw -> web; web and app -> totals; web and tel -> bills. Both may keep 1,000 bytes."""

    def __init__(self) -> None:
        self.nodes = {
            "raw": Node("raw"), "web": Node("web", ("raw",)), "app": Node("app"), "tel": Node("tel"),
            "totals": Node("totals", ("web", "app")), "bills": Node("bills", ("web", "tel")),
        }  # fmt: skip
        self.calls: list[tuple[str, str, str]] = []
        self.flows = {name: Flow(name, self.calls) for name in self.nodes}
        self.now, self.changes = 0.0, 0
        self.keeper = self.start()

    def start(self) -> BlockKeeper:
        """The keeper of a driver that starts."""
        supervisors: Any = self.flows
        keeps = {"totals": KEEP, "bills": KEEP, "elsewhere": KEEP}
        return BlockKeeper(Graph("shop", self.nodes), keeps, supervisors, self._note, lambda: self.now)

    def _note(self) -> None:
        self.changes += 1

    def look(self) -> dict[str, set[str]]:
        """Which flows are held after a look, later than flows are held at least."""
        self.now += LEAST_S
        self.keeper.look()
        return {name: each.holders for name, each in self.flows.items() if each.holders}


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(block_keeper, "read_unread", lambda query: query.unread)
    return Shop()


def waits(size: int, held: str = "web", away: str = "app") -> tuple[Unread, ...]:
    return Unread(away), Unread(held, 0, size)


TOTALS, BILLS = {"keep of totals"}, {"keep of bills"}


def test_what_waits_is_held_from_its_end_to_its_source_and_let_go_the_other_way(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.flows["totals"].unread = waits(KEEP)
    assert not shop.look() and not shop.calls
    shop.flows["totals"].unread = waits(KEEP + 1)
    assert shop.look() == {"raw": TOTALS, "web": TOTALS} and shop.changes == 1
    assert shop.keeper.held_for("web") == (HeldFor("totals", KEEP + 1),) and not shop.keeper.held_for("app")
    assert "pipeline shop holds flow web: 1,001 bytes wait for totals" in caplog.text
    shop.flows["totals"].unread = waits(KEEP - 150)
    assert shop.look() == {"raw": TOTALS, "web": TOTALS} and shop.changes == 1
    shop.flows["totals"].unread = waits(KEEP - 250)
    assert not shop.look() and not shop.keeper.held_for("web")
    assert [each[:2] for each in shop.calls] == [
        ("hold", "web"), ("hold", "raw"), ("let go", "raw"), ("let go", "web"),
    ]  # fmt: skip


def test_a_flow_is_held_until_nobody_holds_it(shop: Shop) -> None:
    shop.flows["totals"].unread, shop.flows["bills"].unread = waits(KEEP + 1), waits(KEEP + 2, away="tel")
    assert shop.look()["web"] == TOTALS | BILLS
    assert shop.keeper.held_for("web") == (HeldFor("bills", KEEP + 2), HeldFor("totals", KEEP + 1))
    shop.flows["totals"].unread = waits(0)
    assert shop.look() == {"raw": BILLS, "web": BILLS}
    shop.flows["bills"].unread = waits(0)
    assert not shop.look()


def test_a_flow_that_is_over_neither_holds_nor_is_held(shop: Shop) -> None:
    """Its neighbours go on, as after any failure."""
    shop.flows["totals"].unread = waits(KEEP + 1)
    shop.flows["raw"].state = State.ENDED
    assert shop.look() == {"web": TOTALS}
    shop.flows["totals"].state = State.FAILED
    assert not shop.look()
    shop.flows["bills"].unread, shop.flows["web"].state = waits(KEEP + 1, away="tel"), State.FAILED
    assert not shop.look() and not shop.keeper.held_for("web")


def test_a_flow_that_starts_again_holds_what_it_held(shop: Shop) -> None:
    shop.flows["totals"].unread = waits(KEEP + 1)
    shop.look()
    for state, unread in ((State.RESTARTING, None), (State.STARTING, None), (State.RUNNING, None)):
        shop.flows["totals"].state, shop.flows["totals"].unread = state, unread
        assert shop.look() == {"raw": TOTALS, "web": TOTALS}


def test_a_flow_that_is_held_itself_holds_nobody(shop: Shop) -> None:
    """It waits for executors, for example, and those come back flow by flow."""
    shop.flows["totals"].unread = waits(KEEP + 1)
    shop.look()
    shop.flows["totals"].hold("")
    assert shop.look() == {"totals": {""}}
    shop.flows["totals"].let_go("")
    assert shop.look() == {"raw": TOTALS, "web": TOTALS}


def test_a_driver_that_starts_again_holds_at_the_first_look(shop: Shop) -> None:
    shop.flows["totals"].unread = waits(KEEP + 1)
    shop.look()
    for flow in shop.flows.values():
        flow.holders.clear()
    shop.flows["totals"].unread = None
    shop.keeper = shop.start()
    assert not shop.look()
    shop.flows["totals"].unread = waits(KEEP + 100)
    assert shop.look() == {"raw": TOTALS, "web": TOTALS}


def test_a_look_that_fails_is_no_end(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.flows["totals"].unread = waits(KEEP + 1)
    looked: list[str] = []

    def fail(_: Any) -> None:
        looked.append("")
        if len(looked) > 1:
            shop.keeper.end()
        raise OSError("gone")

    monkeypatch.setattr(block_keeper, "read_unread", fail)
    monkeypatch.setattr(block_keeper, "LOOK_EVERY_S", 0.0)
    shop.keeper.run()
    assert len(looked) == 2 and "pipeline shop does not know what waits" in caplog.text
