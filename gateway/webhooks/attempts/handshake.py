"""The ownership handshake: does this endpoint want to be called by us at all?

As "HTTP 1.1 Web Hooks for Event Delivery" of CloudEvents 1.0 has it (section 4): an ``OPTIONS`` request names who would
call, and how often; the answer allows it by naming the caller, or ``*``, and says how often at most. Nothing secret is
in that request, for the endpoint has not agreed to anything yet.
"""

from __future__ import annotations

import math
import re
from typing import Final

from gateway.budgets import ShareHolder
from gateway.config import EndpointSettings, EndpointTls
from gateway.errors import OutboundFailed
from gateway.outbound import NOBODY, GuardedTransport, HttpAnswer

REQUEST_ORIGIN, REQUEST_RATE = b"webhook-request-origin", b"webhook-request-rate"
ALLOWED_ORIGIN, ALLOWED_RATE = b"webhook-allowed-origin", b"webhook-allowed-rate"
MINUTE: Final = 60.0
"""Rates are counted per minute."""
RATE_MAX: Final = 999_999_999.0
"""Greatest number of requests a minute that is asked for; that of an answer has no more digits either."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


class HandshakeRefused(OutboundFailed):
    """The endpoint did not allow us to call it."""


async def ask(
    transport: GuardedTransport, settings: EndpointSettings, origin: str, client: ShareHolder = NOBODY
) -> float:
    """Ask an endpoint whether ``origin`` may call it; returns the requests a second that it allows, 0 for any number.

    Raises:
        OutboundFailed: it does not say so, or there is no answer.
    """
    headers = [(REQUEST_ORIGIN, origin.encode("ascii", "replace"))]
    if settings.rate:
        headers.append((REQUEST_RATE, b"%d" % max(1, math.ceil(min(settings.rate * MINUTE, RATE_MAX)))))
    answer = await transport.send(
        "OPTIONS",
        settings.url,
        headers,
        within=settings.deadline,
        tls=None if settings.tls == EndpointTls() else settings.tls,
        client=client,
    )
    return _judge(answer, origin)


def _judge(answer: HttpAnswer, origin: str) -> float:
    if not 200 <= answer.status <= 299:
        raise HandshakeRefused(f"it answered OPTIONS with {answer.status}", sent=True, status=answer.status)
    allowed = _value(answer, ALLOWED_ORIGIN)
    if allowed is None:
        raise HandshakeRefused("its answer to OPTIONS has no WebHook-Allowed-Origin", sent=True, status=answer.status)
    if allowed != "*" and allowed.lower() != origin.lower():
        raise HandshakeRefused(f"it allows {allowed[:80]!r}, and we are {origin!r}", sent=True, status=answer.status)
    rate = _value(answer, ALLOWED_RATE)
    if rate is None or rate == "*":
        return 0.0
    if not _NUMBER.fullmatch(rate) or int(rate) == 0:
        raise HandshakeRefused(
            f"its WebHook-Allowed-Rate is {rate[:80]!r}, no number of requests a minute", sent=True,
            status=answer.status,
        )  # fmt: skip
    return int(rate) / MINUTE


def _value(answer: HttpAnswer, name: bytes) -> str | None:
    value = answer.header(name)
    return None if value is None else value.decode("latin-1").strip()
