"""Connections: who gets a place, and who makes room."""

from __future__ import annotations

import pytest

from gateway.api.http.connections import LOOKED_AT, Connections, ConnectionSlot
from gateway.budgets import BudgetBounds, Budgets, ShareHolder
from gateway.errors import BudgetExceeded, Overloaded

ALICE, BOB, ROOT = ShareHolder("alice"), ShareHolder("bob"), ShareHolder("root", is_admin=True)


class Owner:
    """A connection that remembers what it was told."""

    def __init__(self) -> None:
        self.is_idle = True
        self.was_dropped = self.has_ended = False

    def drop(self) -> None:
        self.was_dropped = True

    def end(self) -> None:
        self.has_ended = True


class Port:
    """A port with ``total`` places, a share of a quarter, and a fifth in reserve."""

    def __init__(self, total: int = 20, **more: int) -> None:
        self.connections = Connections(Budgets(BudgetBounds(0.25, 0.2, {"connections": total}))["connections"], **more)
        self.refusals: list[str] = []
        self.connections.holdings.on_refused = lambda _, reached: self.refusals.append(reached)

    def open(self, host: str = "192.0.2.1", client: ShareHolder | None = None) -> tuple[Owner, ConnectionSlot]:
        owner = Owner()
        place = self.connections.admit(owner, host)
        assert place is not None
        if client is not None:
            place.known(client)
        return owner, place

    def fill(self, count: int, *clients: ShareHolder) -> list[ConnectionSlot]:
        return [self.open(client=client)[1] for client in clients for _ in range(count)]


def test_strangers_make_room_for_each_other() -> None:
    port = Port()
    strangers = [port.open()[0] for _ in range(16)]
    assert not any(each.was_dropped for each in strangers)
    newest = [port.open()[0] for _ in range(3)]
    assert [each.was_dropped for each in strangers] == [True] * 3 + [False] * 13
    assert not any(each.was_dropped for each in newest)
    assert port.connections.holdings.held == 16
    assert port.refusals == ["dropped"] * 3


def test_those_who_wait_for_no_answer_go_first() -> None:
    port = Port()
    strangers = [port.open()[0] for _ in range(16)]
    for each in strangers[:5]:
        each.is_idle = False
    port.open()
    assert [each.was_dropped for each in strangers].index(True) == 5
    for each in strangers:
        each.is_idle = False
    port.open()
    assert strangers[0].was_dropped
    assert LOOKED_AT > 16


def test_whoever_is_known_is_not_dropped() -> None:
    port = Port()
    known = [port.open(client=ALICE)[0] for _ in range(5)]
    for _ in range(40):
        port.open()
    assert not any(each.was_dropped for each in known)
    assert port.connections.holdings.held_by(ALICE) == 5


def test_a_client_has_its_share() -> None:
    port = Port()
    port.fill(5, ALICE)
    owner, place = port.open()
    with pytest.raises(
        BudgetExceeded, match=r"budget connections: 'alice' holds 5 HTTP connections; its share is 5 of 20"
    ):
        place.known(ALICE)
    assert owner.has_ended
    place.known(BOB)
    port.connections.leave(place)
    port.connections.leave(place)
    assert (port.connections.holdings.held, port.connections.holdings.held_by(BOB)) == (5, 0)


def test_admin_gets_in_when_others_hold_all_that_they_may() -> None:
    port = Port()
    clients = [ShareHolder(name) for name in "abc"]
    port.fill(5, *clients)
    port.fill(1, ShareHolder("d"))
    assert port.connections.holdings.held == 16
    with pytest.raises(Overloaded, match="16 of 20 HTTP connections are in use"):
        port.open()[1].known(ShareHolder("e"))
    for _ in range(30):
        port.open()
    port.open(client=ROOT)
    for _ in range(30):
        port.open()
    port.open(client=ROOT)
    assert port.connections.holdings.held_by(ROOT) == 2
    assert port.connections.holdings.held <= 20


def test_a_caller_with_a_credential_takes_the_place_of_a_stranger() -> None:
    port = Port()
    strangers = [port.open()[0] for _ in range(16)]
    port.connections.holdings.configure(16, 0.5, 0.25, {})
    port.open()[1].known(ALICE)
    assert port.connections.holdings.held_by(ALICE) == 1
    assert sum(each.was_dropped for each in strangers) >= 1


def test_the_last_place_is_refused() -> None:
    port = Port()
    port.fill(5, *(ShareHolder(name, is_admin=True) for name in "abcd"))
    assert port.connections.admit(Owner(), "192.0.2.1") is None
    assert port.refusals == ["total"]


def test_one_address_and_a_proxy() -> None:
    port = Port(per_address=2)
    port.connections.is_proxy = lambda host: host == "192.0.2.9"
    for host in ("192.0.2.1", "2001:db8::1"):
        places = [port.connections.admit(Owner(), host) for _ in range(3)]
        assert [place is None for place in places] == [False, False, True]
        for place in places[:2]:
            assert place is not None
            port.connections.leave(place)
    assert port.refusals == ["share", "share"]
    assert not port.connections.open
    proxy = [port.open("192.0.2.9")[1] for _ in range(16)]
    proxy[0].known(ALICE)
    assert proxy[0].client.holder == ("proxy", "192.0.2.9"), "its callers are many"
    assert port.connections.admit(Owner(), "192.0.2.9") is None, "the reserve is not for it"
    port.open("192.0.2.1", ROOT)


def test_a_connection_that_was_dropped_counts_no_more() -> None:
    port = Port()
    owner, place = port.open()
    for _ in range(16):
        port.open()
    assert owner.was_dropped
    place.known(ALICE)
    port.connections.leave(place)
    assert port.connections.holdings.held_by(ALICE) == 0
    assert port.connections.holdings.held == 16
