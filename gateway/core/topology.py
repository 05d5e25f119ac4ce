"""Queues, exchanges and bindings of a broker, and which of them were made through the gateway.

AMQP has no way to list what a broker has, and its older versions do not say how a queue was declared. So what is
declared here is kept as resources in the ledger, and fills in what the broker leaves out. The broker is right where
the two differ: a queue that is gone there is gone here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from gateway.amqp.operations import ExchangeFound
from gateway.amqp.values import Table
from gateway.core.publishing.publisher import Publisher
from gateway.errors import GatewayError, NotFound, PreconditionFailed
from gateway.ledger import Ledger, ResourceRecord
from gateway.notation.values import ValueProblem, table_from_json, text_from_json
from gateway.observing.telemetry import log
from gateway.upstreams import QueueInfo, Upstream

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"
BINDING: Final = "binding"
PAGE: Final = 500
PREDECLARED: Final = "amq."
"""Prefixes of exchanges that every broker has."""


@dataclass(frozen=True, slots=True)
class DeclarationOutcome:
    """What a declaration did."""

    created: bool
    """False: it was there already, with the same settings."""


@dataclass(frozen=True, slots=True)
class BindingPlace:
    """From an exchange to a queue, or (``destination``) to another exchange."""

    exchange: str
    queue: str | None
    destination: str | None
    routing_key: str
    arguments: Table


class Topology:
    """What may be asked and changed of a broker's queues, exchanges and bindings."""

    def __init__(
        self, ledger: Ledger, publisher: Publisher, find: Callable[[str], Upstream], changed: Callable[[str], None]
    ) -> None:
        """``changed``: called with the name of a broker where a queue was made or deleted."""
        self._ledger = ledger
        self._publisher = publisher
        self._find = find
        self._changed = changed

    # ------------------------------------------------------------------------------------------- queues

    async def declare_queue(
        self, broker: str, queue: str, *, durable: bool, auto_delete: bool, arguments: Table, spec: dict[str, Any]
    ) -> DeclarationOutcome:
        """Declare a queue. ``spec`` is the declaration as JSON, to be remembered.

        Raises:
            PreconditionFailed: it exists with other settings.
        """
        upstream = self._find(broker)
        created = False
        try:
            await upstream.query_queue(queue)
        except NotFound:
            created = True
        else:
            await self._compare(QUEUE, upstream, queue, spec)
        await upstream.declare_queue(queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
        self._publisher.know_queue(broker, queue, durable)
        await self._remember(QUEUE, broker, queue, spec)
        if created:
            self._changed(broker)
        return DeclarationOutcome(created)

    async def queue(self, broker: str, queue: str) -> tuple[QueueInfo, dict[str, Any]]:
        """A queue as the broker describes it, and as it was declared here (empty: it was not)."""
        try:
            info = await self._find(broker).query_queue(queue)
        except NotFound:
            await self._forget_queue(broker, queue)
            raise
        declared = await self._declared(QUEUE, broker, queue)
        durable = info.durable if info.durable is not None else declared.get("durable")
        self._publisher.know_queue(broker, queue, durable)
        return info, declared

    async def delete_queue(self, broker: str, queue: str, *, if_unused: bool, if_empty: bool) -> int | None:
        """Delete a queue; says how many messages went with it. Raises NotFound where there is none."""
        upstream = self._find(broker)
        await upstream.query_queue(queue)
        count = await upstream.delete_queue(queue, if_unused=if_unused, if_empty=if_empty)
        await self._forget_queue(broker, queue)
        self._changed(broker)
        return count

    async def purge_queue(self, broker: str, queue: str) -> int | None:
        """Remove all messages that are ready; says how many."""
        return await self._find(broker).purge_queue(queue)

    async def _forget_queue(self, broker: str, queue: str) -> None:
        self._publisher.know_queue(broker, queue, None)
        if await self._ledger.delete_resource(_kind(QUEUE, broker), _name(queue)):
            await self._forget_bindings(broker, "queue", queue)

    # ---------------------------------------------------------------------------------------- exchanges

    async def declare_exchange(
        self,
        broker: str,
        exchange: str,
        *,
        type: str,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Table,
        spec: dict[str, Any],
    ) -> DeclarationOutcome:
        """Declare an exchange. ``spec`` is the declaration as JSON, to be remembered.

        Raises:
            PreconditionFailed: it exists with other settings.
        """
        upstream = self._find(broker)
        created = False
        try:
            await upstream.query_exchange(exchange)
        except NotFound:
            created = True
        else:
            await self._compare(EXCHANGE, upstream, exchange, spec)
        await upstream.declare_exchange(
            exchange, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
        )
        await self._remember(EXCHANGE, broker, exchange, spec)
        return DeclarationOutcome(created)

    async def exchange(self, broker: str, exchange: str) -> tuple[ExchangeFound, dict[str, Any]]:
        """An exchange as the broker describes it, and as it was declared here (empty: it was not)."""
        try:
            found = await self._find(broker).query_exchange(exchange)
        except NotFound:
            await self._forget_exchange(broker, exchange)
            raise
        return found, await self._declared(EXCHANGE, broker, exchange)

    async def delete_exchange(self, broker: str, exchange: str, *, if_unused: bool) -> None:
        """Delete an exchange. Raises NotFound where there is none."""
        upstream = self._find(broker)
        await upstream.query_exchange(exchange)
        await upstream.delete_exchange(exchange, if_unused=if_unused)
        await self._forget_exchange(broker, exchange)

    async def _forget_exchange(self, broker: str, exchange: str) -> None:
        if await self._ledger.delete_resource(_kind(EXCHANGE, broker), _name(exchange)):
            await self._forget_bindings(broker, "exchange", exchange)
            await self._forget_bindings(broker, "destination", exchange)

    # ----------------------------------------------------------------------------------------- bindings

    async def bind(self, broker: str, place: BindingPlace, spec: dict[str, Any]) -> DeclarationOutcome:
        """Make a binding. ``spec`` is the binding as JSON, to be remembered."""
        upstream = self._find(broker)
        if place.destination is not None:
            await upstream.bind_exchange(place.destination, place.exchange, place.routing_key, place.arguments)
        else:
            await upstream.bind_queue(place.queue or "", place.exchange, place.routing_key, place.arguments)
        ends = {"exchange": _name(place.exchange), "queue": None, "destination": None}
        if place.destination is not None:
            ends["destination"] = _name(place.destination)
        else:
            ends["queue"] = _name(place.queue or "")
        return DeclarationOutcome(await self._remember(BINDING, broker, _binding_name(spec), {**ends, "binding": spec}))

    async def unbind(self, broker: str, place: BindingPlace, spec: dict[str, Any]) -> None:
        """Remove the binding with these ends, key and arguments."""
        upstream = self._find(broker)
        if place.destination is not None:
            await upstream.unbind_exchange(place.destination, place.exchange, place.routing_key, place.arguments)
        else:
            await upstream.unbind_queue(place.queue or "", place.exchange, place.routing_key, place.arguments)
        await self._ledger.delete_resource(_kind(BINDING, broker), _binding_name(spec))

    async def _forget_bindings(self, broker: str, end: str, name: str) -> None:
        """What was bound to a queue or exchange goes with it."""
        bindings = self._ledger.all_resources(_kind(BINDING, broker))
        for binding in [item.name async for item in bindings if item.spec.get(end) == _name(name)]:
            await self._ledger.delete_resource(_kind(BINDING, broker), binding)

    # ------------------------------------------------------------------------------------------ restore

    async def restore(self, broker: str, within: float) -> None:
        """Declare again what is durable and was declared here, for a broker that holds everything in memory. What it
        refuses is logged. Waits at most ``within`` seconds for the broker."""
        upstream = self._find(broker)
        if not await upstream.wait_up(within):
            return
        restored = {EXCHANGE: 0, QUEUE: 0, BINDING: 0}
        there: dict[str, set[str]] = {EXCHANGE: set(), QUEUE: set()}
        for kind, again in (
            (EXCHANGE, _exchange_again), (QUEUE, _queue_again), (BINDING, partial(_binding_again, there)),
        ):  # fmt: skip
            async for item in self._ledger.all_resources(_kind(kind, broker)):
                try:
                    name = await again(upstream, item.spec)
                except (GatewayError, ValueProblem, KeyError) as error:
                    log(
                        "topology.not_restored", logging.WARNING, broker=broker, kind=kind, name=item.name[:200],
                        reason=(str(error) or repr(error))[:500],
                    )  # fmt: skip
                    continue
                if name is not None:
                    restored[kind] += 1
                    if kind in there:
                        there[kind].add(name)
        if any(restored.values()):
            log(
                "topology.restored", broker=broker, exchanges=restored[EXCHANGE], queues=restored[QUEUE],
                bindings=restored[BINDING],
            )  # fmt: skip

    # -------------------------------------------------------------------------------------------- known

    async def known(
        self, kind: str, broker: str, cursor: str | None, limit: int
    ) -> tuple[list[ResourceRecord], str | None]:
        """A page of what was declared here of ``kind`` (QUEUE, EXCHANGE, BINDING)."""
        self._find(broker)
        return await self._ledger.list_resources(_kind(kind, broker), cursor, limit)

    async def all_queues(self, brokers: Iterable[str]) -> list[tuple[str, str]]:
        """Broker and name of every queue that was declared here."""
        return [
            (broker, text_from_json(item.spec["name"]))
            for broker in tuple(brokers)
            async for item in self._ledger.all_resources(_kind(QUEUE, broker))
        ]

    async def _remember(self, kind: str, broker: str, name: str, spec: dict[str, Any]) -> bool:
        _, created = await self._ledger.put_resource(_kind(kind, broker), _name(name), spec)
        return created

    async def _compare(self, kind: str, upstream: Upstream, name: str, spec: dict[str, Any]) -> None:
        """Refuse to declare again, with other settings, a resource that was declared here and exists, where the broker
        would say yes and leave it as it is.

        Raises:
            PreconditionFailed: naming the setting, and its values then and now.
        """
        capabilities = upstream.capabilities
        if capabilities is None or capabilities.redeclare_checked:
            return
        declared = await self._declared(kind, upstream.name, name)
        for setting, value in spec.items():
            if setting in declared and declared[setting] != value:
                then = f"{setting} {declared[setting]!r}"
                raise PreconditionFailed(406, f"{kind} {name!r} was declared with {then}, not {value!r}")

    async def _declared(self, kind: str, broker: str, name: str) -> dict[str, Any]:
        resource = await self._ledger.get_resource(_kind(kind, broker), _name(name))
        return resource.spec if resource is not None else {}


async def _exchange_again(upstream: Upstream, spec: Mapping[str, Any]) -> str | None:
    if not spec["durable"]:
        return None
    name = text_from_json(spec["name"])
    await upstream.declare_exchange(
        name, spec["type"], durable=True, auto_delete=spec["auto_delete"], internal=spec["internal"],
        arguments=table_from_json(spec["arguments"]),
    )  # fmt: skip
    return name


async def _queue_again(upstream: Upstream, spec: Mapping[str, Any]) -> str | None:
    if not spec["durable"]:
        return None
    name = text_from_json(spec["name"])
    arguments = table_from_json(spec["arguments"])
    await upstream.declare_queue(name, durable=True, auto_delete=spec["auto_delete"], arguments=arguments)
    return name


async def _binding_again(
    there: Mapping[str, Collection[str]], upstream: Upstream, spec: Mapping[str, Any]
) -> str | None:
    """None: one of its ends is not there."""
    binding = spec["binding"]
    exchange, routing_key = text_from_json(binding["exchange"]), text_from_json(binding["routing_key"])
    arguments = table_from_json(binding["arguments"])
    if not (exchange.startswith(PREDECLARED) or exchange in there[EXCHANGE]):
        return None
    if binding.get("queue") is not None:
        queue = text_from_json(binding["queue"])
        if queue not in there[QUEUE]:
            return None
        await upstream.bind_queue(queue, exchange, routing_key, arguments)
        return queue
    destination = text_from_json(binding["destination"])
    if destination not in there[EXCHANGE]:
        return None
    await upstream.bind_exchange(destination, exchange, routing_key, arguments)
    return destination


def _kind(kind: str, broker: str) -> str:
    return f"{kind}:{broker}"


def _name(name: str) -> str:
    """The name as the ledger can hold it: a text in UTF-8."""
    return name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()


def _binding_name(spec: dict[str, Any]) -> str:
    return sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:32]
