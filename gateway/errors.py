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


class ConfigurationError(GatewayError):
    """A setting is missing or wrong. The text names it."""

    code = "configuration"
