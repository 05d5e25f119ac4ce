"""Own queues: declared before they are used and now and then, moved without a gap, and deleted when they are empty."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from gateway.config import SubscriptionSettings
from gateway.core.sources import own_queues as module
from gateway.core.sources.own_queues import OwnQueues, queue_of
from gateway.errors import BrokerUnavailable, GatewayError, NotFound, PreconditionFailed
from gateway.runtime.clock import clock

BOUND = SubscriptionSettings(broker="fake", exchange="shop", binding_key="a")
QUEUE = "gateway.subscription.s"


class Broker:
    """One that notes what is asked of it."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.errors: dict[str, list[GatewayError]] = {}

    def _note(self, *what: Any) -> None:
        self.said.append(what)
        if errors := self.errors.get(what[0]):
            raise errors.pop(0)

    async def declare_queue(self, queue: str) -> None:
        self._note("declare", queue)

    async def bind_queue(self, queue: str, exchange: str, key: str, arguments: Any) -> None:
        self._note("bind", queue, exchange, key, arguments)

    async def unbind_queue(self, queue: str, exchange: str, key: str, arguments: Any) -> None:
        self._note("unbind", queue, exchange, key, arguments)

    async def delete_queue(self, queue: str, *, if_unused: bool, if_empty: bool) -> None:
        assert if_unused
        assert if_empty
        self._note("delete", queue)

    @property
    def verbs(self) -> list[str]:
        return [each[0] for each in self.said]


class Made:
    def __init__(self) -> None:
        self.broker, self.other = Broker(), Broker()
        self.now = 100.0
        found: Any = {"fake": self.broker, "other": self.other}
        self.queues = OwnQueues(found.__getitem__)

    async def close(self) -> None:
        await self.queues._deleting.join(5.0)
        await self.queues.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    subject = Made()
    monkeypatch.setattr(clock, "monotonic", lambda: subject.now)
    monkeypatch.setattr(module, "DELETE_EVERY", 0.0)
    return subject


def test_a_queue_has_a_name_of_its_own_or_the_one_that_is_given() -> None:
    assert queue_of("s", BOUND) == QUEUE
    assert queue_of("s", BOUND, "tap") == "gateway.tap.s"
    assert queue_of("s", structs.replace(BOUND, queue="given")) == "given"


async def test_it_is_declared_and_bound_again_only_after_a_while(made: Made) -> None:
    settings = structs.replace(BOUND, arguments={"x": 1})
    for _ in range(2):
        await made.queues.ensure("s", settings)
    assert made.broker.said == [("declare", QUEUE), ("bind", QUEUE, "shop", "a", {"x": 1})]
    made.now += module.BIND_EVERY - 0.1
    await made.queues.ensure("s", settings)
    assert len(made.broker.said) == 2
    made.now += 0.1
    await made.queues.ensure("s", BOUND)
    assert made.broker.said[3] == ("bind", QUEUE, "shop", "a", None)
    made.queues.forget("s")
    made.queues.forget("unknown")
    await made.queues.ensure("s", BOUND)
    made.queues.forget_all()
    await made.queues.ensure("s", BOUND)
    assert len(made.broker.said) == 8
    await made.queues.ensure("plain", SubscriptionSettings(broker="missing", queue="orders"))
    assert len(made.broker.said) == 8


async def test_what_could_not_be_bound_is_tried_again(made: Made) -> None:
    made.broker.errors = {"bind": [NotFound(404, "no exchange")]}
    with pytest.raises(NotFound):
        await made.queues.ensure("s", BOUND)
    await made.queues.ensure("s", BOUND)
    assert made.broker.verbs == ["declare", "bind"] * 2


async def test_no_more_are_remembered_than_documented(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    for name in ("a", "b", "a", "b"):
        await made.queues.ensure(name, BOUND)
    assert len(made.broker.said) == 4
    await made.queues.ensure("c", BOUND)
    await made.queues.ensure("c", BOUND)
    assert len(made.broker.said) == 6
    await made.queues.ensure("a", BOUND)
    assert len(made.broker.said) == 8


@pytest.mark.parametrize(
    ("heir", "said", "elsewhere"),
    [
        (None, ["unbind", "delete"], []),
        (structs.replace(BOUND, binding_key="b"), ["declare", "bind", "unbind"], []),
        (structs.replace(BOUND, exchange="other"), ["declare", "bind", "unbind"], []),
        (structs.replace(BOUND, arguments={"x": 1}), ["declare", "bind", "unbind"], []),
        (structs.replace(BOUND, prefetch=7), ["declare", "bind"], []),
        (structs.replace(BOUND, queue="given"), ["unbind", "delete"], []),
        (structs.replace(BOUND, broker="other"), ["unbind", "delete"], []),
        (SubscriptionSettings(broker="fake", queue=QUEUE), ["unbind"], []),
    ],
)
async def test_what_is_not_needed_any_more_is_undone(
    made: Made, heir: SubscriptionSettings | None, said: list[str], elsewhere: list[str]
) -> None:
    """A queue that stays has its new binding before the old one goes."""
    await made.queues.ensure("s", BOUND)
    made.broker.said.clear()
    await made.queues.abandon("s", BOUND, heir)
    await made.close()
    assert (made.broker.verbs, made.other.verbs) == (said, elsewhere)
    if "unbind" in said:
        assert ("unbind", QUEUE, "shop", "a", None) in made.broker.said


async def test_what_has_no_own_queue_leaves_nothing(made: Made) -> None:
    plain = SubscriptionSettings(broker="fake", queue="orders")
    await made.queues.abandon("s", plain, BOUND)
    await made.close()
    assert made.broker.said == []


async def test_what_cannot_be_unbound_is_left_and_said_so(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    made.broker.errors = {"unbind": [BrokerUnavailable("away")]}
    await made.queues.abandon("s", BOUND)
    await made.close()
    assert made.broker.verbs == ["unbind"]
    assert [record.getMessage() for record in caplog.records] == ["subscription.queue_left"]


@pytest.mark.parametrize(
    ("errors", "tries", "is_left"),
    [
        ([], 1, False),
        ([PreconditionFailed(406, "in use")] * 2, 3, False),
        ([PreconditionFailed(406, "in use")] * 9, 10, False),
        ([PreconditionFailed(406, "in use")] * 10, 10, True),
        ([BrokerUnavailable("away")], 1, True),
    ],
)
async def test_a_queue_in_use_is_deleted_later(
    made: Made, caplog: pytest.LogCaptureFixture, errors: list[GatewayError], tries: int, is_left: bool
) -> None:
    made.broker.errors = {"delete": list(errors)}
    await made.queues.abandon("s", BOUND)
    await made.close()
    assert made.broker.verbs == ["unbind", *["delete"] * tries]
    assert bool(caplog.records) is is_left


async def test_what_is_not_deleted_yet_is_left_at_the_end(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELETE_EVERY", 60.0)
    made.broker.errors = {"delete": [PreconditionFailed(406, "in use")]}
    await made.queues.abandon("s", BOUND)
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await made.queues.close()
    assert made.broker.verbs == ["unbind", "delete"]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "delete queue"]
