"""What a dead letter says of itself: the gateway's header, the brokers' headers, and what anybody may write there."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.values import Timestamp, Typed
from gateway.errors import FrameSyntaxError
from gateway.fidelity.deaths import CODES
from gateway.notation.dead_letters import NAME_MAX, REASON_MAX, DeadLetter
from gateway.notation.messages import received

OURS = {
    "id": "x", "reason": "bad address", "code": "rejected", "at": "2026-11-24T10:00:05.250Z", "broker": "shop",
    "queue": "orders", "exchange": "sales", "routing_key": "eu",
}  # fmt: skip
DEATH = {
    "count": Typed("int64", 1), "reason": "expired", "queue": "slow", "time": Timestamp(1_795_514_405),
    "exchange": "", "routing-keys": ["slow", "cc"],
}  # fmt: skip
OURS_SHOWN = DeadLetter(
    reason="bad address", code="rejected", exchange="sales", routing_key="eu", queue="orders",
    at="2026-11-24T10:00:05.250Z",
)  # fmt: skip
NATIVE_SHOWN = DeadLetter(
    reason="its time to live ran out", code="expired", exchange="", routing_key="slow", queue="slow",
    at="2026-11-24T10:00:05.000Z",
)  # fmt: skip


def shown(headers: dict[str, Any] | None) -> Any:
    return received("id", "x", "k", Message(b"", Properties(headers=headers))).dead_letter


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, UNSET),
        ({}, UNSET),
        ({"a": 1}, UNSET),
        ({"x-gateway": {"id": "x", "hops": "1"}}, UNSET),
        ({"x-gateway": OURS}, OURS_SHOWN),
        ({"x-death": [DEATH, {"reason": "rejected", "queue": "older"}]}, NATIVE_SHOWN),
        ({"x-death": [{"reason": "odd", "queue": "q"}]}, DeadLetter(reason="odd", code="unknown", queue="q")),
        (
            {"x-first-death-reason": "rejected", "x-first-death-queue": "q", "x-first-death-exchange": "x"},
            DeadLetter(reason="a consumer rejected it", code="rejected", exchange="x", queue="q"),
        ),
        # as earlier versions wrote it
        ({"x-gateway": {"reason": "r", "queue": "q"}}, DeadLetter(reason="r", code="unknown", queue="q")),
    ],
)  # fmt: skip
def test_what_is_shown(headers: dict[str, Any] | None, expected: Any) -> None:
    assert shown(headers) == expected


@pytest.mark.parametrize(
    ("at", "time", "expected"),
    [
        ("2026-11-24T10:00:05.250Z", 1_795_514_405, NATIVE_SHOWN),  # within one second the broker was later
        ("2026-11-24T10:00:06.250Z", 1_795_514_405, "ours"),
        ("2026-11-24T10:00:04.250Z", 1_795_514_405, NATIVE_SHOWN),
        ("no time", 1_795_514_405, NATIVE_SHOWN),
    ],
)
def test_the_later_death_counts(at: str, time: int, expected: Any) -> None:
    found = shown({"x-gateway": {**OURS, "at": at}, "x-death": [{**DEATH, "time": Timestamp(time)}]})
    assert found.code == "rejected" if expected == "ours" else found == expected


NONSENSE: list[Any] = [
    None, True, 7, -1, 1 << 63, 1.5, float("nan"), Decimal("1.5"), b"\xff\x00", "", "\udcff", "x" * 100_000, [], [7],
    [None], [[]], [{}], {}, {"a": 1}, UUID(int=1), Timestamp(1 << 62), Typed("bytes", b"\xff"), Typed("int8", 3),
    [{"reason": 7, "queue": [1], "time": "x", "routing-keys": {}}],
    [{"queue": "q", "time": True, "routing-keys": [[]]}],
    [{"queue": "q", "time": Timestamp(1 << 62), "exchange": b"\xff"}],
]  # fmt: skip


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:40])
def test_odd_types_are_data_and_no_error(value: Any) -> None:
    """Anybody may publish these headers."""
    for name in ("x-gateway", "x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange"):
        check(shown({name: value}))
        check(shown({name: value, "x-death": [DEATH]}))
    for name in OURS:
        check(shown({"x-gateway": {**OURS, name: value}}))
    for name in DEATH:
        check(shown({"x-death": [{**DEATH, name: value}]}))


def check(found: Any) -> None:
    """It is JSON of bounded length."""
    if found is UNSET:
        return
    assert found.code in CODES
    assert len(found.reason) <= REASON_MAX
    assert all(len(getattr(found, name) or "") <= NAME_MAX for name in ("exchange", "routing_key", "queue"))
    assert msgspec.json.decode(msgspec.json.encode(found), type=DeadLetter) == found


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:59", "1969-01-01T00:00:00Z",
                                "2026-11-24T10:00:05", "2026" * 50])  # fmt: skip
def test_times_that_are_none(at: str) -> None:
    assert shown({"x-gateway": {**OURS, "at": at}}).at is None


def test_octets_that_are_no_property_list_say_nothing() -> None:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("no property list")

    assert received("id", "", "", Message(b"", None, RawProperties(b"?", "rabbitmq", decode))).dead_letter is UNSET
