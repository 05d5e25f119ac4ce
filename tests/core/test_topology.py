"""Queues, exchanges and bindings, and which of them are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core import Gateway
from gateway.core.topology import BINDING, EXCHANGE, QUEUE, BindingPlace
from gateway.errors import NoSuchBroker, NotFound, PreconditionFailed
from gateway.observing.repeats import FIELDS
from gateway.session import Capabilities
from gateway.upstreams import UpstreamState
from tests.core.fakes import FakeUpstream
from tests.core.test_publishing import message


async def declare(gateway: Gateway, queue: str, durable: bool = True) -> bool:
    made = await gateway.topology.declare_queue(
        "fake", queue, durable=durable, auto_delete=False, arguments={}, spec={"durable": durable}
    )
    return made.created


async def known(gateway: Gateway, kind: str) -> list[str]:
    page, _ = await gateway.topology.known(kind, "fake", None, 100)
    return [item.name for item in page]


async def test_queues(gateway: Gateway, upstream: FakeUpstream) -> None:
    assert await declare(gateway, "new")
    assert not await declare(gateway, "new")
    with pytest.raises(PreconditionFailed):
        await declare(gateway, "new", durable=False)
    info, declared = await gateway.topology.queue("fake", "new")
    assert (info.message_count, declared) == (0, {"durable": True})
    assert (await gateway.topology.queue("fake", "orders"))[1] == {}
    assert await known(gateway, QUEUE) == ["new"]
    assert await gateway.topology.purge_queue("fake", "new") == 0
    assert await gateway.topology.delete_queue("fake", "new", if_unused=False, if_empty=False) == 0
    assert await known(gateway, QUEUE) == []
    with pytest.raises(NotFound):
        await gateway.topology.delete_queue("fake", "new", if_unused=False, if_empty=False)
    with pytest.raises(NoSuchBroker):
        await gateway.topology.known(QUEUE, "missing", None, 1)


async def test_a_queue_that_is_gone_is_forgotten_with_its_bindings(gateway: Gateway, upstream: FakeUpstream) -> None:
    await declare(gateway, "été")
    await upstream.declare_exchange("ex")
    place = BindingPlace("ex", "été", None, "k", {})
    assert (await gateway.topology.bind("fake", place, {"q": "été"})).created
    assert not (await gateway.topology.bind("fake", place, {"q": "été"})).created
    assert len(await known(gateway, BINDING)) == 1
    del upstream.queues["été"]
    with pytest.raises(NotFound):
        await gateway.topology.queue("fake", "été")
    assert await known(gateway, QUEUE) == []
    assert await known(gateway, BINDING) == []


async def test_exchanges_and_their_bindings(gateway: Gateway, upstream: FakeUpstream) -> None:
    async def make(type: str) -> bool:
        made = await gateway.topology.declare_exchange(
            "fake", "ex", type=type, durable=True, auto_delete=False, internal=False, arguments={}, spec={"type": type}
        )
        return made.created

    assert await make("direct")
    assert not await make("direct")
    with pytest.raises(PreconditionFailed):
        await make("fanout")
    assert (await gateway.topology.exchange("fake", "ex"))[1] == {"type": "direct"}
    await gateway.topology.bind("fake", BindingPlace("ex", "orders", None, "a", {}), {"k": "a"})
    await gateway.topology.bind("fake", BindingPlace("ex", "orders", None, "b", {}), {"k": "b"})
    await gateway.topology.unbind("fake", BindingPlace("ex", "orders", None, "b", {}), {"k": "b"})
    assert len(await known(gateway, BINDING)) == 1
    await gateway.topology.delete_exchange("fake", "ex", if_unused=False)
    assert await known(gateway, EXCHANGE) == await known(gateway, BINDING) == []
    with pytest.raises(NotFound):
        await gateway.topology.exchange("fake", "ex")


@pytest.mark.parametrize("is_checked", [True, False])
async def test_another_declaration_is_refused_where_the_broker_would_not_look(
    gateway: Gateway, upstream: FakeUpstream, is_checked: bool
) -> None:
    upstream.capabilities = Capabilities(product="Fake", redeclare_checked=is_checked)

    async def make(**spec: Any) -> None:
        await gateway.topology.declare_queue(
            "fake", "new", durable=True, auto_delete=spec["auto_delete"], arguments={}, spec=spec
        )

    await make(auto_delete=False)
    await make(auto_delete=False, arguments={})  # which an earlier release did not remember
    if is_checked:
        await make(auto_delete=True)  # the broker's to say
        return
    with pytest.raises(PreconditionFailed, match="queue 'new' was declared with auto_delete False, not True"):
        await make(auto_delete=True)
    assert (await gateway.topology.queue("fake", "new"))[1] == {"auto_delete": False, "arguments": {}}


# --------------------------------------------------------------------------------------------------------- restore


class Emptied(FakeUpstream):
    """A broker that has just started empty, and can bind exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges |= {"amq.topic": "topic"}
        self.made: list[tuple[Any, ...]] = []
        self.waited: list[float | None] = []

    async def wait_up(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return await super().wait_up(timeout)

    async def declare_exchange(self, exchange: str, type: str = "direct", **more: Any) -> None:
        self.made.append(("exchange", exchange, type, more["auto_delete"], more["internal"], more["arguments"]))
        await super().declare_exchange(exchange, type)

    async def declare_queue(self, queue: str, **more: Any) -> Any:
        self.made.append(("queue", queue, more["durable"], more["auto_delete"], more["arguments"]))
        return await super().declare_queue(queue, durable=more["durable"], arguments=more["arguments"])

    async def bind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None) -> None:
        self.made.append(("bind", queue, exchange, routing_key, arguments))

    async def bind_exchange(self, destination: str, source: str, routing_key: str = "", arguments: Any = None) -> None:
        self.made.append(("bind exchange", destination, source, routing_key, arguments))


def queue_spec(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "durable": True, "auto_delete": False, "arguments": {}} | more


def exchange_spec(name: str, **more: Any) -> dict[str, Any]:
    return queue_spec(name, type="direct", internal=False) | more


def binding_spec(exchange: str, **more: Any) -> dict[str, Any]:
    return {"binding": {"exchange": exchange, "routing_key": "k", "arguments": {}} | more}


async def test_what_was_durable_is_declared_again(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order in which one needs the other; what is refused costs only itself."""
    caplog.set_level("INFO", "gateway")
    emptied: Any = Emptied()
    gateway.brokers["fake"] = emptied
    ledger = gateway.ledger
    for kind, specs in (
        (EXCHANGE, [
            exchange_spec("bad", type=None), exchange_spec("kept", internal=True), exchange_spec("other"),
            exchange_spec("passing", durable=False),
        ]),
        (QUEUE, [queue_spec("broken", auto_delete=None) | {"name": None}, queue_spec("kept", auto_delete=True),
                 queue_spec("passing", durable=False)]),
        (BINDING, [
            binding_spec("kept", queue="kept"), binding_spec("amq.topic", queue="kept"),
            binding_spec("passing", queue="kept"), binding_spec("kept", queue="passing"),
            binding_spec("kept", destination="other"), binding_spec("kept", destination="missing"), {"binding": {}},
        ]),
    ):  # fmt: skip
        for number, spec in enumerate(specs):
            await ledger.put_resource(f"{kind}:fake", f"{kind}{number}", spec)
    declare = emptied.declare_exchange

    async def picky(exchange: str, type: str = "direct", **more: Any) -> None:
        if type is None:
            raise PreconditionFailed(406, "no such type")
        await declare(exchange, type, **more)

    monkeypatch.setattr(emptied, "declare_exchange", picky)
    await gateway.topology.restore("fake", 3.0)
    assert emptied.waited == [3.0]
    assert emptied.made == [
        ("exchange", "kept", "direct", False, True, {}),
        ("exchange", "other", "direct", False, False, {}),
        ("queue", "kept", True, True, {}),
        ("bind", "kept", "kept", "k", {}),
        ("bind", "kept", "amq.topic", "k", {}),
        ("bind exchange", "other", "kept", "k", {}),
    ]
    lines = [(each.msg, getattr(each, FIELDS)) for each in caplog.records if each.msg.startswith("topology")]
    assert [fields["kind"] for event, fields in lines if event == "topology.not_restored"] == [EXCHANGE, QUEUE, BINDING]
    (done,) = [fields for event, fields in lines if event == "topology.restored"]
    assert (done["exchanges"], done["queues"], done["bindings"]) == (2, 1, 3)


async def test_a_broker_that_does_not_come_up_is_not_restored(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway")
    emptied: Any = Emptied()
    gateway.brokers["fake"] = emptied
    await gateway.topology.restore("fake", 0.0)
    assert not [record for record in caplog.records if record.msg == "topology.restored"], "there was nothing"
    await gateway.ledger.put_resource("queue:fake", "q", queue_spec("q"))
    emptied.state = UpstreamState.DOWN
    await gateway.topology.restore("fake", 0.0)
    assert emptied.made == []


async def test_a_queue_that_comes_or_goes_is_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(gateway.topology, "_changed", told.append)
    await declare(gateway, "new")
    assert told == ["fake"]
    await declare(gateway, "new")
    assert told == ["fake"]
    await gateway.topology.delete_queue("fake", "new", if_unused=False, if_empty=False)
    assert told == ["fake", "fake"]


async def test_a_queue_is_known_as_the_broker_or_the_declaration_says(gateway: Gateway, upstream: FakeUpstream) -> None:
    def durable() -> bool:
        return gateway._publisher._is_durable("fake", "", message(key="new"))

    await declare(gateway, "new", durable=False)
    assert not durable()
    gateway._publisher.forget_queues("fake")
    await gateway.topology.queue("fake", "new")
    assert not durable(), "its version does not tell, and the declaration does"
    query = upstream.query_queue

    async def told(queue: str) -> Any:
        return replace(await query(queue), durable=True)

    upstream.query_queue = told  # type: ignore[method-assign]
    await gateway.topology.queue("fake", "new")
    assert durable()


async def test_only_bindings_of_what_goes_are_forgotten(gateway: Gateway, upstream: FakeUpstream) -> None:
    await declare(gateway, "a")
    await declare(gateway, "b")
    await upstream.declare_exchange("ex")
    for queue in ("a", "b"):
        await gateway.topology.bind("fake", BindingPlace("ex", queue, None, "k", {}), {"q": queue})
    await gateway.topology.delete_queue("fake", "a", if_unused=False, if_empty=False)
    page, _ = await gateway.topology.known(BINDING, "fake", None, 10)
    assert [item.spec["queue"] for item in page] == ["b"]
    assert page[0].spec["exchange"] == "ex"
    assert page[0].spec["destination"] is None


class Bound(Emptied):
    """One that keeps what is bound."""

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str = "", arguments: Any = None) -> None:
        self.made.append(("unbind", queue, exchange, routing_key, arguments))

    async def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Any = None
    ) -> None:
        self.made.append(("unbind exchange", destination, source, routing_key, arguments))


async def test_bindings_are_made_removed_and_forgotten(gateway: Gateway) -> None:
    """With both of their ends."""
    bound: Any = Bound()
    gateway.brokers["fake"] = bound
    spec = exchange_spec("ex")
    for name in ("ex", "to"):
        await gateway.topology.declare_exchange(
            "fake", name, type="direct", durable=True, auto_delete=False, internal=False, arguments={}, spec=spec
        )
    bound.made.clear()
    queue, exchange = BindingPlace("ex", "q", None, "k", {"x": 1}), BindingPlace("ex", None, "to", "k", {})
    await gateway.topology.bind("fake", queue, {"q": "q"})
    await gateway.topology.bind("fake", exchange, {"e": "to"})
    page, _ = await gateway.topology.known(BINDING, "fake", None, 10)
    assert sorted((item.spec["queue"] or "", item.spec["destination"] or "") for item in page) == [
        ("", "to"),
        ("q", ""),
    ]
    await gateway.topology.unbind("fake", queue, {"q": "q"})
    assert bound.made == [
        ("bind", "q", "ex", "k", {"x": 1}),
        ("bind exchange", "to", "ex", "k", {}),
        ("unbind", "q", "ex", "k", {"x": 1}),
    ]
    await gateway.topology.delete_exchange("fake", "to", if_unused=False)
    assert await known(gateway, BINDING) == []
    await gateway.topology.unbind("fake", exchange, {"e": "to"})
    assert bound.made[3:] == [("unbind exchange", "to", "ex", "k", {})]
    with pytest.raises(NotFound):
        await gateway.topology.delete_exchange("fake", "to", if_unused=False)
    del bound.exchanges["ex"]
    with pytest.raises(NotFound):
        await gateway.topology.exchange("fake", "ex")
    assert await known(gateway, EXCHANGE) == []


async def test_an_exchange_is_compared_where_the_broker_would_not_look(gateway: Gateway) -> None:
    bound: Any = Bound()
    bound.capabilities = Capabilities(product="Fake", redeclare_checked=False)
    gateway.brokers["fake"] = bound

    async def make(**spec: Any) -> None:
        await gateway.topology.declare_exchange(
            "fake", "ex", type="direct", durable=True, auto_delete=False, internal=False, arguments={}, spec=spec
        )

    await make(internal=False)
    with pytest.raises(PreconditionFailed, match="exchange 'ex' was declared with internal False, not True"):
        await make(internal=True)


async def test_nothing_is_known_of_a_queue_that_was_deleted(gateway: Gateway, upstream: FakeUpstream) -> None:
    await declare(gateway, "new", durable=False)
    await gateway.topology.delete_queue("fake", "new", if_unused=False, if_empty=False)
    assert gateway._publisher._is_durable("fake", "", message(key="new"))
