"""Queues that belong to a subscription or a tap: declared durable and bound where it names an exchange.

They are there from the moment that the subscription is put, so that nothing is missed before its first consumer comes.
No broker says when a binding, or its exchange, is gone, so their users declare both again once in a while. The queue of
a subscription that is deleted is unbound, and deleted where it is empty; what is in it stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gateway.errors import GatewayError, RemoteError
from gateway.observing.telemetry import log
from gateway.runtime.clock import clock
from gateway.runtime.tasks import Tasks
from gateway.upstreams import Upstream

BIND_EVERY: Final = 30.0
"""How often a queue that is in use, and its binding, are declared again, in seconds."""
DELETE_TRIES: Final = 10
DELETE_EVERY: Final = 1.0
"""How often, and after how many seconds each time, it is tried to delete a queue that is still in use."""
REMEMBERED: Final = 10_000
"""Of how many own queues it is remembered that they were declared; when they are more, all are forgotten."""
SUBSCRIPTION: Final = "subscription"
"""Default for the owner of own queues."""


class QueueSourceSettings(Protocol):
    """The settings that say where messages are taken from."""

    @property
    def broker(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def exchange(self) -> str: ...
    @property
    def binding_key(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, str | int | bool]: ...


def queue_of(name: str, settings: QueueSourceSettings, kind: str = SUBSCRIPTION) -> str:
    """The queue that a subscription (or what else ``kind`` says) takes from."""
    return settings.queue or f"gateway.{kind}.{name}"


class OwnQueues:
    """The own queues of all subscriptions of a gateway, or of what else ``kind`` says."""

    def __init__(self, find: Callable[[str], Upstream], kind: str = SUBSCRIPTION) -> None:
        self._find = find
        self._kind = kind
        self._declared: dict[str, float] = {}
        self._deleting = Tasks("delete queue")

    async def ensure(self, name: str, settings: QueueSourceSettings) -> None:
        """Declare and bind the own queue of that name, if there is one and that was not done just before.

        Raises:
            NotFound: there is no such exchange.
            PreconditionFailed: the queue is there with other settings.
            BrokerUnavailable, RemoteError: the broker's no.
        """
        if not settings.exchange:
            return
        now = clock.monotonic()
        until = self._declared.get(name, 0.0)
        if until > now:
            return
        upstream = self._find(settings.broker)
        queue = self._queue(name, settings)
        await upstream.declare_queue(queue)
        await upstream.bind_queue(queue, settings.exchange, settings.binding_key, dict(settings.arguments) or None)
        if len(self._declared) >= REMEMBERED:
            self._declared.clear()
        self._declared[name] = now + BIND_EVERY

    def forget(self, name: str) -> None:
        """Its settings changed, or its queue may be gone."""
        self._declared.pop(name, None)

    def forget_all(self) -> None:
        """Brokers are others than before."""
        self._declared.clear()

    async def abandon(self, name: str, settings: QueueSourceSettings, heir: QueueSourceSettings | None = None) -> None:
        """What it belongs to goes, or gets the settings ``heir``: undo what they do not need. A queue that both use
        stays, and is bound again before it is unbound: messages for both bindings are not missed."""
        self.forget(name)
        if not settings.exchange:
            return
        queue = self._queue(name, settings)
        inherited = heir is not None and (heir.broker, self._queue(name, heir)) == (settings.broker, queue)
        try:
            if heir is not None and inherited and heir.exchange:
                await self.ensure(name, heir)
                if _binding(heir) == _binding(settings):
                    return
            upstream = self._find(settings.broker)
            await upstream.unbind_queue(
                queue, settings.exchange, settings.binding_key, dict(settings.arguments) or None
            )
        except GatewayError as error:
            self._left(name, queue, error)
            return
        if not inherited:
            self._deleting.start(self._delete(name, upstream, queue))

    async def _delete(self, name: str, upstream: Upstream, queue: str) -> None:
        """Delete a queue that is empty, once those who consume from it have noticed."""
        for tries in range(DELETE_TRIES, 0, -1):
            try:
                await upstream.delete_queue(queue, if_unused=True, if_empty=True)
                return
            except GatewayError as error:
                if tries == 1 or not isinstance(error, RemoteError):
                    self._left(name, queue, error)
                    return
            await clock.sleep(DELETE_EVERY)

    async def close(self) -> None:
        """Leave what is not deleted yet."""
        await self._deleting.close()

    def _queue(self, name: str, settings: QueueSourceSettings) -> str:
        return queue_of(name, settings, self._kind)

    def _left(self, name: str, queue: str, error: GatewayError) -> None:
        kind = self._kind
        log(f"{kind}.queue_left", logging.WARNING, None, **{kind: name}, queue=queue, reason=str(error))


def _binding(settings: QueueSourceSettings) -> object:
    return settings.exchange, settings.binding_key, settings.arguments
