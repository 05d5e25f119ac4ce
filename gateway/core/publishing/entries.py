"""Outbox entries and publications: how the ledger holds a message that still has to be sent, and how it is sent."""

from __future__ import annotations

from gateway.core.publishing import envelopes
from gateway.core.publishing.publisher import Publication, describe, version_name
from gateway.ledger import OutboxEntry, id_text
from gateway.upstreams import Upstream


def keyed_entry(
    upstream: Upstream, exchange: str, item: Publication, client: str, at: int, payload: bytes = b""
) -> OutboxEntry:
    """Return the entry of a message whose request holds an Idempotency-Key, as the claim of the key takes it.

    Args:
        client: the name of the API key that publishes it.
        at: when it was taken, in microseconds since 1970.
        payload: the message, encoded before; empty: it is encoded here.
    """
    return OutboxEntry(
        message_id=item.id,
        broker=upstream.name,
        exchange=exchange,
        routing_key=item.routing_key,
        payload=payload or envelopes.encode(item.message, item.mandatory),
        at=at,
        message=describe(upstream.name, version_name(upstream), exchange, item, client, "http"),
    )


def publication_of(entry: OutboxEntry) -> Publication:
    """Return what is to be sent of an entry. It is marked as resent if it may have been sent before.

    Raises:
        EnvelopeError: the payload is damaged.
    """
    message, mandatory = envelopes.decode(entry.payload)
    if not entry.key:  # of an earlier release: then false was the default, and nobody chose it
        mandatory = mandatory or entry.reason.get("mandatory") is not False
    resent = entry.doubtful or entry.reason.get("resent") is True
    return Publication(entry.routing_key, message, mandatory, entry.message_id, id_text(entry.message_id), resent)
