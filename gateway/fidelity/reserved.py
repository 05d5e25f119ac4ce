"""The one header that belongs to the gateway, a table, and its entries that are strings.

=============  ======================================================================================================
entry          what it says
=============  ======================================================================================================
``id``         the gateway's id of the message (UUIDv7)
``origin``     the id by which a redelivery is recognized, over any number of bridges
``hops``       how many bridges the message has passed, in decimal
``via``        their names, separated by commas
``resent``     "1" where it was sent again after an unknown outcome, so that it may be there twice
``reason``     why it is a dead letter
``code``       the same in one stable word: see :mod:`gateway.fidelity.deaths`
``at``         when it became one, RFC 3339
``letter``     another one for each dead letter of a subscription
``bridge``, ``subscription``, ``tap``    who put it there
``broker``, ``queue``, ``exchange``, ``routing_key``    where a dead letter came from
``replay``     the replay that sent it once more, and ``replay_of`` the id of the original
``user_id``    the user-id that the publisher gave, where a broker would refuse it; a claim, no more
``properties``  table: name -> original, or ``{"value": original, "as": what became of it}`` where that cannot be
               computed from the original; written and read by :mod:`gateway.fidelity.homes`
``types``      JSON: ``[[path, original type], ...]`` of header values that were reshaped
``type``       the name of a header that was added to hold the property ``type``
``empty``      "1" where the message has a table of headers, but none in it
``held``       table: headers that brokers act upon; see :mod:`gateway.fidelity.forwarding`
``held_at``    where among the headers they were, as decimal numbers separated by commas
=============  ======================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.amqp.message import Message, Properties, with_headers
from gateway.amqp.values import Table, Value

RESERVED: Final = "x-gateway"
"""Its name."""
RESERVED_OCTETS: Final = RESERVED.encode()

CONSUMED: Final = frozenset({"properties", "types", "type"})
"""The entries that a translation writes and the next one takes out."""
_carries: Final = re.compile(rb"[\x04\x05\x0a](?:type|types|properties)").search
_NOTHING: Final[Mapping[str, str]] = {}


def annotate(properties: Properties, **entries: str) -> Properties:
    """``properties`` with entries added to the reserved header, last of all headers."""
    headers = properties.headers
    if not headers:  # as most messages are
        if headers is not None:
            entries["empty"] = "1"
        return with_headers(properties, {RESERVED: {**entries}})
    entry: Table = {**entry_of(headers), **entries}
    rest = {key: value for key, value in headers.items() if key != RESERVED}
    return with_headers(properties, {**rest, RESERVED: entry})


def entry_of(headers: Mapping[str, Value] | None) -> Mapping[str, Value]:
    """What the reserved header holds; nothing where it is absent or no table."""
    entry = headers.get(RESERVED) if headers else None
    return entry if isinstance(entry, dict) else _NOTHING


def annotation(properties: Properties, name: str) -> str | None:
    """An entry of the reserved header, None where it is absent or no string."""
    value = entry_of(properties.headers).get(name)
    return value if isinstance(value, str) else None


def raw_annotations(message: Message) -> Mapping[str, str]:
    """The entries of the reserved header that are strings, without decoding the other properties where that can be
    helped: 0.2 microseconds where there is no such header.

    Raises:
        FrameSyntaxError: the properties had to be decoded and are malformed.
    """
    raw = message.raw
    if raw is not None:
        if RESERVED_OCTETS not in raw.octets:
            return _NOTHING
        if raw.seam is not None and (found := raw.seam.read(raw.octets)) is not None:
            return found
    entry = entry_of(message.properties.headers)
    return {name: value for name, value in entry.items() if isinstance(value, str)}


def passes_as_it_is(octets: bytes) -> bool:
    """Whether undecoded properties mean the same to every version with their encoding: nothing in them was reshaped
    for a broker that can carry less. False may also mean: look closer."""
    return RESERVED_OCTETS not in octets or _carries(octets) is None


def without_reserved(headers: Table) -> Table | None:
    """``headers`` without the reserved one; None where there were none before it came."""
    rest = {key: value for key, value in headers.items() if key != RESERVED}
    return rest if rest or "empty" in entry_of(headers) else None
