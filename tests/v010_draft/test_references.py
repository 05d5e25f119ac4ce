"""Bodies that come in pieces."""

from __future__ import annotations

import pytest

from gateway.classic.assembler import AssemblyLimit
from gateway.limits import Limits
from gateway.v010_draft.fields import ReferenceTo
from gateway.v010_draft.references import HELD_OVERHEAD, REFERENCES_MAX, References, SessionFault
from gateway.v010_draft.translate import Transfer


def transfer(name: bytes = b"r", properties: bytes = b"") -> Transfer:
    return Transfer("to", 0, "", "key", properties, ReferenceTo(name))


def make(message_max: int = 100, spool: int = 1_000) -> tuple[References, AssemblyLimit]:
    held = AssemblyLimit(spool)
    return References(Limits(message_max=message_max), held), held


def test_a_transfer_may_come_before_its_body_is_whole() -> None:
    references, spool = make()
    references.open(b"r")
    references.append(b"r", b"one ")
    references.refer(5, transfer())
    references.append(b"r", b"two")
    references.refer(9, transfer())
    references.check(b"r")
    arrived = references.close(b"r")
    assert [number for number, _ in arrived.transfers] == [5, 9]
    assert (arrived.body, arrived.size, arrived.limit) == (b"one two", 7, 0)
    assert spool.held == 0


def test_a_body_over_the_limit_is_dropped_as_it_comes() -> None:
    references, spool = make(message_max=10)
    references.open(b"r")
    references.append(b"r", b"x" * 8)
    references.append(b"r", b"x" * 8)
    references.append(b"r", b"x" * 8)
    assert spool.held == 1 + HELD_OVERHEAD
    arrived = references.close(b"r")
    assert (arrived.body, arrived.size, arrived.limit) == (None, 24, 10)
    assert spool.held == 0


def test_bodies_over_the_spool_of_the_connection_are_dropped() -> None:
    references, spool = make(message_max=1_000, spool=200)
    references.open(b"r")
    references.append(b"r", b"x" * 100)
    references.append(b"r", b"x" * 100)
    assert references.close(b"r").limit == 200
    assert spool.held == 0


def test_what_waits_and_cannot_be_dropped_is_bounded() -> None:
    references, spool = make(spool=300)
    references.open(b"r")
    with pytest.raises(SessionFault) as caught:
        references.refer(1, transfer(properties=b"x" * 200))
    assert caught.value.code == 506
    with pytest.raises(SessionFault):
        references.open(b"x" * 250)
    with pytest.raises(SessionFault):  # it was not opened
        references.check(b"x" * 250)
    references.forget()
    assert spool.held == 0


def test_how_many_may_be_open() -> None:
    references, _ = make(spool=100_000)
    for number in range(REFERENCES_MAX):
        references.open(b"%d" % number)
    with pytest.raises(SessionFault) as caught:
        references.open(b"one more")
    assert caught.value.code == 506
    with pytest.raises(SessionFault) as caught:
        references.open(b"0")
    assert caught.value.code == 406


def test_what_is_not_open() -> None:
    references, _ = make()
    for call in (
        lambda: references.append(b"r", b""),
        lambda: references.close(b"r"),
        lambda: references.refer(1, transfer()),
        lambda: references.check(b"r"),
    ):
        with pytest.raises(SessionFault) as caught:
            call()
        assert caught.value.code == 404
