"""Exchanges: how a routing key or headers choose destinations (0-9-1 section 3.1.3).

An exchange knows its bindings and, beside them, an index that answers "where does this key lead" without a walk
over all of them: a dict (direct), one set (fanout), a trie (topic), a list (headers). A destination, queue or
exchange, is counted in the index, since it may be bound by several bindings that mean the same; it is found once.

Bindings with a JMS selector stand outside the index, and are tried one by one.

What a match may cost is bounded: it takes its :class:`~gateway.amqp.steps.Steps` from the publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

from gateway.amqp.message import SMALL, Message
from gateway.amqp.selectors import Selector
from gateway.amqp.steps import Steps
from gateway.amqp.topics import TopicTrie
from gateway.amqp.values import Table, Typed, Value
from gateway.broker.arguments import SELECTOR, ExchangeArguments, plain, weight
from gateway.broker.declared import DeclaredByUser
from gateway.broker.refusals import refusal


class Destination(Protocol):
    """What a binding leads to: a queue or an exchange."""

    name: str
    is_exchange: bool
    gone: bool
    """It was deleted; bindings that are still to be removed lead nowhere."""
    bindings_to: dict[Binding, None]
    """The bindings that lead here, to be removed with it."""


NODE_WEIGHT = 320
"""What a word of a topic pattern takes in memory that no other pattern shares, in octets, roughly."""
FREEZE_STEPS = 8
"""Steps that it takes to freeze one element."""


def frozen(value: Value, steps: Steps | None = None) -> Any:
    """A hashable stand-in for a value, equal for equal values of the same type. ``steps``: what that may cost."""
    if isinstance(value, dict):
        if steps is not None:
            steps.spend(FREEZE_STEPS * len(value))
        return tuple((key, frozen(item, steps)) for key, item in sorted(value.items()))
    if isinstance(value, list):
        if steps is not None:
            steps.spend(FREEZE_STEPS * len(value))
        return ("array", *(frozen(item, steps) for item in value))
    if type(value) is Typed:
        return (value.type, frozen(value.value, steps))
    return (type(value), value)


class FrozenHeaders:
    """The headers of one message, for many comparisons: each value is frozen once."""

    __slots__ = ("_frozen", "_headers", "steps")

    def __init__(self, message: Message, steps: Steps) -> None:
        self._headers = message.properties.headers or {}
        self._frozen: dict[str, tuple[Any, int]] = {}
        self.steps = steps

    def meet(self, is_any: bool, criteria: Criteria) -> bool:
        """Whether all of the criteria are met, or any."""
        headers, known = self._headers, self._frozen
        spent = 2
        for name, wanted in criteria:
            spent += 1
            is_met = name in headers
            if is_met and wanted is not None:
                value = known.get(name)
                if value is None:
                    before = self.steps.left
                    made = frozen(plain(headers[name]), self.steps)
                    value = known[name] = (made, (before - self.steps.left) // FREEZE_STEPS)
                spent += value[1]
                is_met = value[0] == wanted
            if is_met is is_any:
                self.steps.spend(spent)
                return is_any
        self.steps.spend(spent)
        return not is_any


Criteria: TypeAlias = "tuple[tuple[str, Any], ...]"
"""Names of headers with their frozen values; None: any value will do."""


class Binding:
    """One binding. Equal are those with the same ends, key and arguments."""

    __slots__ = (
        "_hash", "_key", "arguments", "charged", "destination", "routing_key", "selector", "source", "user", "weight",
    )  # fmt: skip

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
        self.user: DeclaredByUser | None = None
        """In whose share it counts; None: in nobody's."""
        self.charged = 0
        """Octets that count there: what it added to the index of its source, too, where it was the first to need it."""
        self.weight = weight(routing_key) + 2 * weight(arguments)
        """What its key and arguments take in memory, roughly; the arguments also as ``frozen``."""
        if SELECTOR in arguments and source.type == "topic":  # it stands in a trie of its own
            self.weight += NODE_WEIGHT * (routing_key.count(".") + 2)
        # Not the names: one that was deleted and declared again under its name has none of its old bindings.
        self._key = (id(source), id(destination), routing_key, frozen(arguments))
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Binding) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


Test: TypeAlias = Callable[[str, FrozenHeaders], bool]
"""Whether a binding with a selector leads on for a routing key and headers, without its selector."""


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
        self.gone = False
        self.user: DeclaredByUser | None = None
        """In whose share it counts; None: in nobody's."""
        self.weight = 0
        """What its name and arguments take in memory, roughly, in octets."""
        self.bindings: dict[Binding, Binding] = {}
        """The bindings that start here."""
        self.bindings_to: dict[Binding, None] = {}
        self._selective: dict[Binding, Test] = {}
        self._exchanges = 0

    @property
    def tried(self) -> int:
        """How many of its bindings every message must be compared with."""
        return len(self._selective)

    def tries(self, binding: Binding) -> bool:
        """Whether a binding would be one of those."""
        return binding.selector is not None

    @property
    def index_weight(self) -> int:
        """What its index takes in memory beside the bindings, in octets, roughly."""
        return 0

    def growth(self, binding: Binding) -> int:
        """By how much a further binding would add to that."""
        return 0

    @property
    def cheap(self) -> bool:
        """What a match costs does not depend on how many bindings there are."""
        return not (self._exchanges or self._selective or self.arguments.alternate_exchange) and self.type in (
            "direct",
            "fanout",
        )

    @property
    def plain(self) -> bool:
        """A match of this exchange is a list of queues and nothing else."""
        return not self._exchanges

    def check_binding(self, routing_key: str, arguments: Table) -> None:
        """Raise 406 for a binding that this type of exchange cannot understand."""

    def add(self, binding: Binding) -> None:
        """Add a binding; an equal one is not there."""
        self.bindings[binding] = binding
        binding.destination.bindings_to[binding] = None
        self._exchanges += binding.destination.is_exchange
        if binding.selector is not None:
            self._selective[binding] = self._test(binding)
        else:
            self._index(binding)

    def remove(self, binding: Binding) -> bool:
        """Remove the binding equal to this one; False if there is none."""
        if binding not in self.bindings:
            return False
        del self.bindings[binding]
        del binding.destination.bindings_to[binding]
        self._exchanges -= binding.destination.is_exchange
        if self._selective.pop(binding, None) is None:
            self._unindex(binding)
        return True

    def match(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        """The destinations that a message goes to from here, each once. Raises
        :class:`~gateway.amqp.steps.TooManySteps` where finding them costs too much."""
        found = self._find(routing_key, message, steps)
        if not self._selective:
            return found
        together = dict.fromkeys(found)
        headers = FrozenHeaders(message, steps)
        for binding, leads in self._selective.items():
            steps.spend(4)
            assert binding.selector is not None
            if leads(routing_key, headers) and binding.selector.matches(message.properties, steps):
                together[binding.destination] = None
        message.forget(SMALL)
        return together

    def _index(self, binding: Binding) -> None:
        raise NotImplementedError

    def _unindex(self, binding: Binding) -> None:
        raise NotImplementedError

    def _find(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        raise NotImplementedError

    def _test(self, binding: Binding) -> Test:
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

    def _find(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        return self._routes.get(routing_key, ())

    def _test(self, binding: Binding) -> Test:
        return lambda routing_key, _: binding.routing_key == routing_key


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

    def _find(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        return self._targets

    def _test(self, binding: Binding) -> Test:
        return lambda routing_key, headers: True


class TopicExchange(Exchange):
    """The binding's key is a pattern of words."""

    type = "topic"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._trie: TopicTrie[Destination] = TopicTrie()

    @property
    def index_weight(self) -> int:
        return NODE_WEIGHT * self._trie.nodes

    def growth(self, binding: Binding) -> int:
        return 0 if binding.selector is not None else NODE_WEIGHT * self._trie.missing(binding.routing_key)

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.routing_key, binding.destination)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.routing_key, binding.destination)

    def _find(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        return self._trie.match(routing_key, steps)

    def _test(self, binding: Binding) -> Test:
        trie: TopicTrie[None] = TopicTrie()
        trie.add(binding.routing_key, None)
        return lambda routing_key, headers: bool(trie.match(routing_key, headers.steps))


X_MATCH: Mapping[str, tuple[bool, bool]] = {
    "all": (False, False),
    "any": (True, False),
    "all-with-x": (False, True),
    "any-with-x": (True, True),
}
"""``x-match`` -> whether any header is enough, and whether headers that begin with ``x-`` count."""


class HeadersExchange(Exchange):
    """The binding's arguments are compared with the message's headers (0-9-1 section 3.1.3.4).

    A void argument asks only that the header is there. Integers are compared by value, not by width, since
    a message may come from a client that codes them in another width than the one that bound.
    """

    type = "headers"

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self._bindings: dict[Binding, tuple[bool, Criteria]] = {}

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

    def _find(self, routing_key: str, message: Message, steps: Steps) -> Iterable[Destination]:
        meet = FrozenHeaders(message, steps).meet
        found = dict.fromkeys(
            binding.destination for binding, (is_any, criteria) in self._bindings.items() if meet(is_any, criteria)
        )
        message.forget(SMALL)
        return found

    def _test(self, binding: Binding) -> Test:
        is_any, criteria = _criteria(binding)
        return lambda _, headers: headers.meet(is_any, criteria)


def _criteria(binding: Binding) -> tuple[bool, Criteria]:
    is_any, with_x = X_MATCH[plain(binding.arguments.get("x-match", "all"))]
    return is_any, tuple(
        (name, None if value is None else frozen(plain(value)))
        for name, value in binding.arguments.items()
        if name != "x-match" and (with_x or not name.startswith("x-"))
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
