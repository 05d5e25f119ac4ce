"""Properties that a version cannot carry: what becomes of them, and how they come back.

Each version states a :class:`Home`: for every property the value it becomes there, and which header values it has a
type for. :func:`fit` turns properties into ones that fit; values that were changed or have no home are kept in the
reserved header, and :func:`restore` puts it back, so that there and back is the identity.

An entry is restored only where the value found now is the very one that the stored original becomes in this home: what
an application changed in between wins over what was stored, and an entry that somebody made up could only say what its
author could have said anyway. Nothing in the reserved header is ever the word of a broker: ``user_id`` does not come
back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.amqp.message import PROPERTY_NAMES, ArrivalTime, Deadline, Properties, ReplyTo, UuidMessageId
from gateway.amqp.values import UINT64_MAX, Table, Value
from gateway.fidelity.conventions import is_uuid
from gateway.fidelity.reserved import CONSUMED, RESERVED
from gateway.fidelity.reshapes import Carries, fit_headers, restore_headers

NO_HOME: Final = object()
"""What a :class:`Home` answers for a property that it cannot carry in any form."""


CLAIM: Final = "user_id"
"""The property, and the entry of the reserved header in which it travels where a broker would refuse it. It is never
put back: a broker vouches for the property, and what travels in a header is nobody's word."""


GZIP: Final = "gzip"
"""The content-encoding that Broker-J acts upon: on the way to a consumer it unpacks the body, in 0-10 to nothing where
that is no gzip."""


def x_gzip(encoding: str) -> str:
    """A content-encoding as it goes to Broker-J: ``gzip`` under its other name (RFC 9110 section 8.4.1.3), which says
    the same to a reader and nothing to the broker."""
    return "x-gzip" if encoding == GZIP else encoding


class Native(str):
    """What a :class:`Home` answers where its own form of a property says all there is to say: nothing is kept
    besides."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Home:
    """What one version can carry."""

    properties: Mapping[str, Callable[[Any], Any]]
    """name -> function from the neutral value to the value that fits, equal where nothing is lost, or NO_HOME.
    A name that is missing fits as it is."""
    carries: Carries
    """(type, value) -> the version has that type and the value fits it."""
    plain: frozenset[type] = frozenset()
    """Plain types of which it carries every value: of ``str`` every short one of ASCII."""
    type_header: str = ""
    """The header that is the home of the property ``type``; empty: it has one of its own."""
    timed: frozenset[str] = frozenset()
    """Properties whose mapped value cannot be computed from the original again, as it depends on the clock: it is kept
    beside the original."""


# ------------------------------------------------------------------------------------------------------- there


def fit(properties: Properties, home: Home, carry: bool = True) -> Properties:
    """``properties`` as ``home`` can carry them; the same object where nothing has to change.

    Args:
        carry: Keep what does not fit in the reserved header. False: it is lost.

    Raises:
        TypeError: there is no way to carry a header value; the text names it.
    """
    carried: Table = {}
    changes: dict[str, Any] = {}
    for name, convert in home.properties.items():
        value = getattr(properties, name)
        if value is None:
            continue
        mapped = convert(value)
        if mapped is NO_HOME:
            carried[name] = pack(value)
            changes[name] = None
        elif type(mapped) is Native:
            changes[name] = str(mapped)
        elif mapped != value or type(mapped) is not type(value):
            carried[name] = {"value": pack(value), "as": mapped} if name in home.timed else pack(value)
            changes[name] = mapped
    headers = properties.headers
    notes: list[list[Any]] = []
    if headers:
        fitted = fit_headers(headers, home.carries, notes, plain=home.plain)
        if notes:
            headers = fitted
    added = ""
    if home.type_header:
        added = _fit_type(properties, home, headers or {}, carried)
        if added or "type" in carried:
            changes["type"] = None
    if not changes and not carried and not notes:
        return properties
    if added:
        assert properties.type is not None
        headers = _with_header(headers or {}, added, properties.type)
    if carry and (carried or notes or added):
        headers = _with_entry(properties.headers, headers or {}, carried, notes, added, home)
    changes["headers"] = headers
    return changed(properties, changes)


def _fit_type(properties: Properties, home: Home, headers: Table, carried: Table) -> str:
    """Where ``type`` goes in a version that keeps it in a header: the name of that header if it has to be added, else
    what cannot be read from it is kept."""
    value, name = properties.type, home.type_header
    there = headers.get(name)
    found = there if isinstance(there, str) else None
    if value == found:
        return ""
    if value is not None and name not in headers and home.carries("string", value):
        return name
    packed = {} if value is None else pack(value)
    carried["type"] = packed if found is None else {"value": packed, "as": found}
    return ""


def _with_header(headers: Table, name: str, value: Value) -> Table:
    """``headers`` with one more, in front of the reserved one."""
    rest = {key: item for key, item in headers.items() if key != RESERVED}
    rest[name] = value
    if RESERVED in headers:
        rest[RESERVED] = headers[RESERVED]
    return rest


def _with_entry(
    before: Table | None, headers: Table, carried: Table, notes: list[list[Any]], added: str, home: Home
) -> Table:
    """``headers`` with what is kept, in the reserved header."""
    previous = headers.get(RESERVED)
    entry: Table = dict(previous) if isinstance(previous, dict) else {}
    if CLAIM in carried:
        entry[CLAIM] = carried.pop(CLAIM)
    if carried:
        entry["properties"] = carried
    if notes:
        text = json.dumps(notes, separators=(",", ":"))
        entry["types"] = text if home.carries("string", text) else text.encode()
    if added:
        entry["type"] = added
    if before is not None and not before:
        entry["empty"] = "1"
    return {**{key: item for key, item in headers.items() if key != RESERVED}, RESERVED: entry}


def changed(properties: Properties, changes: Mapping[str, Any]) -> Properties:
    """``properties`` with other values. What ``dataclasses.replace`` does, at a third of its price."""
    made = Properties(*[getattr(properties, name) for name in PROPERTY_NAMES])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


# -------------------------------------------------------------------------------------------------------- back


def restore(properties: Properties, home: Home) -> Properties:
    """Undo :func:`fit`: put back what the reserved header carries, where it is still true. What the header
    holds besides (the id) stays in it; the header goes where nothing is left. A header of another shape than the
    gateway's is left alone."""
    headers = properties.headers
    if not headers or not isinstance(entry := headers.get(RESERVED), dict) or entry.keys().isdisjoint(CONSUMED):
        return properties
    changes: dict[str, Any] = {}
    carried = entry.get("properties")
    if isinstance(carried, dict):
        for name, item in carried.items():
            if isinstance(item, dict) and "value" in item:
                _restore_property(properties, home, name, item["value"], item.get("as"), changes)
            else:
                _restore_property(properties, home, name, item, None, changes)
    kept = dict(headers)
    types = entry.get("types")
    if isinstance(types, str | bytes):
        kept = restore_headers(kept, types, home.carries)
    rest = kept.pop(RESERVED)
    rest = {key: value for key, value in rest.items() if key not in CONSUMED} if isinstance(rest, dict) else {}
    added = home.type_header
    if added and entry.get("type") == added and isinstance(kept.get(added), str):
        del kept[added]
    empty = not kept and "empty" in rest
    if rest.keys() - {"empty"}:
        kept[RESERVED] = rest
    changes["headers"] = kept if kept or empty else None
    return changed(properties, changes)


def _restore_property(
    properties: Properties, home: Home, name: Any, packed: Value, became: Value, changes: dict[str, Any]
) -> None:
    """Put one property back, if what is there is what became of it."""
    if name == "type" and home.type_header:
        original = None if packed == {} else unpack(name, packed)
        if properties.type == became and (original is not None or packed == {}):
            changes[name] = original
        return
    convert = home.properties.get(name)
    if convert is None or name == CLAIM or (original := unpack(name, packed)) is None:
        return
    found = getattr(properties, name)
    mapped = convert(original)
    if mapped is NO_HOME:
        mapped = None
    elif type(mapped) is Native or (mapped == original and type(mapped) is type(original)):
        return  # it would have travelled as it is
    elif name in home.timed:
        mapped = became if became is not None else NO_HOME
        if isinstance(found, Deadline):
            found = str(found.instant)
    if found == mapped:
        changes[name] = original


# ------------------------------------------------------------------------------------------- property values

_TEXT: Final = (str,)
_OCTETS: Final = (str, bytes)
_NUMBER: Final = (int,)
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], int]]] = {
    "content_type": (_TEXT, 255),
    "content_encoding": (_TEXT, 255),
    "delivery_mode": (_NUMBER, 255),
    "priority": (_NUMBER, 255),
    "correlation_id": (_OCTETS, 0xFFFF),
    "reply_to": ((str, ReplyTo), 255),
    "expiration": (_TEXT, 255),
    "message_id": (_TEXT, 255),
    "timestamp": (_NUMBER, UINT64_MAX),
    "type": (_TEXT, 255),
    "user_id": (_OCTETS, 0xFFFF),
    "app_id": (_OCTETS, 0xFFFF),
    "cluster_id": (_TEXT, 255),
}
"""What the original of a property may be, and how large or long: as much as the roomiest version has."""


def pack(value: Any) -> Value:
    """A property as a header value that every dialect carries."""
    if type(value) is str and value.isascii():
        return value
    if isinstance(value, UuidMessageId):
        return {"uuid": str(value)}
    if isinstance(value, ReplyTo):
        return {"exchange": pack(value.exchange), "routing_key": pack(value.routing_key)}
    if isinstance(value, bytes):
        return {"octets": value.hex()}
    if isinstance(value, Deadline):
        return {"until": str(value.instant), "text": str(value)}
    if isinstance(value, ArrivalTime):
        arrived: Table = {"arrived": str(int(value))}
        if value.milliseconds is not None:
            arrived["milliseconds"] = str(value.milliseconds)
        return arrived
    if isinstance(value, int):
        return str(int(value))
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"text": text.encode("utf-8", "surrogateescape").hex()}
    return text


def unpack(name: str, value: Value) -> Any:
    """The packed value of a property, or None where it is not what :func:`pack` makes of one."""
    kinds, most = _KINDS.get(name, ((), 0))
    found: Any
    try:
        found = _unpacked(value, int in kinds)
    except (TypeError, ValueError, AttributeError):
        return None
    if not isinstance(found, kinds) or (isinstance(found, UuidMessageId) and name != "message_id"):
        return None
    if isinstance(found, int):
        return found if found <= most else None
    for text in (found.exchange, found.routing_key) if isinstance(found, ReplyTo) else (found,):
        if _length(text) > most:
            return None
    return found


def _length(text: Any) -> int:
    return len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape"))


def _unpacked(value: Value, number: bool) -> Any:
    if isinstance(value, str):
        return _integer(value) if number else value
    match value:
        case {"exchange": exchange, "routing_key": routing_key, **rest} if not rest:
            return ReplyTo(_text(_unpacked(exchange, False)), _text(_unpacked(routing_key, False)))
        case {"octets": str(octets), **rest} if not rest:
            return bytes.fromhex(octets)
        case {"until": str(instant), "text": str(text), **rest} if not rest:
            return Deadline.of(_integer(instant), str(_integer(text)))
        case {"arrived": str(seconds), "milliseconds": str(milliseconds), **rest} if not rest:
            time = ArrivalTime.of(_integer(seconds), _integer(milliseconds))
            if time.milliseconds is None or time.milliseconds // 1000 != time:
                raise ValueError("two times")
            return time
        case {"arrived": str(seconds), **rest} if not rest:
            return ArrivalTime(_integer(seconds))
        case {"uuid": str(uuid), **rest} if not rest and is_uuid(uuid):
            return UuidMessageId(uuid)
        case {"text": str(octets), **rest} if not rest:
            return bytes.fromhex(octets).decode("utf-8", "surrogateescape")
        case _:
            raise ValueError("packed by somebody else")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _integer(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise ValueError("no number")
    return int(text)
