"""Messages of a replay to an endpoint: what its answers mean for each of them, and for those behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.config import EndpointSettings
from gateway.errors import EncodeError, NoSuchEndpoint, OutboundFailed, OutboundTimeout, Overloaded, ResolveFailed
from gateway.replays.items import ReplayItem
from gateway.replays.jobs import Job
from gateway.replays.places import ReplayPlace
from gateway.replays.requests import MessagesSource, ReplayRequest, ReplaySource, ReplayTarget
from gateway.replays.targets import TRIES, Hopeless, HttpTarget, Later
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.sender import SendOutcome
from gateway.webhooks.endpoint import Endpoint, EndpointState

Answer = Callable[[list[bytes]], SendOutcome]


class Wire:
    """Endpoints and a sender: what was sent, and what is answered."""

    def __init__(self, answer: Answer | None = None, **settings: Any) -> None:
        self.answer = answer or (lambda bodies: SendOutcome(status=204))
        self.settings = EndpointSettings(url="https://h.example/hook", **settings)
        self.state = EndpointState.ACTIVE
        self.keys: tuple[Any, ...] = ()
        self.sent: list[list[PushedMessage]] = []
        self.endpoints: list[Endpoint] = []

    async def get(self, name: str) -> Endpoint:
        if name != "hook":
            raise NoSuchEndpoint(f"no endpoint {name!r}")
        return Endpoint(name, self.settings, "", False, self.state, "by its owner", self.keys)

    def check_url(self, url: str) -> None:
        if "denied" in url:
            raise EncodeError("denied")

    async def send(self, endpoint: Endpoint, items: Sequence[PushedMessage], timestamp: int) -> SendOutcome:
        self.endpoints.append(endpoint)
        self.sent.append(list(items))
        return self.answer([each.message.body for each in items])

    @property
    def bodies(self) -> list[list[bytes]]:
        return [[each.message.body for each in group] for group in self.sent]

    def target(self, **target: Any) -> HttpTarget:
        request = ReplayRequest(
            source=ReplaySource(messages=MessagesSource()), target=ReplayTarget(**(target or {"endpoint": "hook"}))
        )
        gateway: Any = None
        wire: Any = self
        return HttpTarget(gateway, Job(id="r1", request=request), wire, wire)


def items(count: int) -> list[ReplayItem]:
    return [ReplayItem(f"key {number}", bytes(16), Message(b"%d" % number), None) for number in range(count)]


def fields(item: ReplayItem) -> tuple[bool, int, int | None, type[Exception] | None]:
    """What became of it."""
    return item.resent, item.tries, item.status, type(item.error) if item.error is not None else None


@pytest.mark.parametrize(
    ("form", "batch_max", "groups"),
    [
        ("json", 1, [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]),
        ("json", 2, [[b"0", b"1"], [b"2", b"3"], [b"4"]]),
        ("raw", 2, [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"]]),
    ],
)
async def test_messages_go_in_order_in_requests_of_so_many(
    form: Any, batch_max: int, groups: list[list[bytes]]
) -> None:
    wire = Wire(format=form, batch_max=batch_max, concurrency=1)
    found = items(5)
    assert await wire.target().send(found) == []
    assert wire.bodies == groups
    assert {fields(item) for item in found} == {(False, 0, 204, None)}


async def test_what_is_said_of_a_message() -> None:
    wire = Wire()
    item = ReplayItem("key", b"\x01" * 16, Message(b"x"), ReplayPlace("b", "shop", "k", "q"))
    item.named("r1", 0)
    item.tries = 2
    bare = ReplayItem("other", b"\x02" * 16, Message(b"y"), None)
    bare.is_copy = True
    assert await wire.target().send([item, bare]) == []
    ((told,), (plain,)) = wire.sent
    assert (told.id, told.subscription, told.broker, told.queue) == (item.text, "", "b", "q")
    assert (told.exchange, told.routing_key, told.attempt) == ("shop", "k", 3)
    assert (told.redelivered, told.resent) == (True, False)
    assert (plain.broker, plain.queue, plain.attempt, plain.resent) == ("", "", 1, True)


@pytest.mark.parametrize(
    ("outcome", "resent", "tries", "again"),
    [
        (SendOutcome(status=500), True, 1, True),
        (SendOutcome(status=302), True, 1, True),
        (SendOutcome(error=OutboundTimeout("no answer")), True, 1, True),
        (SendOutcome(error=ResolveFailed("no address")), False, 1, True),
        (SendOutcome(error=Overloaded("busy")), False, 0, True),
        (SendOutcome(status=400, drop=True), True, 0, False),
        (SendOutcome(error=EncodeError("cannot be written")), False, 0, False),
    ],
)
async def test_what_an_outcome_means(outcome: SendOutcome, resent: bool, tries: int, again: bool) -> None:
    wire = Wire(lambda bodies: outcome)
    found = items(1)
    assert await wire.target().send(found) == (found if again else [])
    kind = None if again else type(outcome.error or OutboundFailed(""))
    assert fields(found[0]) == (resent, tries, None, kind)


async def test_an_outcome_that_came_with_a_second_attempt_of_the_sender() -> None:
    wire = Wire(lambda bodies: SendOutcome(status=204, resent=True))
    found = items(2)
    assert await wire.target().send(found) == []
    assert {fields(item) for item in found} == {(True, 0, 204, None)}


async def test_what_was_in_doubt_stays_so() -> None:
    found = items(2)
    found[0].resent = True
    assert await Wire().target().send(found) == []
    assert [item.resent for item in found] == [True, False]
    refused = items(1)
    refused[0].resent = True
    wire = Wire(lambda bodies: SendOutcome(error=ResolveFailed("no address")))
    assert await wire.target().send(refused) == refused
    assert refused[0].resent


async def test_a_message_has_so_many_tries() -> None:
    """Those that need another one are named in their order; the rest is there."""
    wire = Wire(lambda bodies: SendOutcome(status=500 if b"1" in bodies or b"3" in bodies else 204))
    found = items(5)
    left = found
    for tries in range(1, TRIES):
        left = await wire.target().send(left)
        assert left == [found[1], found[3]]
        assert [item.tries for item in left] == [tries] * 2
    assert await wire.target().send(left) == []
    assert [fields(item)[3] for item in found] == [None, OutboundFailed, None, OutboundFailed, None]
    assert "500" in str(found[1].error)


async def test_what_cannot_be_written_is_refused_and_the_rest_of_its_request_is_there() -> None:
    wire = Wire(lambda bodies: SendOutcome(status=204, undeliverable={0: "bad", 2: "worse"}), batch_max=5)
    found = items(4)
    assert await wire.target().send(found) == []
    assert [str(item.error or "") for item in found] == ["bad", "", "worse", ""]
    assert [item.status for item in found] == [None, 204, None, 204]
    wire.answer = lambda bodies: SendOutcome(status=500, undeliverable={1: "bad"})
    found = items(3)
    assert await wire.target().send(found) == [found[0], found[2]]
    assert [item.tries for item in found] == [1, 0, 1]


async def test_the_attempts_of_a_request_are_those_of_its_oldest_message() -> None:
    """The pause that it gets without a ``Retry-After`` grows with them."""
    wire = Wire(lambda bodies: SendOutcome(status=503), batch_max=5)
    pauses = []
    for tries in range(4):
        found = items(2)
        found[1].tries = tries
        with pytest.raises(Later) as caught:
            await wire.target().send(found)
        pauses.append(caught.value.wait)
    assert pauses == [5.0, 5.0, 15.0, 30.0]


async def test_an_endpoint_that_wants_to_be_left_alone_gets_nothing_more() -> None:
    wire = Wire(lambda bodies: SendOutcome(status=429, retry_after="7"), concurrency=1)
    found = items(4)
    with pytest.raises(Later, match="429: too many requests") as caught:
        await wire.target().send(found)
    assert caught.value.wait == 7.0
    assert wire.bodies == [[b"0"]]
    assert [item.tries for item in found] == [0] * 4, "that is no attempt"
    assert [item.resent for item in found] == [True, False, False, False]


async def test_where_some_are_there_the_others_are_tried_again() -> None:
    wire = Wire(lambda bodies: SendOutcome(status=204 if bodies == [b"0"] else 503), concurrency=1)
    found = items(4)
    assert await wire.target().send(found) == found[1:]
    assert wire.bodies == [[b"0"], [b"1"]]


async def test_an_endpoint_that_is_gone_is_hopeless() -> None:
    wire = Wire(lambda bodies: SendOutcome(status=410))
    with pytest.raises(Hopeless, match="410: the endpoint is gone"):
        await wire.target().send(items(2))
    with pytest.raises(Hopeless, match="no endpoint 'other'"):
        await wire.target(endpoint="other").send(items(1))


async def test_an_endpoint_that_is_paused_is_waited_for() -> None:
    wire = Wire()
    wire.state = EndpointState.PAUSED
    with pytest.raises(Later, match="'hook' is paused: by its owner") as caught:
        await wire.target().send(items(1))
    assert caught.value.wait == 0.0
    assert wire.sent == []


async def test_a_url_is_called_as_an_endpoint_without_settings() -> None:
    wire = Wire(batch_max=5)
    target = wire.target(url="https://other.example/")
    await target.check()
    assert await target.signed() is False
    assert await target.send(items(2)) == []
    assert wire.bodies == [[b"0"], [b"1"]]
    endpoint = wire.endpoints[0]
    assert (endpoint.settings.url, endpoint.settings.signing, endpoint.read_only) == (
        "https://other.example/",
        (),
        True,
    )
    with pytest.raises(EncodeError, match="denied"):
        await wire.target(url="https://denied.example/").check()


async def test_an_endpoint_must_be_there_and_says_whether_it_signs() -> None:
    wire = Wire()
    with pytest.raises(NoSuchEndpoint):
        await wire.target(endpoint="other").check()
    await wire.target().check()
    assert await wire.target().signed() is False
    wire.keys = (SimpleNamespace(),)
    assert await wire.target().signed() is True
    assert wire.target().refuses(None) is None
