"""Queues, exchanges and bindings, and which of them are known."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core import Gateway
from gateway.core.topology import BINDING, EXCHANGE, QUEUE, BindingPlace
from gateway.errors import NoSuchBroker, NotFound, PreconditionFailed
from gateway.session import Capabilities
from tests.core.fakes import FakeUpstream


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
