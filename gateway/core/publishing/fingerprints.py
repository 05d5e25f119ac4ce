"""What tells a publish from another one under the same idempotency key: its meaning, and not how it was written.

The meaning of a message is where it goes (broker, exchange, routing key), ``mandatory``, body, properties and headers;
of a request also whether it is a batch, and when its messages are to be published. The order of the members of a JSON
object does not count.

An earlier release kept digests of other things: of a request its octets, of a message its envelope, with ``mandatory``
false unless given. Keys that it left in the ledger still match (``older``), until they expire
(``ledger.key_retention``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

from gateway.core.publishing import envelopes
from gateway.core.publishing.publisher import Publication

Older: TypeAlias = Callable[[], Collection[bytes]]
"""Makes the fingerprints that an earlier release kept for the same."""
_MESSAGE: Final = b"message 2\n"
_REQUEST: Final = b"request 2\n"


def of_message(broker: str, exchange: str, item: Publication) -> bytes:
    """The fingerprint of one message."""
    digest = sha256(_MESSAGE)
    message = item.message if item.given is None else item.given
    for octets in (*_octets(broker, exchange, item.routing_key), message.body):
        digest.update(len(octets).to_bytes(8, "big"))
        digest.update(octets)
    digest.update(envelopes.meaning(message, item.mandatory))
    return digest.digest()


def of_request(broker: str, exchange: str, items: Sequence[Publication | str], *, batch: bool, later: bool) -> bytes:
    """The fingerprint of a request. An item that is refused is the code of its problem."""
    digest = sha256(_REQUEST)
    digest.update(bytes((batch, later)))
    for item in items:
        if isinstance(item, str):
            digest.update(sha256(item.encode()).digest())
            continue
        when = item.not_before if item.delay_seconds is None else item.delay_seconds
        digest.update(of_message(broker, exchange, item))
        digest.update(b"now\n" if when is None else f"{type(when).__name__} {when}\n".encode())
    return digest.digest()


def older_of_message(broker: str, exchange: str, item: Publication, envelope: bytes) -> Older:
    """What an earlier release kept for a message, whose envelope this is."""

    def older() -> list[bytes]:
        found = [_of_envelope(broker, exchange, item.routing_key, envelope)]
        if not item.is_mandatory_given:
            left_out = envelopes.encode(item.message, False)
            found.append(_of_envelope(broker, exchange, item.routing_key, left_out))
        return found

    return older


def _of_envelope(broker: str, exchange: str, routing_key: str, envelope: bytes) -> bytes:
    digest = sha256()
    for octets in _octets(broker, exchange, routing_key):
        digest.update(len(octets).to_bytes(4, "big"))
        digest.update(octets)
    digest.update(envelope)
    return digest.digest()


def _octets(*texts: str) -> list[bytes]:
    return [text.encode("utf-8", "surrogateescape") for text in texts]
