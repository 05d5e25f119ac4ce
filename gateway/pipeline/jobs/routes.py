"""Columns that are read off an event's detail, as expressions of Spark.

The detail is a JSON object, written by the gateway itself, and parsing it costs more than all else that is done with
an event. A name of a bridge, a subscription or a tap holds no character that JSON escapes, and a quotation mark within
a JSON string is always escaped: so ``"bridge":"`` is found in a detail only where that key is, and what follows up to
the next quotation mark is its value. Where the value may hold anything (routing keys) the detail is parsed.

A *route* is what people call the way of a message: ``bridge:NAME``, ``subscription:NAME``, ``tap:NAME``, ``replay``;
of a publish ``BROKER/EXCHANGE``, or with the default exchange ``BROKER//QUEUE``. Routing keys of other exchanges are
left out, for there may be as many as messages.
"""

from __future__ import annotations

from typing import Final

from gateway.ledger.writing.states import EventKind

REPLAY: Final = "replay"
UNKNOWN: Final = "(unknown)"
"""The route of what happened to a message that the ledger has forgotten."""


def name_of(key: str) -> str:
    """The value of a key of the detail that is a name, or NULL. The detail may be cut off behind it."""
    return "CASE " + " ".join(
        f"WHEN locate('{before}', detail) > 0 THEN substring_index(substring_index(detail, '{before}', -1), '\"', 1)"
        for before in (f'"{key}":"', f'"{key}": "')
    ) + " END"  # fmt: skip


def text_of(key: str) -> str:
    """The value of a key of the detail that may be any text, or NULL."""
    return (
        f"CASE WHEN locate('\\\\', detail) = 0 AND locate('\"{key}\":\"', detail) > 0"
        f" THEN substring_index(substring_index(detail, '\"{key}\":\"', -1), '\"', 1)"
        f" ELSE get_json_object(detail, '$.{key}') END"
    )


_NAMELESS: Final = ("accepted", "confirmed", "resent", "unroutable", "refused", "not_sent", "unknown", "scheduled",
                    "cancelled", "received", "replied")  # fmt: skip
"""Kinds of which the detail names no bridge, subscription or tap, or is not asked for it."""
_BRIDGED: Final = (EventKind.PREPARED, EventKind.FORWARDED, EventKind.REDUCED, EventKind.LOOPED)


def _listed(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


HOLDER: Final = f"""
CASE
  WHEN kind IN ({_listed(_BRIDGED)}) THEN concat('bridge:', {name_of("bridge")})
  WHEN kind = 'spooled' THEN concat('tap:', {name_of("tap")})
  WHEN kind = 'confirmed' THEN CASE WHEN locate('"replay":', detail) > 0 THEN '{REPLAY}' END
  WHEN kind = 'replayed' THEN '{REPLAY}'
  WHEN kind IN ({_listed(_NAMELESS)}) THEN NULL
  ELSE coalesce(
    concat('subscription:', {name_of("subscription")}),
    concat('bridge:', {name_of("bridge")}),
    concat('tap:', {name_of("tap")}))
END"""
"""Who of the gateway had to do with it; NULL: nobody but the publisher."""

ROUTE: Final = f"""
coalesce({HOLDER},
  CASE WHEN exchange = '' THEN concat(source_broker, '//', routing_key)
       ELSE concat(source_broker, '/', exchange) END,
  '{UNKNOWN}')"""
"""The route of an event; its columns are those of the log."""
