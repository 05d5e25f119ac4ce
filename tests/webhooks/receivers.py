"""Receivers of webhooks, good and bad, as one real server: what each does is its path.

:data:`RECEIVERS` is the table; the server is :func:`tests.outbound.endpoint.endpoint`, which remembers what it got.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from gateway.amqp.message import Message, Properties
from gateway.config import EndpointSettings
from gateway.errors import AnswerCut, AnswerHeadTooLarge, GatewayError, OutboundTimeout
from gateway.ledger import MessageIds, id_text
from gateway.webhooks.attempts.forms import PushedMessage
from gateway.webhooks.attempts.schedule import AttemptOutcome
from gateway.webhooks.attempts.signing import SecretKey, SharedSecret, VerifyingKey, verify
from gateway.webhooks.attempts.signing import SignatureOutcome as Signed
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.settings.keys import HeldKey
from tests.outbound.endpoint import BOMB, Request


@dataclass(frozen=True)
class Receiver:
    """What a receiver does, and how that is handled."""

    path: str
    outcome: AttemptOutcome
    status: int | None = None
    error: type[GatewayError] | None = None
    body: int = 0
    """Octets of its answer that are kept."""
    truncated: bool = False
    retry_after: str | None = None


RECEIVERS: dict[str, Receiver] = {
    "200": Receiver("/200", AttemptOutcome.DELIVERED, 200, body=2),
    "301 to loopback": Receiver("/moved", AttemptOutcome.RETRY, 301),
    "404": Receiver("/404", AttemptOutcome.RETRY, 404, body=12),
    "410": Receiver("/410", AttemptOutcome.DISABLE, 410),
    "429 with Retry-After": Receiver("/429", AttemptOutcome.PAUSE, 429, retry_after="120"),
    "500": Receiver("/500", AttemptOutcome.RETRY, 500, body=2),
    "503 with a date": Receiver("/503", AttemptOutcome.PAUSE, 503, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
    "never": Receiver("/never", AttemptOutcome.RETRY, error=OutboundTimeout),
    "one octet at a time": Receiver("/drip-body", AttemptOutcome.RETRY, error=OutboundTimeout),
    "one octet of the head at a time": Receiver("/drip-head", AttemptOutcome.RETRY, error=OutboundTimeout),
    "hangs up": Receiver("/hang-up", AttemptOutcome.RETRY, error=AnswerCut),
    "resets": Receiver("/reset", AttemptOutcome.RETRY, error=AnswerCut),
    "10 GB": Receiver("/10-gb", AttemptOutcome.DELIVERED, 200, body=16_384, truncated=True),
    "gzip bomb": Receiver("/gzip-bomb", AttemptOutcome.DELIVERED, 200, body=len(BOMB)),
    "100,000 headers": Receiver("/many-headers", AttemptOutcome.RETRY, error=AnswerHeadTooLarge),
}
"""Name -> receiver. One that drips answers an octet every 20 ms, and is given less time than that takes."""

SHARED, SECRET = SharedSecret(bytes(range(32))), SecretKey(bytes(range(1, 33)))
"""Keys of the endpoints that are made here."""
_ids = MessageIds()
_numbers = count(1)


def endpoint_of(url: str, **settings: Any) -> Endpoint:
    """An active endpoint with these settings, which signs with :data:`SHARED` and :data:`SECRET`."""
    settings.setdefault("signing", ("v1", "v1a"))
    keys = {
        "v1": HeldKey("v1", "shared", 0.0, None, False, SHARED),
        "v1a": HeldKey("v1a", SECRET.public.thumbprint, 0.0, None, False, SECRET),
    }
    found = EndpointSettings(url=url, **settings)
    return Endpoint("shop", found, "etag", False, EndpointState.ACTIVE, "", tuple(keys[each] for each in found.signing))


def message(body: bytes = b'{"n":1}', attempt: int = 1, **properties: Any) -> PushedMessage:
    """A message on its way."""
    properties.setdefault("content_type", "application/json")
    return PushedMessage(
        id_text(_ids()), id_text(_ids()), "billing", "shop-broker", "orders", "amq.topic", f"order.{next(_numbers)}",
        Message(body, Properties(**properties)), attempt,
    )  # fmt: skip


def signed(request: Request, now: float, *keys: VerifyingKey) -> Signed:
    """How a receiver with these keys judges a request."""
    headers = {name.encode(): value.encode("latin-1") for name, value in request.headers.items()}
    return verify(keys, headers, request.body, now)
