"""A message as a bridge sends it on.

Headers that a broker acts upon are not passed on as they came: a foreign ``x-death`` that names one of the target's
queues makes RabbitMQ drop the message in silence when it is dead-lettered there, ``CC`` and ``BCC`` route second
copies, ``x-delay`` holds a message back. They travel in the reserved header, with their places among the headers, and
come out only on request (``release``).

Nearly every message is undecoded here and stays so: the entries are written into the octets of its properties by the
:class:`~gateway.amqp.message.Seam` of their encoding, and one search in these octets says whether anything is held.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from gateway.amqp.message import Message, RawProperties, with_headers
from gateway.amqp.values import Table, Value
from gateway.fidelity.reserved import RESERVED, RESERVED_OCTETS, entry_of, without_reserved

HELD: Final = frozenset({"x-death", "CC", "BCC", "x-delay"})
"""Headers that brokers act upon; beside all that begin with HELD_PREFIX."""
COPIES: Final = frozenset({"CC", "BCC"})
"""Those that route copies: held however many are held already."""
HELD_PREFIX: Final = "x-first-death-"
HELD_MAX: Final = 64
"""Most headers that are held in one message, beside COPIES; beyond that they stay where they are."""
_NOBODY: Final[frozenset[str]] = frozenset()

_may_hold: Final = re.compile(rb"\x07x-death|\x02CC|\x03BCC|\x07x-delay|x-first-death-").search


def is_held(name: str) -> bool:
    """Whether brokers act upon the header."""
    return name in HELD or name.startswith(HELD_PREFIX)


def forward(
    message: Message,
    entries: Mapping[str, str],
    *,
    release: frozenset[str] = _NOBODY,
    set_headers: Mapping[str, Value] | None = None,
    remove_headers: Collection[str] = (),
) -> Message:
    """The message as a bridge sends it on: entries added to the reserved header, in place of those of the same names;
    headers that brokers act upon moved into it, or out of it again where they are in ``release``.

    Args:
        set_headers: Headers to set, in place of those of the same names, else behind the others.
        remove_headers: Headers to take out, whether they are held or not. The reserved header is not one of them.

    Raises:
        FrameSyntaxError: the properties had to be decoded and are malformed.
    """
    raw = message.raw
    if raw is not None and raw.seam is not None and not set_headers and not remove_headers:
        octets = raw.octets
        if not _may_hold(octets):  # released headers that are held contain their names, too
            spliced = raw.seam.splice(octets, entries)
            if spliced is not None:
                return Message(message.body, None, RawProperties(spliced, raw.dialect, raw.decode, raw.seam))
    properties = message.properties
    before = properties.headers
    entry: Table = dict(entry_of(before))
    headers: Table = {key: value for key, value in before.items() if key != RESERVED} if before else {}
    if before is not None and not before:
        entry["empty"] = "1"
    held, places = held_in(entry)
    if released := [name for name in held if name in release]:
        headers = put_back(headers, held, places, released)
    for name in remove_headers:
        headers.pop(name, None)
        held.pop(name, None)
    if set_headers:
        headers.update({name: value for name, value in set_headers.items() if name != RESERVED})
    for place, name in enumerate(list(headers)):
        if name not in release and is_held(name) and (len(held) < HELD_MAX or name in COPIES):
            held[name] = headers.pop(name)
            places[name] = place
    if held:
        entry["held"] = held
        entry["held_at"] = ",".join(str(places[name]) for name in held)
    else:
        entry.pop("held", None)
        entry.pop("held_at", None)
    entry.update(entries)
    headers[RESERVED] = entry
    return message.altered(with_headers(properties, headers))


def held_in(entry: Mapping[str, Value]) -> tuple[Table, dict[str, int]]:
    """The headers that the reserved header holds, and the place of each among the headers as they were."""
    held, at = entry.get("held"), entry.get("held_at")
    if not isinstance(held, dict) or len(held) > HELD_MAX + len(COPIES):
        return {}, {}
    held = {name: value for name, value in held.items() if is_held(name)}
    numbers = at.split(",", HELD_MAX + len(COPIES)) if isinstance(at, str) else []
    places = dict.fromkeys(held, 1 << 16)
    for name, number in zip(held, numbers, strict=False):
        if number.isascii() and number.isdigit() and len(number) <= 5:
            places[name] = int(number)
    return held, places


def put_back(headers: Table, held: Table, places: Mapping[str, int], names: Collection[str]) -> Table:
    """``headers`` with some that were held, each at its old place. They are taken out of ``held``; a header that has
    come to be there meanwhile stays as it is."""
    items = list(headers.items())
    for name in sorted(names, key=lambda name: places[name]):
        value = held.pop(name)
        if name not in headers:
            items.insert(places[name], (name, value))
    return dict(items)


def is_bare(message: Message) -> bool:
    """Whether the message is undecoded and sound, without the reserved header and headers that brokers act upon: what
    :func:`forward` would add to it :func:`strip` would take off again, and nothing else."""
    raw = message.raw
    if raw is None or raw.seam is None or RESERVED_OCTETS in raw.octets or _may_hold(raw.octets):
        return False
    return raw.seam.read(raw.octets) is not None


def strip(message: Message) -> Message:
    """The message without the reserved header and all that it carries, for the last hop: to be sent so that what the
    target's version cannot carry is left out.

    Raises:
        FrameSyntaxError: the properties had to be decoded and are malformed.
    """
    raw = message.raw
    if raw is not None and RESERVED_OCTETS not in raw.octets:
        return Message(message.body, None, raw, ())
    properties = message.properties
    headers = properties.headers
    left_out: tuple[str, ...] = ()
    if headers is not None and RESERVED in headers:
        left_out = tuple(held_in(entry_of(headers))[0])
        properties = with_headers(properties, without_reserved(headers))
    return message.altered(properties, left_out)
