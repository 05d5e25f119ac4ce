"""Every error of the gateway, in one tree.

::

    GatewayError
    ├── FrameSyntaxError          octets that no correct peer sends
    ├── LocalError                what we were asked to do cannot be done; nothing was sent
    │   ├── StateError            the state of the session or channel forbids it
    │   ├── EncodeError           a value does not fit the version (names field, value, limit)
    │   └── Unsupported           this version or broker has no such thing
    ├── RemoteError               the broker said no, with an AMQP reply code
    │   ├── NotFound              404
    │   ├── AccessRefused         403
    │   ├── PreconditionFailed    406
    │   └── ResourceLocked        405
    ├── Unroutable                the broker kept nothing: no queue was bound
    ├── PublishRefused            the broker refused the message (nack, reject, resource limit)
    ├── OutcomeUnknown            the channel died or no confirm came; the message may or may not be safe
    ├── BrokerUnavailable         absent, starting or blocked; nothing was sent
    ├── AuthenticationFailed      the broker refused our credentials
    ├── ProtocolMismatch          the far end speaks another version, or no AMQP
    ├── LeaseLost                 the channel that held a delivery is gone
    ├── LimitExceeded             over a documented limit (names it)
    ├── LedgerUnavailable         the ledger is locked, full or away; nothing was promised
    │   └── NotRecorded           the broker answered, but the ledger could not record it
    ├── EntriesRefused            the ledger cannot hold some of the entries; the others are written
    ├── EtagMismatch              the resource is not the one that If-Match names
    ├── NoSuchResource            we know no broker, subscription or message of that name
    │   ├── NoSuchBroker
    │   ├── NoSuchSubscription
    │   └── NoSuchMessage
    ├── ReadOnly                  what the configuration file defines is not changed over HTTP
    ├── KeyReused                 the Idempotency-Key belongs to another request
    ├── KeyRunning                the first request with this Idempotency-Key is still under way
    ├── Overloaded                a bound on work under way is reached; nothing was done
    └── ConfigurationError        a setting is wrong (names it)

Each class has a stable ``code`` (documented in ``docs/errors.md``), says whether repeating may help, and
what is known of the message: ``not_sent``, ``refused`` or ``unknown``.
"""

from __future__ import annotations

from typing import ClassVar


class GatewayError(Exception):
    """Base of all errors that a caller of the gateway may see."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[str] = "not_sent"
    resent: bool = False
    """Of a publish: it was sent a second time, so there may be a copy for each."""


class FrameSyntaxError(GatewayError):
    """Octets that break the specification's grammar. ``reply_code`` is the close code that answers them
    (classic 501 frame-error, 502 syntax-error, 505 unexpected-frame; 0-10 framing-error)."""

    code = "frame_syntax"

    def __init__(self, text: str, reply_code: int = 501) -> None:
        super().__init__(text)
        self.reply_code = reply_code


class LocalError(GatewayError):
    """An operation that cannot be carried out; nothing was sent."""

    code = "local"


class StateError(LocalError):
    """The connection or channel is not in a state in which this may be sent."""

    code = "state"


class EncodeError(LocalError):
    """A value that does not fit its field. The text names the field, the value and the limit."""

    code = "invalid_value"


class Unsupported(LocalError):
    """The version or the broker has no such thing."""

    code = "unsupported"


class RemoteError(GatewayError):
    """The broker closed the channel or answered with an exception."""

    code = "broker_error"
    outcome = "refused"

    def __init__(self, reply_code: int, reply_text: str) -> None:
        super().__init__(f"{reply_code} {reply_text}")
        self.reply_code = reply_code
        self.reply_text = reply_text


class NotFound(RemoteError):
    """404: no such queue, exchange or virtual host."""

    code = "not_found"


class AccessRefused(RemoteError):
    """403: the login may not do this."""

    code = "access_refused"


class PreconditionFailed(RemoteError):
    """406: declared before with other arguments, or a delivery that is not outstanding."""

    code = "precondition_failed"


class ResourceLocked(RemoteError):
    """405: exclusive to another connection."""

    code = "resource_locked"


def remote_error(reply_code: int, reply_text: str) -> RemoteError:
    """The :class:`RemoteError` for an AMQP reply code."""
    return _BY_REPLY_CODE.get(reply_code, RemoteError)(reply_code, reply_text)


_BY_REPLY_CODE: dict[int, type[RemoteError]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
}


class Unroutable(GatewayError):
    """No queue took the message; the broker kept no copy."""

    code = "unroutable"
    outcome = "refused"


class PublishRefused(GatewayError):
    """The broker refused to take responsibility for the message."""

    code = "publish_refused"
    retryable = True
    outcome = "refused"


class OutcomeUnknown(GatewayError):
    """Written to the broker, but no outcome came back. Repeat with the same Idempotency-Key."""

    code = "outcome_unknown"
    retryable = True
    outcome = "unknown"


class BrokerUnavailable(GatewayError):
    """The broker is absent, still starting, or blocks publishers. Nothing was sent."""

    code = "broker_unavailable"
    retryable = True
    retry_after: float = 1.0
    """When it may be worth a new try, in seconds."""

    def __init__(self, text: str, retry_after: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class AuthenticationFailed(BrokerUnavailable):
    """The broker refused the credentials or the virtual host of the configuration."""

    code = "authentication_failed"


class ProtocolMismatch(BrokerUnavailable):
    """The far end answered with another protocol header, with garbage, or not at all."""

    code = "protocol_mismatch"


class LeaseLost(GatewayError):
    """The channel that held this delivery is gone; the broker delivers the message again."""

    code = "lease_lost"


class LimitExceeded(GatewayError):
    """Over a documented limit."""

    code = "limit_exceeded"

    def __init__(self, text: str, limit: str) -> None:
        super().__init__(text)
        self.limit = limit


class LedgerUnavailable(GatewayError):
    """The ledger cannot be written; nothing was promised."""

    code = "ledger_unavailable"
    retryable = True


class NotRecorded(LedgerUnavailable):
    """The broker has answered, but the ledger could not record it: the message may well be safe."""

    code = "not_recorded"
    outcome = "unknown"


class NoSuchResource(GatewayError):
    """The gateway knows nothing of that name."""

    code = "no_such_resource"


class NoSuchBroker(NoSuchResource):
    """No broker of that name is configured."""

    code = "broker_not_found"


class NoSuchSubscription(NoSuchResource):
    """No subscription of that name exists."""

    code = "subscription_not_found"


class NoSuchMessage(NoSuchResource):
    """The ledger knows no message with that id."""

    code = "message_not_found"


class ReadOnly(GatewayError):
    """Defined by the configuration file; change it there."""

    code = "read_only"


class KeyReused(GatewayError):
    """The Idempotency-Key was used for a request with another body or path."""

    code = "idempotency_key_reused"


class KeyRunning(GatewayError):
    """The first request with this Idempotency-Key has no answer yet."""

    code = "idempotency_key_running"
    retryable = True
    outcome = "unknown"


class Overloaded(GatewayError):
    """A bound on work under way is reached, or the gateway is shutting down; nothing was done."""

    code = "overloaded"
    retryable = True


class EntriesRefused(GatewayError):
    """The database cannot hold some of the entries of a call: ``refused`` says why, by their index. All others
    are durable."""

    code = "entries_refused"

    def __init__(self, refused: dict[int, str]) -> None:
        index, why = next(iter(refused.items()))
        super().__init__(f"{len(refused)} ledger entries refused; entry {index}: {why}")
        self.refused = refused


class EtagMismatch(GatewayError):
    """The resource is not, or is no longer, the one that ``If-Match`` names."""

    code = "etag_mismatch"


class ConfigurationError(GatewayError):
    """A setting is missing or wrong. The text names it."""

    code = "configuration"
