"""One request to an endpoint: written in its form, signed, sent through the guard, and what came of it.

Each failure is part of the :class:`SendOutcome`; what it means for the message is judged elsewhere
(:mod:`gateway.webhooks.attempts.schedule`). One deadline covers everything, a token of OAuth2 included.

Receivers know a repeat by its ``webhook-id``, so a request may go out twice where a kept connection was closed just
then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.budgets import ShareHolder
from gateway.config import EndpointTls
from gateway.errors import ConfigurationError, EncodeError, GatewayError, OutboundTimeout, public_error
from gateway.observing.telemetry import log
from gateway.outbound import GuardedTransport, HttpAnswer
from gateway.runtime.clock import clock
from gateway.webhooks.attempts.auth import EndpointTokens, bearer, fixed
from gateway.webhooks.attempts.excerpts import excerpt, secrets_of
from gateway.webhooks.attempts.forms import FormedRequest, Header, PushedMessage, write
from gateway.webhooks.attempts.recent import Attempt, RecentAttempts, SentRequest
from gateway.webhooks.attempts.schedule import DROP_HEADER, STATUSES, asks_to_drop
from gateway.webhooks.attempts.signing import ID, TIMESTAMP, sign
from gateway.webhooks.attempts.traces import PushTrace, PushTraces
from gateway.webhooks.endpoint import Endpoint

__all__ = ["PushedMessage", "SendOutcome", "Sender"]

NO_TLS: Final = EndpointTls()
UNAUTHORIZED: Final = 401
SUCCESS: Final = STATUSES[0]


class SendOutcome(msgspec.Struct, kw_only=True):
    """What came of a request: a status or an error; or neither, where no message could be sent in this form."""

    id: str = ""
    """``webhook-id`` of the request."""
    status: int | None = None
    error: GatewayError | None = None
    """Why there is no answer, as everybody may know it."""
    detailed: GatewayError | None = None
    """Why there is no answer, for operators: with addresses of their network."""
    retry_after: str | None = None
    """The header, as it came."""
    drop: bool = False
    """The answer asks to drop the message (:data:`gateway.webhooks.attempts.schedule.DROP_HEADER`)."""
    body: bytes = b""
    """The first 16 kB of the answer's body."""
    truncated: bool = False
    """There was more."""
    excerpt: str = ""
    """Of an answer that is no success: what may be kept of its body (:mod:`gateway.webhooks.attempts.excerpts`)."""
    content_type: str | None = None
    content_encoding: str | None = None
    """Not asked for, and there all the same."""
    seconds: float = 0.0
    resent: bool = False
    """The request went out twice, because a kept connection was closed without an answer."""
    undeliverable: dict[int, str] = {}
    """Messages that were not in the request, because this form can never carry them, by their index; and why."""


class Sender:
    """Makes requests."""

    def __init__(
        self, transport: GuardedTransport, tokens: EndpointTokens | None = None, *, traces: PushTraces | None = None
    ) -> None:
        """``traces`` None: nothing is traced."""
        self.transport = transport
        self._traces = traces
        self.recent = RecentAttempts()
        """The last requests to each endpoint."""
        self._tokens = tokens if tokens is not None else EndpointTokens(transport)

    async def close(self) -> None:
        """Ask for no tokens any more. The transport is closed by its maker."""
        await self._tokens.close()

    async def send(
        self,
        endpoint: Endpoint,
        items: Sequence[PushedMessage],
        timestamp: int,
        fresh: bool = False,
        client: ShareHolder | None = None,
    ) -> SendOutcome:
        """Send messages as one request. Never raises but CancelledError.

        Args:
            client: whose share of the lookups is used; None: the endpoint's.
            timestamp: seconds since 1970, for ``webhook-timestamp`` and to choose the keys that sign.
            fresh: on a connection of its own.
        """
        began = clock.monotonic()
        outcome = SendOutcome()
        push: PushTrace | None = None
        attempt = self.recent.begin(endpoint, items)
        sent = attempt.sent
        try:
            push = self._traces.begin(endpoint, items) if self._traces is not None else None
            written = write(endpoint.settings, items)
            outcome.id, outcome.undeliverable = written.id, written.undeliverable
            if len(written.undeliverable) < len(items):
                told = push.headers if push is not None else ()
                who = client if client is not None else endpoint_client(endpoint.name)
                answer = await self._send(endpoint, written, timestamp, began, told, fresh, sent, who)
                self._note(outcome, answer)
                if not SUCCESS.first <= answer.status <= SUCCESS.last:
                    outcome.excerpt = excerpt(
                        answer.body, outcome.content_encoding, secrets_of(endpoint, sent.authorizations)
                    )
        except GatewayError as error:
            outcome.detailed = error.with_traceback(None)  # it holds this frame, which holds the outcome
            outcome.error = public_error(error)
            if outcome.error is not error:
                log("push.not_reached", logging.WARNING, endpoint=endpoint.name, code=error.code, reason=str(error))
        except Exception as error:  # a fault of ours: logged, and tried again
            log("push.request_failed", logging.ERROR, error, endpoint=endpoint.name)
            outcome.error = GatewayError("an unexpected error; it is in the gateway's log")
        if push is not None:
            push.end(outcome.status, outcome.error, resent=outcome.resent)
        outcome.seconds = clock.monotonic() - began
        if len(outcome.undeliverable) < len(items):
            self._keep(attempt, outcome)
        return outcome

    def _keep(self, attempt: Attempt, outcome: SendOutcome) -> None:
        """For those who look at the endpoint."""
        attempt.webhook_id, attempt.status, attempt.seconds = outcome.id, outcome.status, outcome.seconds
        if outcome.error is not None:
            attempt.code, attempt.reason = outcome.error.code, str(outcome.error)
        attempt.resent, attempt.content_type = outcome.resent, outcome.content_type
        attempt.encoding, attempt.body, attempt.kept = outcome.content_encoding, outcome.body, outcome.excerpt
        self.recent.end(attempt)

    @staticmethod
    def _note(outcome: SendOutcome, answer: HttpAnswer) -> None:
        outcome.status = answer.status
        outcome.body, outcome.truncated, outcome.resent = answer.body, answer.truncated, answer.resent
        outcome.retry_after = _value(answer, b"retry-after")
        outcome.drop = asks_to_drop(_value(answer, DROP_HEADER.lower().encode()))
        outcome.content_type = _value(answer, b"content-type")
        outcome.content_encoding = _value(answer, b"content-encoding")

    async def _send(
        self,
        endpoint: Endpoint,
        written: FormedRequest,
        timestamp: int,
        began: float,
        told: Sequence[Header],
        fresh: bool,
        sent: SentRequest,
        client: ShareHolder,
    ) -> HttpAnswer:
        """``told``: headers that name the trace; ``sent`` gets what was sent."""
        settings = endpoint.settings
        headers = [*written.headers, *endpoint.headers, *told, *_signed(endpoint, written, timestamp)]
        sent.headers, sent.octets = headers, len(written.body)
        auth = settings.auth
        if auth.kind != "oauth2":
            if (value := fixed(auth)) is not None:
                sent.authorizations.append(value)
                headers.append((b"authorization", value))
            return await self._post(endpoint, headers, written.body, began, fresh, client)
        token = await self._tokens.get(auth, self._left(endpoint, began), client)
        value = bearer(token)
        sent.authorizations.append(value)
        answer = await self._post(endpoint, [*headers, (b"authorization", value)], written.body, began, fresh, client)
        if answer.status != UNAUTHORIZED:
            return answer
        other = await self._tokens.get(auth, self._left(endpoint, began), client, refused=token)
        if other == token:
            return answer
        value = bearer(other)
        sent.authorizations.append(value)
        return await self._post(endpoint, [*headers, (b"authorization", value)], written.body, began, fresh, client)

    async def _post(
        self, endpoint: Endpoint, headers: list[Header], body: bytes, began: float, fresh: bool, client: ShareHolder
    ) -> HttpAnswer:
        settings = endpoint.settings
        return await self.transport.send(
            "POST",
            settings.url,
            headers,
            body,
            within=self._left(endpoint, began),
            repeatable=True,
            fresh=fresh,
            tls=None if settings.tls == NO_TLS else settings.tls,
            client=client,
        )

    @staticmethod
    def _left(endpoint: Endpoint, began: float) -> float:
        """Seconds up to the deadline. Raises OutboundTimeout where it is past."""
        left = began + endpoint.settings.deadline - clock.monotonic()
        if left <= 0:
            raise OutboundTimeout("the deadline passed before the request was sent")
        return left


def endpoint_client(name: str) -> ShareHolder:
    """Return the client whose share requests to an endpoint use."""
    return ShareHolder(name, kind="endpoint")


def _signed(endpoint: Endpoint, written: FormedRequest, timestamp: int) -> list[Header]:
    """The headers of Standard Webhooks; without keys the id and the time alone."""
    keys = endpoint.signing_keys(timestamp)
    missing = set(endpoint.settings.signing).difference(key.scheme for key in keys)
    if missing:  # better late than unsigned
        raise ConfigurationError(f"the endpoint has no key of {', '.join(sorted(missing))} yet")
    if keys:
        return sign(keys, written.id, timestamp, written.body)
    try:
        return [(ID, written.id.encode("ascii")), (TIMESTAMP, b"%d" % timestamp)]
    except UnicodeEncodeError:
        raise EncodeError(f"webhook id: {written.id[:80]!r} is not printable ASCII") from None


def _value(answer: HttpAnswer, name: bytes) -> str | None:
    value = answer.header(name)
    return None if value is None else value.decode("latin-1")
