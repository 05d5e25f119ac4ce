"""What becomes of a message at a target, before it is sent there.

A :class:`TranslationTarget` is one connection's version, product and login. :meth:`TranslationTarget.losses` says by
name what would be lost (:data:`gateway.fidelity.LOSSES`): nothing, nearly always, and that is seen at a glance.
:meth:`TranslationTarget.explain` goes through the message field by field, with reasons, and takes its time. Both ask
the translation that sends the messages, so that they cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from gateway.amqp.message import PROPERTY_NAMES, Message, Properties
from gateway.amqp.values import Value, type_of
from gateway.classic.dialect import Dialect, choose
from gateway.classic.frames import OVERHEAD
from gateway.classic.properties import decode
from gateway.classic.tables import TableCodec
from gateway.classic.translate import Translator
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import ID, KEY, RESERVED, Home, Lost, arrival_in_native, fit, fit_headers, forward, is_held, strip
from gateway.session import Version
from gateway.v010 import translate as native
from gateway.v010.client import is_broker_j
from gateway.v010.spans import each_struct, spans
from gateway.v010.structs import DELIVERY_PROPERTIES, FRAGMENT_PROPERTIES, MESSAGE_PROPERTIES
from gateway.v010_draft import translate as draft
from gateway.versions import protocol_of

Result: TypeAlias = Literal["same", "mapped", "carried", "lost"]
"""``same``: as it was. ``mapped``: another value or type, from which it is restored. ``carried``: only in the reserved
header, from which it is restored. ``lost``: not restored."""

HEADER_ENVELOPE: Final = 12
"""Octets of a content header in front of the properties (0-9-1 section 4.2.6.1)."""
_NESTED: Final = frozenset({dict, list})
_GROWTH: Final = 17
"""A property that is carried becomes at most three times as long, and the note about a header that is not nested takes
fourteen times the octets of that header."""
_FIXED_GROWTH: Final = 1_000


@dataclass(frozen=True, slots=True)
class FieldReceipt:
    """What becomes of one field."""

    field: str
    """Property, or path of a header: ``headers/a/b``."""
    value: Value
    result: Result
    becomes: Value
    """What an application at the target finds in that place; None: nothing."""
    why: str
    """A sentence; "" for ``same``."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What becomes of a message."""

    fields: tuple[FieldReceipt, ...]
    losses: tuple[Lost, ...]
    message: Message | None
    """As an application at the target finds it; None where it cannot be sent."""


class _Side(Protocol):
    """A version's translation, as far as a target asks it."""

    @property
    def home(self) -> Home:
        """What it can carry."""

    def untouched(self, message: Message) -> bool:
        """Whether the properties go as the octets they are. May raise FrameSyntaxError."""

    def glance(self, message: Message) -> bool:
        """Whether nothing is lost, as far as that can be seen at a glance."""

    def fitted(self, properties: Properties, carry: bool) -> Properties:
        """As they go on the wire. Raises EncodeError."""

    def encode(self, message: Message) -> bytes:
        """The octets. Raises EncodeError."""

    def seen(self, octets: bytes) -> Properties:
        """As an application at the target decodes them."""

    def received(self, octets: bytes, body: bytes) -> Message:
        """As the gateway reads them back."""


class TranslationTarget:
    """What one connection can carry. Made by :func:`target_of`."""

    __slots__ = ("_side", "annotate", "frame_max", "login", "product", "version")

    def __init__(self, version: Version, product: str, login: str, annotate: bool, frame_max: int, side: _Side) -> None:
        self.version = version
        self.product = product
        """``rabbitmq``, ``qpid``, ``published``, ``transitional``, or for a 0-10 that is not Broker-J's ``other``."""
        self.login = login
        self.annotate = annotate
        """False: what goes there goes without the reserved header (:func:`gateway.fidelity.strip`)."""
        self.frame_max = frame_max
        """0: no limit on the size of a content header."""
        self._side = side

    def losses(self, message: Message) -> tuple[Lost, ...]:
        """What would be lost of the message as it is: made by :func:`gateway.fidelity.forward`, and by
        :func:`~gateway.fidelity.strip` where the reserved header is left out. A value that has no form at all in the
        target's version may show only when the message is encoded."""
        if not message.left_out and not _of_draft(message, self._side) and self._side.glance(message):
            return ()
        return tuple(self._losses(message))

    def _losses(self, message: Message) -> Iterator[Lost]:
        for name in message.left_out or ():
            yield Lost("held_header", f"headers/{name}", "brokers act upon it, and what holds it is left out")
        origin = message.origin
        carry = message.left_out is None
        for name in _of_draft(message, self._side):
            yield Lost("struct", name, "the transitional draft alone has such a property")
        try:
            if origin is not None and origin.dialect in native.DIALECTS:
                yield from _of_structs(origin.octets, not protocol_of(self.version).is_classic)
            octets = self._side.encode(message)
            properties = Properties() if self._side.untouched(message) else message.properties
            fitted = self._side.fitted(properties, carry)
        except (EncodeError, FrameSyntaxError) as error:
            yield Lost("untranslatable", "properties", str(error))
            return
        if self.frame_max and len(octets) + HEADER_ENVELOPE + OVERHEAD > self.frame_max:
            size, most = len(octets) + HEADER_ENVELOPE, self.frame_max - OVERHEAD
            yield Lost("content_header", "headers", f"a content header of {size} octets, and one frame takes {most}")
            return
        for item in self._receipts(properties, fitted, carry):
            if item.field == "user_id" and item.result != "same":
                yield Lost("user_id", "user_id", f"{item.value!r:.80} is not the login {self.login!r:.80}")
            elif item.result == "lost":
                yield Lost("header_type" if item.field.startswith("headers/") else "property", item.field, item.why)

    def explain(
        self, message: Message, *, release: frozenset[str] = frozenset(), leave_out: bool = False
    ) -> Explanation:
        """What becomes of the message, field by field. Headers that brokers act upon are held, but for ``release``;
        ``leave_out``: the reserved header is left out.

        Raises:
            FrameSyntaxError: the properties of the message are malformed.
        """
        headers = message.properties.headers or {}
        held = [name for name in headers if is_held(name) and name not in release]
        sent = forward(message, {}, release=release) if held else message
        carry = self.annotate and not leave_out
        if not carry:
            sent = strip(sent)
        losses = self.losses(sent)
        try:
            octets = self._side.encode(sent)
            if self._side.untouched(sent):
                fields = [FieldReceipt(name, value, "same", value, "") for name, value in _fields(sent.properties)]
            else:
                fields = list(self._receipts(sent.properties, self._side.fitted(sent.properties, carry), carry))
        except EncodeError as error:
            fields = [
                FieldReceipt(name, value, "lost", None, str(error)) for name, value in _fields(message.properties)
            ]
            return Explanation(tuple(fields), losses, None)
        why = "brokers act upon it: it travels in the reserved header" if carry else "brokers act upon it"
        fields += [FieldReceipt(field_of((name,)), headers[name], HELD[carry], None, why) for name in held]
        if any(loss.stops for loss in losses):
            return Explanation(tuple(fields), losses, None)
        return Explanation(tuple(fields), losses, Message(message.body, self._side.seen(octets)))

    def there_and_back(self, message: Message) -> Message:
        """The message as the gateway reads it back from this target. Raises :class:`~gateway.errors.EncodeError`."""
        return self._side.received(self._side.encode(message), message.body)

    def _receipts(self, properties: Properties, fitted: Properties, carry: bool) -> Iterator[FieldReceipt]:
        home = self._side.home
        for name in _NAMES:
            value = getattr(properties, name)
            if value is None:
                continue
            becomes = getattr(fitted, name)
            if name == "type" and home.type_header and becomes is None:
                becomes = (fitted.headers or {}).get(home.type_header)
                becomes = becomes if becomes == value else None
            alike = name == "message_id" and becomes is not None and becomes.removeprefix(ID) == value.removeprefix(ID)
            if name == "timestamp" and becomes is None and isinstance(self._side, _Native):
                becomes = self._side.arrival(value)
            result: Result = "mapped"
            if becomes is None:
                result = "carried" if carry else "lost"
            elif becomes == value and type(becomes) is type(value) and becomes == getattr(fitted, name):
                result = "same"
            elif not carry and name in _ONE_WAY and not alike:
                result = "lost"
            yield FieldReceipt(name, value, result, becomes, "" if result == "same" else WHY[name])
        yield from self._header_receipts(properties.headers or {}, fitted.headers or {}, carry)

    def _header_receipts(
        self, headers: Mapping[str, Value], found: Mapping[str, Value], carry: bool
    ) -> Iterator[FieldReceipt]:
        headers = {key: value for key, value in headers.items() if key != RESERVED}
        notes: list[list[Any]] = []
        fit_headers(headers, self._side.home.carries, notes)
        names = {tuple(path): _text(octets) for path, _, *rest in notes for octets in rest}
        changed: dict[str, list[tuple[tuple[Any, ...], tuple[Any, ...], str]]] = {}
        for path, kind, *_ in reversed(notes):  # of several reshapes of one value the first says what it was
            before = tuple(names.get(tuple(path[: depth + 1]), step) for depth, step in enumerate(path))
            changed.setdefault(before[0], []).append((before, tuple(path), kind))
        for key, value in headers.items():
            if key not in changed:
                yield FieldReceipt(field_of((key,)), value, "same", value, "")
            for before, after, kind in {item[0]: item for item in changed.get(key, ())}.values():
                original, becomes = _at(headers, before), _at(found, after)
                why = f"no {kind} there that holds it: it travels as {type_of(becomes)}"
                if kind == KEY:
                    why = f"there a name is UTF-8: it travels as {after[-1]}"
                yield FieldReceipt(field_of(before), original, "mapped" if carry else "lost", becomes, why)


def field_of(path: tuple[Any, ...]) -> str:
    """The field of a header, printable: ``headers/a/b``."""
    return "/".join(["headers", *map(str, path)]).encode("utf-8", "backslashreplace").decode()


def _text(octets: str) -> str:
    return bytes.fromhex(octets).decode("utf-8", "surrogateescape")


_NAMES: Final = tuple(name for name in PROPERTY_NAMES if name != "headers")
_ONE_WAY: Final = frozenset({"message_id", "priority", "timestamp"})
"""Properties whose mapped value does not tell what it was: a message id that is no UUID, a timestamp that counts as the
broker's."""
HELD: Final[Mapping[bool, Result]] = {True: "carried", False: "lost"}
WHY: Final[Mapping[str, str]] = {
    "content_type": "0-10's str8 is UTF-8",
    "content_encoding": "0-10's str8 is UTF-8, and Broker-J unpacks what is marked gzip: x-gzip says the same",
    "delivery_mode": "0-10 knows 1 and 2 only",
    "priority": "0-10 knows 0 to 9 only",
    "correlation_id": "a short string holds 255 octets of UTF-8, and 0-10's vbin16 octets that may be none",
    "reply_to": "0-10 has exchange and routing key, the other versions a short string: a binding URL, as JMS writes it",
    "expiration": "relative on RabbitMQ and in 0-10, an instant on Broker-J's classic versions, and a number in all",
    "message_id": "0-10 has UUIDs only, and the same stands for the same id always: JMS writes ID: and the UUID in the "
    "other versions",
    "timestamp": "in 0-10 the timestamp is the broker's: it goes as that",
    "type": "0-10 has no such property; Qpid's clients keep it in the header x-jms-type",
    "user_id": "brokers refuse a user-id that is not the login",
    "app_id": "a short string holds 255 octets of UTF-8, and 0-10's vbin16 octets that may be none",
    "cluster_id": "not every version has such a property",
}
"""Why a property is not the same at the target."""


def _fields(properties: Properties) -> Iterator[tuple[str, Value]]:
    """Each property and each header, by the name of its field."""
    for name in _NAMES:
        if (value := getattr(properties, name)) is not None:
            yield name, value
    for key, value in (properties.headers or {}).items():
        if key != RESERVED:
            yield field_of((key,)), value


def _name(octets: str) -> str:
    """The name of a header from its octets in hex."""
    return bytes.fromhex(octets).decode("utf-8", "surrogateescape")


def _named(path: tuple[Any, ...], names: Mapping[tuple[Any, ...], str]) -> tuple[Any, ...]:
    """A path with the names that headers had before they were given others."""
    return tuple(names.get(path[: depth + 1], step) for depth, step in enumerate(path))


def _at(holder: Value, path: tuple[Any, ...]) -> Value:
    """The value at a path; an array that became a table has its indexes as keys."""
    for step in path:
        holder = holder[int(step) if isinstance(holder, list) else step]
    return holder


# ------------------------------------------------------------------------------------------------ the versions


class _Classic:
    """0-8 and 0-9-1."""

    __slots__ = ("_frame_max", "_login", "_tables", "_translator", "home")

    def __init__(self, dialect: Dialect, login: str, clock: Callable[[], float] | None, frame_max: int) -> None:
        self._tables = TableCodec(dialect.tags)
        self._translator = Translator(dialect, self._tables, login, clock)
        self._login = login
        self._frame_max = (frame_max or FRAME_MAX) - OVERHEAD - HEADER_ENVELOPE
        self.home = self._translator.home

    def glance(self, message: Message) -> bool:
        """See :class:`_Side`."""
        raw = message.raw
        if raw is None:
            return False
        octets = raw.octets
        if self._translator.passes(raw):
            return len(octets) <= self._frame_max
        if raw.dialect in native.DIALECTS and not _usual(octets):
            return False
        try:
            properties = message.properties
        except FrameSyntaxError:
            return False
        if len(octets) * _GROWTH + _FIXED_GROWTH > self._frame_max:
            return False
        if self._translator.is_plain(properties):
            return True
        if message.left_out is not None or properties.user_id not in (None, self._login):
            return False
        return not properties.headers or _NESTED.isdisjoint(map(type, properties.headers.values()))

    def untouched(self, message: Message) -> bool:
        """See :class:`_Side`."""
        return message.raw is not None and self._translator.passes(message.raw)

    def fitted(self, properties: Properties, carry: bool) -> Properties:
        """See :class:`_Side`."""
        return self._translator.fitted(properties, carry)

    def encode(self, message: Message) -> bytes:
        """See :class:`_Side`."""
        return self._translator.encode(message)

    def seen(self, octets: bytes) -> Properties:
        """See :class:`_Side`."""
        return decode(octets, self._tables)

    def received(self, octets: bytes, body: bytes) -> Message:
        """See :class:`_Side`."""
        return self._translator.received(octets, body)


class _Native:
    """0-10."""

    __slots__ = ("_broker_j", "_login", "home")

    def __init__(self, login: str, broker_j: bool) -> None:
        self._login = login
        self._broker_j = broker_j
        self.home = native.home(login, broker_j)

    def arrival(self, time: int) -> int:
        """A publisher's ``timestamp`` as it is seen here, in seconds: on the wire it is the broker's."""
        unit = 1000 if self._broker_j else 1
        return arrival_in_native(time, unit) // unit

    def untouched(self, message: Message) -> bool:
        """See :class:`_Side`."""
        return native.untouched(message, self._login, self._broker_j)

    def glance(self, message: Message) -> bool:
        """See :class:`_Side`."""
        raw = message.raw
        if raw is not None and raw.dialect in native.DIALECTS:
            passes = native.passes(raw, self._broker_j) is not None
            if passes or not _usual(raw.octets):
                return _usual(raw.octets, passes)
        origin = message.origin
        if message.left_out is not None or (
            raw is None and origin is not None and origin.dialect in native.DIALECTS and not _usual(origin.octets)
        ):
            return False
        try:
            return message.properties.user_id in (None, self._login)
        except FrameSyntaxError:
            return False

    def fitted(self, properties: Properties, carry: bool) -> Properties:
        """See :class:`_Side`."""
        try:
            return fit(properties, self.home, carry)
        except (TypeError, OverflowError) as error:
            raise EncodeError(str(error)) from None

    def encode(self, message: Message) -> bytes:
        """See :class:`_Side`."""
        return native.write_header(message, "", 0, None, self._login, self._broker_j)

    def seen(self, octets: bytes) -> Properties:
        """See :class:`_Side`."""
        return native.decode(octets, self._broker_j, restored=False)

    def received(self, octets: bytes, body: bytes) -> Message:
        """See :class:`_Side`."""
        return native.read_message(octets, body, self._broker_j)


class _Draft:
    """0-10's transitional draft."""

    __slots__ = ("_frame_max", "_login", "home")

    def __init__(self, login: str, frame_max: int) -> None:
        self._login = login
        self._frame_max = (frame_max or FRAME_MAX) - OVERHEAD - HEADER_ENVELOPE
        self.home = draft.home(login)

    def untouched(self, message: Message) -> bool:
        """See :class:`_Side`."""
        return draft.passes(message, self._login)

    def glance(self, message: Message) -> bool:
        """See :class:`_Side`."""
        return self.untouched(message) and message.raw is not None and len(message.raw.octets) <= self._frame_max

    def fitted(self, properties: Properties, carry: bool) -> Properties:
        """See :class:`_Side`."""
        try:
            return fit(properties, self.home, carry)
        except (TypeError, OverflowError) as error:
            raise EncodeError(str(error)) from None

    def encode(self, message: Message) -> bytes:
        """See :class:`_Side`."""
        return draft.write_properties(message, self._login)

    def seen(self, octets: bytes) -> Properties:
        """See :class:`_Side`."""
        return draft.decode(octets, restored=False)

    def received(self, octets: bytes, body: bytes) -> Message:
        """See :class:`_Side`."""
        return draft.message_of(octets, body)


def _of_draft(message: Message, side: _Side) -> tuple[str, ...]:
    """What a message of the transitional draft holds that no other version has."""
    origin = message.origin
    if origin is None or origin.dialect != draft.DIALECT or (isinstance(side, _Draft) and side.untouched(message)):
        return ()
    return draft.of_its_own(origin.octets)


def _usual(octets: bytes, foreign_users: bool = False) -> bool:
    """Whether a header segment of 0-10 holds the two usual structs alone, nothing about resuming, and with
    ``foreign_users`` no user-id."""
    try:
        start, stop, begin, end = spans(octets)
    except FrameSyntaxError:
        return False
    if begin < 0 or begin != max(stop, 0) or end != len(octets) or (foreign_users and octets[begin + 6] & 0x40):
        return False
    return start < 0 or not octets[start + 7] & native.RESUME


def _of_structs(octets: bytes, to_native: bool) -> Iterator[Lost]:
    """What a header segment of 0-10 says that belongs to it alone."""
    for kind, at, _ in each_struct(octets):
        if kind == DELIVERY_PROPERTIES:
            if octets[at + 7] & native.RESUME:
                yield Lost("resume", "delivery_properties", "resume-id and resume-ttl belong to the transfer")
        elif to_native or kind == MESSAGE_PROPERTIES:
            continue
        elif kind == FRAGMENT_PROPERTIES:
            yield Lost("fragment", "fragment_properties", "this version has no fragments")
        else:
            yield Lost("struct", f"struct {kind >> 8}.{kind & 0xFF}", "this version has no such struct")


FRAME_MAX: Final = 131_072
"""What is assumed where no frame_max was negotiated: what RabbitMQ and the gateway offer."""


def target_of(
    version: Version,
    product: str = "",
    *,
    login: str = "guest",
    annotate: bool = True,
    frame_max: int = 0,
    dialect: str | None = None,
    clock: Callable[[], float] | None = None,
) -> TranslationTarget:
    """The target that a connection is.

    Args:
        product: The server's product, or part of it; empty: RabbitMQ, and in 0-10 Broker-J.
        frame_max: As negotiated, in octets; 0: 131072. It limits the content header of the classic versions.
        dialect: Overrides the dialect that the product would choose, as in the configuration.
        clock: Seconds since 1970; needed where ``expiration`` is absolute.
    """
    protocol = protocol_of(version, dialect)
    if protocol.draft:
        return TranslationTarget(
            version, protocol.draft, login, annotate, frame_max or FRAME_MAX, _Draft(login, frame_max)
        )
    if not protocol.is_classic:
        broker_j = not product or is_broker_j(product)
        return TranslationTarget(version, "qpid" if broker_j else "other", login, annotate, 0, _Native(login, broker_j))
    chosen = choose(protocol.dialects, product, dialect)
    side = _Classic(chosen, login, clock, frame_max)
    return TranslationTarget(version, chosen.name, login, annotate, frame_max or FRAME_MAX, side)
