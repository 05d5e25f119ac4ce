"""Exchanges: how a routing key or headers choose destinations (0-9-1 section 3.1.3).

An exchange knows its bindings and, beside them, an index that answers "where does this key lead" without a walk
over all of them: a dict (direct), one set (fanout), a trie (topic), a list (headers). A destination, queue or
exchange, is counted in the index, since it may be bound by several bindings that mean the same; it is found once.

Bindings with a JMS selector stand outside the index, in a list, and are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol

from gateway.broker.arguments import ExchangeArguments, plain, weight
from gateway.broker.refusals import refusal
from gateway.message import SMALL, Message
from gateway.selectors import Selector
from gateway.topics import TopicTrie
from gateway.values import Table, Typed, Value


class Destination(Protocol):
    """What a binding leads to: a queue or an exchange."""

    name: str
    is_exchange: bool
    bindings_to: dict[Binding, None]
    """The bindings that lead here, to be removed with it."""


def frozen(value: Value) -> Any:
    """A hashable stand-in for a value, equal for equal values of the same type."""
    if isinstance(value, dict):
        return tuple((key, frozen(item)) for key, item in sorted(value.items()))
    if isinstance(value, list):
        return ("array", *map(frozen, value))
    if type(value) is Typed:
        return (value.type, frozen(value.value))
    return (type(value), value)


class Binding:
    """One binding. Equal are those with the same ends, key and arguments."""

    __slots__ = ("_key", "arguments", "destination", "routing_key", "selector", "source", "weight")

    def __init__(
        self,
        source: Exchange,
        destination: Destination,
        routing_key: str,
        arguments: Table,
        selector: Selector | None = None,
    ) -> None:
        self.source = source
        self.destination = destination
        self.routing_key = routing_key
        self.arguments = arguments
        self.selector = selector
        self.weight = weight(routing_key) + 2 * weight(arguments)
        """What its key and arguments take in memory, roughly; the arguments also as ``frozen``."""
        self._key = (source.name, destination.is_exchange, destination.name, routing_key, frozen(arguments))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Exchange:
    """Base of all exchanges; a subclass is its index."""

    type: ClassVar[str]
    is_exchange = True

    def __init__(
        self,
        name: str,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: ExchangeArguments | None = None,
        table: Table | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments = arguments if arguments is not None else ExchangeArguments()
        self.table = table if table is not None else {}
        self.bindings: dict[Binding, None] = {}
        """The bindings that start here."""
        self.bindings_to: dict[Binding, None] = {}
        self._selective: list[Binding] = []
        self._exchanges = 0

    @property
    def tried(self) -> int:
        """How many of its bindings every message must be compared with."""
        return len(self._selective)

    def tries(self, binding: Binding) -> bool:
        """Whether a binding would be one of those."""
        return binding.selector is not None

    @property
    def plain(self) -> bool:
        """A match of this exchange is a list of queues and nothing else."""
        return not self._exchanges

    def check_binding(self, routing_key: str, arguments: Table) -> None:
        """Raise 406 for a binding that this type of exchange cannot understand."""

    def add(self, binding: Binding) -> None:
        """Add a binding; an equal one is not there."""
        self.bindings[binding] = None
        binding.destination.bindings_to[binding] = None
        self._exchanges += binding.destination.is_exchange
        if binding.selector is not None:
            self._selective.append(binding)
        else:
            self._index(binding)

    def remove(self, binding: Binding) -> bool:
        """Remove the binding equal to this one; False if there is none."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        del binding.destination.bindings_to[binding]
        self._exchanges -= binding.destination.is_exchange
        if binding in self._selective:
            self._selective.remove(binding)
        else:
            self._unindex(binding)
        return True

    def match(self, routing_key: str, message: Message) -> Iterable[Destination]:
        """The destinations that a message goes to from here, each once."""
        found = self._find(routing_key, message)
        if not self._selective:
            return found
        together = dict.fromkeys(found)
        for binding in self._selective:
            assert binding.selector is not None
            if self._leads(binding, routing_key, message) and binding.selector.matches(message.properties):
                together[binding.destination] = None
        message.forget(SMALL)
        return together

    def _index(self, binding: Binding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: Binding) -> None:
        raise NotImplementedError

    def _find(self, routing_key: str, message: Message) -> Iterable[Destination]:
        raise NotImplementedError

    def _leads(self, binding: Binding, routing_key: str, message: Message) -> bool:
        raise NotImplementedError


def _count(targets: dict[Destination, int], target: Destination) -> None:
    targets[target] = targets.get(target, 0) + 1


def _uncount(targets: dict[Destination, int], target: Destination) -> None:
    if targets[target] > 1:
        targets[target] -= 1
    else:
        del targets[target]


class DirectExchange(Exchange):
    """The routing key is the binding's key."""

    type = "direct"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._routes: dict[str, dict[Destination, int]] = {}

    def _index(self, binding: Binding) -> None:
        _count(self._routes.setdefault(binding.routing_key, {}), binding.destination)

    def _unindex(self, binding: Binding) -> None:
        targets = self._routes[binding.routing_key]
        _uncount(targets, binding.destination)
        if not targets:
            del self._routes[binding.routing_key]

    def _find(self, routing_key: str, message: Message) -> Iterable[Destination]:
        return self._routes.get(routing_key, ())

    def _leads(self, binding: Binding, routing_key: str, message: Message) -> bool:
        return binding.routing_key == routing_key


class FanoutExchange(Exchange):
    """To all that is bound."""

    type = "fanout"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._targets: dict[Destination, int] = {}

    def _index(self, binding: Binding) -> None:
        _count(self._targets, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        _uncount(self._targets, binding.destination)

    def _find(self, routing_key: str, message: Message) -> Iterable[Destination]:
        return self._targets

    def _leads(self, binding: Binding, routing_key: str, message: Message) -> bool:
        return True


class TopicExchange(Exchange):
    """The binding's key is a pattern of words."""

    type = "topic"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._trie: TopicTrie[Destination] = TopicTrie()

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding.destination)

    def _find(self, routing_key: str, message: Message) -> Iterable[Destination]:
        return self._trie.match(routing_key)

    def _leads(self, binding: Binding, routing_key: str, message: Message) -> bool:
        trie: TopicTrie[Destination] = TopicTrie()
        trie.add(binding.routing_key, binding.destination)
        return bool(trie.match(routing_key))


X_MATCH: Mapping[str, tuple[Callable[[Iterable[bool]], bool], bool]] = {
    "all": (all, False),
    "any": (any, False),
    "all-with-x": (all, True),
    "any-with-x": (any, True),
}
"""``x-match`` -> how the headers' answers add up, and whether headers that begin with ``x-`` count."""


class HeadersExchange(Exchange):
    """The binding's arguments are compared with the message's headers (0-9-1 section 3.1.3.4).

    A void argument asks only that the header is there. Integers are compared by value whatever their width, since
    a message may come from a client that codes them in another width than the one that bound.
    """

    type = "headers"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._bindings: dict[Binding, tuple[Callable[[Iterable[bool]], bool], dict[str, Any]]] = {}

    @property
    def tried(self) -> int:
        return len(self.bindings)

    def tries(self, binding: Binding) -> bool:
        return True

    def check_binding(self, routing_key: str, arguments: Table) -> None:
        mode = plain(arguments.get("x-match", "all"))
        if mode not in X_MATCH:
            raise refusal(406, f"Invalid x-match field value {mode!r}; expected one of {', '.join(X_MATCH)}")

    def _index(self, binding: Binding) -> None:
        self._bindings[binding] = _criteria(binding)

    def _unindex(self, binding: Binding) -> None:
        del self._bindings[binding]

    def _find(self, routing_key: str, message: Message) -> Iterable[Destination]:
        headers = message.properties.headers or {}
        message.forget(SMALL)
        return dict.fromkeys(
            binding.destination for binding, criteria in self._bindings.items() if _meets(headers, *criteria)
        )

    def _leads(self, binding: Binding, routing_key: str, message: Message) -> bool:
        return _meets(message.properties.headers or {}, *_criteria(binding))


def _criteria(binding: Binding) -> tuple[Callable[[Iterable[bool]], bool], dict[str, Any]]:
    combine, with_x = X_MATCH[plain(binding.arguments.get("x-match", "all"))]
    return combine, {
        name: None if value is None else frozen(plain(value))
        for name, value in binding.arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
    }


def _meets(headers: Table, combine: Callable[[Iterable[bool]], bool], criteria: dict[str, Any]) -> bool:
    return combine(
        name in headers and (wanted is None or frozen(plain(headers[name])) == wanted)
        for name, wanted in criteria.items()
    )


EXCHANGE_TYPES: Mapping[str, type[Exchange]] = {
    kind.type: kind for kind in (DirectExchange, FanoutExchange, TopicExchange, HeadersExchange)
}
"""Types of exchange, by the name used in exchange.declare."""

PREDECLARED: Mapping[str, type[Exchange]] = {
    "amq.direct": DirectExchange,
    "amq.fanout": FanoutExchange,
    "amq.topic": TopicExchange,
    "amq.headers": HeadersExchange,
    "amq.match": HeadersExchange,
}
"""Exchanges that are always there."""
