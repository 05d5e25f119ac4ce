"""The arguments that declarations and consumers may carry, as tables: name -> field, and how it is read.

An argument that is not in its table is refused by name (406): a client that asked for something relies on it.
The one exception is ``x-queue-type``, which may say ``classic``, since that is what every queue here is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.amqp.selectors import Selector, SelectorError
from gateway.amqp.values import Table, Typed, Value
from gateway.broker.refusals import inequivalent, refusal

_INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"})
_STRINGS = frozenset({"string", "str8", "str16-utf16", "str8-latin", "bytes", "vbin8", "vbin16"})

MILLISECONDS_MAX = 10 * 365 * 86_400 * 1_000
"""Longest time that is taken: ten years, in milliseconds."""


def plain(value: Value) -> Any:
    """The Python value, without its wire type: integers of every width are ``int``, strings are ``str``."""
    if type(value) is Typed:
        value = value.value if value.type in _INTEGERS or value.type in _STRINGS or value.type == "float" else value
    if type(value) is bytes:
        return value.decode("utf-8", "surrogateescape")
    return value


NAME_MAX = 255
"""Longest short string, in octets."""
ITEM_WEIGHT = 64
"""What an object takes beside its octets, roughly."""


def weight(value: Value) -> int:
    """What a value takes in memory, in octets, roughly."""
    if isinstance(value, (str, bytes)):
        return ITEM_WEIGHT + len(value)
    if isinstance(value, dict):
        return ITEM_WEIGHT + sum(2 * ITEM_WEIGHT + len(key) + weight(item) for key, item in value.items())
    if isinstance(value, list):
        return ITEM_WEIGHT + sum(map(weight, value))
    return ITEM_WEIGHT + (weight(value.value) if type(value) is Typed else 0)


# ------------------------------------------------------------------------------------------------- readers


def _integer(low: int, high: int) -> Callable[[Value], int]:
    def read(value: Value) -> int:
        number = plain(value)
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"{number!r} is no integer")
        if not low <= number <= high:
            raise ValueError(f"{number} is not between {low} and {high}")
        return number

    return read


def _text(value: Value) -> str:
    text = plain(value)
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no string")
    return text


def _name(value: Value) -> str:
    """A name or routing key: every version has a short string for it."""
    text = _text(value)
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > NAME_MAX:
        raise ValueError(f"{size} octets are more than {NAME_MAX}")
    return text


def _choice(*choices: str) -> Callable[[Value], str]:
    def read(value: Value) -> str:
        text = _text(value)
        if text not in choices:
            raise ValueError(f"'{text}' is none of {', '.join(choices)}")
        return text

    return read


def _flag(value: Value) -> bool:
    """Qpid's client writes flags as booleans, as integers and as strings."""
    flag = plain(value)
    if isinstance(flag, str) and flag.lower() in ("true", "false"):
        return flag.lower() == "true"
    if isinstance(flag, (bool, int)):
        return bool(flag)
    raise ValueError(f"{flag!r} is no boolean")


def _selector(value: Value) -> Selector | None:
    text = _text(value)
    if not text.strip():
        return None
    try:
        return Selector(text)
    except SelectorError as error:
        raise ValueError(str(error)) from None


Reader = Callable[[Value], Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """The field that an argument sets, and the function that reads its value (``ValueError``: refuse it)."""

    name: str
    read: Reader


# -------------------------------------------------------------------------------------------------- queues


@dataclass(slots=True)
class QueueArguments:
    """The arguments of a queue; None is "not given"."""

    expires: int | None = None
    """Unused for so many milliseconds, the queue goes."""
    message_ttl: int | None = None
    """Milliseconds."""
    max_length: int | None = None
    max_length_bytes: int | None = None
    overflow: str | None = None
    max_priority: int | None = None
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    single_active_consumer: bool | None = None
    queue_type: str = "classic"
    alternate_exchange: str | None = None
    """0-10: where rejected messages go, and those of a deleted queue."""
    exclusivity: str | None = None
    """Qpid's exclusivity policy."""
    lifetime: str | None = None
    """Qpid's lifetime policy."""
    no_local: bool | None = None
    """Qpid: an exclusive queue takes nothing that its own connection publishes."""

    @property
    def rejected_to(self) -> str | None:
        """The exchange that rejected messages go to. 0-10 knows it as the alternate exchange, 0-9-1 as the
        dead-letter exchange: for a redeclaration through another version they are the same."""
        return self.alternate_exchange if self.dead_letter_exchange is None else self.dead_letter_exchange


QUEUE_ARGUMENTS: Mapping[str, Argument] = {
    "x-expires": Argument("expires", _integer(1, MILLISECONDS_MAX)),
    "x-message-ttl": Argument("message_ttl", _integer(0, MILLISECONDS_MAX)),
    "x-max-length": Argument("max_length", _integer(0, 1 << 63)),
    "x-max-length-bytes": Argument("max_length_bytes", _integer(0, 1 << 63)),
    "x-overflow": Argument("overflow", _choice("drop-head", "reject-publish", "reject-publish-dlx")),
    "x-max-priority": Argument("max_priority", _integer(0, 255)),
    "x-dead-letter-exchange": Argument("dead_letter_exchange", _name),
    "x-dead-letter-routing-key": Argument("dead_letter_routing_key", _name),
    "x-single-active-consumer": Argument("single_active_consumer", _flag),
    "x-queue-type": Argument("queue_type", _choice("classic")),
    "alternate-exchange": Argument("alternate_exchange", _name),
    "no-local": Argument("no_local", _flag),
    "qpid.exclusivity_policy": Argument(
        "exclusivity", _choice("NONE", "CONNECTION", "SESSION", "PRINCIPAL", "CONTAINER", "LINK", "SHARED_SUBSCRIPTION")
    ),
    "qpid.lifetime_policy": Argument(
        "lifetime",
        _choice(
            "PERMANENT", "DELETE_ON_CONNECTION_CLOSE", "DELETE_ON_SESSION_END", "DELETE_ON_NO_LINKS",
            "DELETE_ON_NO_OUTBOUND_LINKS",
        ),
    ),
}  # fmt: skip

_REJECTED_TO = frozenset({"dead_letter_exchange", "alternate_exchange"})

EXCLUSIVITY: Mapping[str, bool] = {
    "NONE": False,
    "SHARED_SUBSCRIPTION": False,
    "LINK": False,
    "CONNECTION": True,
    "SESSION": True,
    "PRINCIPAL": True,
    "CONTAINER": True,
}
"""Qpid's exclusivity policy -> AMQP's ``exclusive``. A session is taken for its connection. PRINCIPAL and
CONTAINER outlive the connection where the lifetime says so, and wait for the next one that declares them."""

AUTO_DELETE: Mapping[str, bool] = {
    "PERMANENT": False,
    "DELETE_ON_CONNECTION_CLOSE": False,
    "DELETE_ON_SESSION_END": False,
    "DELETE_ON_NO_LINKS": True,
    "DELETE_ON_NO_OUTBOUND_LINKS": True,
}
"""Qpid's lifetime policy -> AMQP's ``auto-delete``."""

ENDS_WITH_CONNECTION = frozenset({"DELETE_ON_CONNECTION_CLOSE", "DELETE_ON_SESSION_END"})
"""Qpid's lifetime policies that end a queue with the connection that declared it."""


def queue_arguments(table: Table, what: str) -> QueueArguments:
    """Read the arguments of a queue. Raises 406 for what is unknown or wrong; ``what`` is the queue's title."""
    arguments = _read(QueueArguments, QUEUE_ARGUMENTS, table, what)
    if (
        arguments.dead_letter_routing_key is not None
        and arguments.dead_letter_exchange is None
        and arguments.alternate_exchange is None
    ):
        raise refusal(
            406, f"invalid arg 'x-dead-letter-routing-key' for {what}: there is no x-dead-letter-exchange to go with it"
        )
    return arguments


# ----------------------------------------------------------------------------------------------- exchanges


@dataclass(slots=True)
class ExchangeArguments:
    """The arguments of an exchange."""

    alternate_exchange: str | None = None


EXCHANGE_ARGUMENTS: Mapping[str, Argument] = {"alternate-exchange": Argument("alternate_exchange", _name)}


def exchange_arguments(table: Table, what: str) -> ExchangeArguments:
    """Read the arguments of an exchange. Raises 406 for what is unknown or wrong."""
    return _read(ExchangeArguments, EXCHANGE_ARGUMENTS, table, what)


# ----------------------------------------------------------------------------------------------- consumers


@dataclass(slots=True)
class ConsumerArguments:
    """The arguments of a consumer, and of a binding where Qpid's client repeats them there."""

    priority: int = 0
    selector: Selector | None = None
    browse: bool = False
    no_local: bool = False
    auto_close: bool = False


SELECTOR = "x-filter-jms-selector"

CONSUMER_ARGUMENTS: Mapping[str, Argument] = {
    "x-priority": Argument("priority", _integer(-(1 << 31), (1 << 31) - 1)),
    SELECTOR: Argument("selector", _selector),
    "x-filter-no-consume": Argument("browse", _flag),
    "x-filter-auto-close": Argument("auto_close", _flag),
    "x-qpid-no-local": Argument("no_local", _flag),
}


def consumer_arguments(table: Table, what: str) -> ConsumerArguments:
    """Read the arguments of a consumer. Raises 406 for what is unknown or wrong."""
    return _read(ConsumerArguments, CONSUMER_ARGUMENTS, table, what)


def binding_selector(table: Table, what: str) -> Selector | None:
    """The selector that Qpid's client puts on the binding of a subscription. Raises 406 if it is wrong."""
    if SELECTOR not in table:
        return None
    return _read(ConsumerArguments, CONSUMER_ARGUMENTS, {SELECTOR: table[SELECTOR]}, what).selector


# -------------------------------------------------------------------------------------------------- common

_Arguments = TypeVar("_Arguments", QueueArguments, ExchangeArguments, ConsumerArguments)


def _read(into: type[_Arguments], known: Mapping[str, Argument], table: Table, what: str) -> _Arguments:
    arguments = into()
    for name, value in table.items():
        argument = known.get(name)
        if argument is None:
            raise refusal(406, f"unknown arg '{name}' for {what}")
        try:
            setattr(arguments, argument.name, argument.read(value))
        except ValueError as error:
            raise refusal(406, f"invalid arg '{name}' for {what}: {error}") from None
    return arguments


def require_equal(
    received: QueueArguments | ExchangeArguments,
    current: QueueArguments | ExchangeArguments,
    known: Mapping[str, Argument],
    what: str,
) -> None:
    """Raise 406 for the first argument that differs between two declarations of the same thing."""
    if received == current:
        return
    same_target = (
        isinstance(received, QueueArguments)
        and isinstance(current, QueueArguments)
        and received.rejected_to == current.rejected_to
    )
    for name, argument in known.items():
        if same_target and argument.name in _REJECTED_TO:
            continue
        new, old = getattr(received, argument.name), getattr(current, argument.name)
        if new != old:
            raise inequivalent(name, what, new, old)
