"""What a client has declared that an upstream may forget: kept, so that it can be declared again.

A durable queue or exchange outlives its broker's restart. Exclusive and transient ones do not, and auto-deleted ones go
with their last consumer; all of them are declared again when the upstream connection was lost, with their bindings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from gateway.amqp.operations import (
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Request,
    UnbindExchange,
    UnbindQueue,
)

KEPT_MAX: Final = 65_536
"""Most declarations and bindings that are kept of one client; further ones are not declared again."""


class Topology:
    """What one client has declared."""

    __slots__ = ("_bindings", "exchanges", "queues")

    def __init__(self) -> None:
        self.exchanges: dict[str, DeclareExchange] = {}
        self.queues: dict[str, DeclareQueue] = {}
        self._bindings: dict[tuple[Any, ...], BindQueue | BindExchange] = {}

    def __len__(self) -> int:
        return len(self.exchanges) + len(self.queues) + len(self._bindings)

    def note(self, request: Request) -> None:
        """A request was carried out, as it was sent upstream."""
        handle = _NOTE.get(type(request))
        if handle is not None:
            handle(self, request)

    def requests(self) -> Iterator[Request]:
        """What brings all of it back, in order; each is a copy."""
        for kept in (self.exchanges, self.queues, self._bindings):
            for request in list(kept.values()):
                yield replace(request, serial=0)

    def forget_queue(self, name: str) -> None:
        """The queue is gone, and its bindings with it."""
        if self.queues.pop(name, None) is not None:
            for key in [key for key in self._bindings if key[:2] == ("queue", name)]:
                del self._bindings[key]

    def _exchange(self, request: DeclareExchange) -> None:
        if not request.passive and (request.auto_delete or not request.durable) and len(self) < KEPT_MAX:
            self.exchanges[request.exchange] = request

    def _queue(self, request: DeclareQueue) -> None:
        lasts = request.durable and not request.exclusive and not request.auto_delete
        if not request.passive and not lasts and len(self) < KEPT_MAX:
            self.queues[request.queue] = request

    def _deleted_exchange(self, request: DeleteExchange) -> None:
        if self.exchanges.pop(request.exchange, None) is not None:
            for key in [key for key in self._bindings if request.exchange in (key[2], key[1])]:
                del self._bindings[key]

    def _bind(self, request: BindQueue) -> None:
        if (request.queue in self.queues or request.exchange in self.exchanges) and len(self) < KEPT_MAX:
            self._bindings[_queue_key(request)] = request

    def _bind_exchange(self, request: BindExchange) -> None:
        if {request.source, request.destination} & self.exchanges.keys() and len(self) < KEPT_MAX:
            self._bindings[_exchange_key(request)] = request

    def _unbind(self, request: UnbindQueue) -> None:
        self._bindings.pop(_queue_key(request), None)

    def _unbind_exchange(self, request: UnbindExchange) -> None:
        self._bindings.pop(_exchange_key(request), None)


def _queue_key(request: BindQueue | UnbindQueue) -> tuple[Any, ...]:
    return "queue", request.queue, request.exchange, request.routing_key, repr(request.arguments)


def _exchange_key(request: BindExchange | UnbindExchange) -> tuple[Any, ...]:
    return "exchange", request.destination, request.source, request.routing_key, repr(request.arguments)


_NOTE: Final[dict[type[Request], Any]] = {
    DeclareExchange: Topology._exchange,
    DeclareQueue: Topology._queue,
    DeleteExchange: Topology._deleted_exchange,
    DeleteQueue: lambda topology, request: topology.forget_queue(request.queue),
    BindQueue: Topology._bind,
    BindExchange: Topology._bind_exchange,
    UnbindQueue: Topology._unbind,
    UnbindExchange: Topology._unbind_exchange,
}
