"""Bounds of a fetch in bytes, of delivery limits, and of what is refused before the wire."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import Settlement
from gateway.errors import EncodeError, LeaseLost, StateError
from gateway.session import Capabilities, Confirms
from gateway.upstreams.checks import EXPIRATION_MAX, check
from gateway.upstreams.client_limits import CLIENT_LIMITS, client_limits
from gateway.upstreams.consuming import delivery_limits
from gateway.upstreams.consuming.delivery_limits import DeliveryLimits
from gateway.upstreams.consuming.fetched import Fetched, release, size_of


class Came:
    """A delivery of some size."""

    def __init__(self, size: int, fault: Exception | None = None) -> None:
        self.message = Message(bytes(size))
        self.fault = fault
        self.settled: list[Settlement] = []

    def settle(self, settlement: Settlement) -> None:
        if self.fault is not None:
            raise self.fault
        self.settled.append(settlement)


def add(fetched: Fetched, *sizes: int) -> list[Came]:
    found: list[Any] = [Came(size) for size in sizes]
    for each in found:
        fetched.add(each)
    return found


def test_a_fetch_ends_with_the_message_that_reaches_its_bound() -> None:
    fetched = Fetched(100, 30, 1_000)
    assert fetched.fits == 3
    came = add(fetched, 30, 69)
    assert (fetched.size, fetched.fits) == (99, 0)
    came += add(fetched, 1, 1)
    assert fetched.size == 100
    assert [each.settled for each in came] == [[], [], [], [Settlement.RELEASE]]
    assert [id(each) for each in fetched.deliveries] == [id(each) for each in came[:3]]


def test_one_message_goes_however_large_it_is() -> None:
    fetched = Fetched(10, None, 1_000)
    assert fetched.fits == 1
    came = add(fetched, 500, 1)
    assert (fetched.fits, [each.settled for each in came]) == (0, [[], [Settlement.RELEASE]])
    for expected in (0, 1):
        small = Fetched(10, expected, 1_000)
        assert small.fits == 10
        add(small, 0)
        assert small.fits == 10
    empty = Fetched(0, 0, 1_000)
    assert empty.fits == 1
    add(empty, 0)
    assert empty.fits == 0


def test_what_comes_beyond_the_bound_is_given_back_when_that_is_asked_for() -> None:
    fetched = Fetched(10, 5, 1_000)
    fetched.holds_surplus = True
    came = add(fetched, 10, 7)
    assert came[1].settled == []
    fetched.release_surplus()
    assert came[1].settled == [Settlement.RELEASE]
    (late,) = add(fetched, 7)
    assert late.settled == [Settlement.RELEASE], "from then on at once"
    fetched.release_surplus()
    assert [each.settled for each in (*came, late)] == [[], [Settlement.RELEASE], [Settlement.RELEASE]]


def test_what_is_expected_of_the_next_messages() -> None:
    """As much as the largest of those that came, what went back included; less of it step by step."""
    fetched = Fetched(10_000, None, 1_000)
    fetched.learn()
    assert fetched.expected == 1_000, "nothing came"
    add(fetched, 100, 40)
    fetched.learn()
    assert fetched.expected == 100, "that was only a guess"
    add(fetched, 40)
    fetched.learn()
    assert fetched.expected == 75
    fetched.learn()
    assert fetched.expected == 75
    add(fetched, 0)
    fetched.learn()
    assert fetched.expected == 56
    add(fetched, 400)
    fetched.learn()
    assert fetched.expected == 400
    known = Fetched(10_000, 100, 1_000)
    add(known, 0)
    known.learn()
    assert known.expected == 75
    unknown = Fetched(10_000, None, 1_000)
    add(unknown, 0)
    unknown.learn()
    assert unknown.expected == 0


def test_properties_count() -> None:
    def decode(octets: bytes) -> Properties:
        return Properties()

    raw: Any = SimpleNamespace(message=Message(b"123", None, RawProperties(b"12345", "x", decode)))
    plain: Any = Came(3)
    assert (size_of(raw), size_of(plain)) == (8, 3)


def test_what_is_gone_keeps_nothing_else_from_going_back() -> None:
    came: list[Any] = [Came(1, LeaseLost("gone")), Came(1, StateError("settled before")), Came(1)]
    release(came)
    assert came[2].settled == [Settlement.RELEASE]


@pytest.mark.parametrize(
    ("declared", "smallest", "limit"),
    [(None, 0, 0), (None, 8, 8), (0, 8, 0), (1, 8, 1), (8, 0, 8), (-1, 8, 8), (-1, 0, 0), ("5", 8, 8), (True, 8, 8)],
)
def test_the_limit_of_a_queue(declared: object, smallest: int, limit: int) -> None:
    arguments = {} if declared is None else {delivery_limits.LIMIT_ARGUMENT: declared}
    topology: Any = SimpleNamespace(declared=lambda queue: arguments)
    assert DeliveryLimits(smallest, topology).of("q") == limit


def test_queues_that_dead_letter_natively_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_limits, "REMEMBERED", 2)
    topology: Any = SimpleNamespace(declared=lambda queue: {})
    limits = DeliveryLimits(8, topology)
    for name in ("a", "b", "c"):
        limits.state_native(name, native=True)
    assert [limits.of(name) for name in ("a", "b", "c")] == [0, 0, 8]
    limits.state_native("a", native=False)
    limits.state_native("c", native=True)
    assert [limits.of(name) for name in ("a", "b", "c")] == [8, 0, 0]


@pytest.mark.parametrize(
    ("properties", "capabilities", "word"),
    [
        ({"expiration": str(EXPIRATION_MAX)}, {}, ""),
        ({"expiration": str(EXPIRATION_MAX + 1)}, {}, "expiration"),
        ({"expiration": str(EXPIRATION_MAX + 1)}, {"confirms": Confirms.COMPLETION}, ""),
        ({"expiration": "٣"}, {}, "expiration"),
        ({"expiration": "soon"}, {}, "expiration"),
        ({"user_id": "ann"}, {}, ""),
        ({"user_id": b"ann"}, {}, ""),
        ({"user_id": "bob"}, {}, "user_id"),
        ({"user_id": "bob"}, {"checks_user_id": False}, ""),
        ({"headers": {"BCC": ["a", "b"]}}, {"routes_copies": True}, ""),
        ({"headers": {"BCC": ["a", 1]}}, {"routes_copies": True}, "BCC"),
        ({"headers": {"BCC": ("a", "b")}}, {"routes_copies": True}, "BCC"),
        ({"headers": {"other": 1}}, {"routes_copies": True}, ""),
    ],
)
def test_what_is_refused_before_the_wire(properties: dict[str, Any], capabilities: dict[str, Any], word: str) -> None:
    about = Capabilities(**{"confirms": Confirms.NATIVE, "checks_user_id": True, **capabilities})
    if word:
        with pytest.raises(EncodeError, match=word):
            check(Properties(**properties), about, "ann", "b")
    else:
        check(Properties(**properties), about, "ann", "b")


def test_limits_of_a_release() -> None:
    line = CLIENT_LIMITS[-1]
    before = f"{line.since[0]}.{line.since[1] - 1}.9"
    first = f"{line.since[0]}.{line.since[1]}.0"
    assert line not in client_limits(line.product, before)
    assert line in client_limits(line.product, first)
    assert client_limits("Other", first) == ()
    assert client_limits(line.product, "next") == ()
