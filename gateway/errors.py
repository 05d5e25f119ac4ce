"""Every error of the gateway, in one tree.

::

    GatewayError
    ├── FrameSyntaxError          octets that no correct peer sends
    ├── LocalError                what we were asked to do cannot be done; nothing was sent
    │   ├── StateError            the state of the session or channel forbids it
    │   ├── BrokerInUse           something works with the broker (names it)
    │   ├── EndpointInUse         subscriptions push to the endpoint (names them)
    │   ├── EncodeError           a value does not fit the version (names field, value, limit)
    │   └── Unsupported           this version or broker has no such thing
    │       └── NoDeadLetterDestination  nothing says where the queue's rejected messages go
    ├── RemoteError               the broker said no, with an AMQP reply code
    │   ├── NotFound              404
    │   ├── AccessRefused         403
    │   ├── PreconditionFailed    406
    │   ├── ResourceLocked        405
    │   └── MethodNotImplemented  540: the broker has no such method (names it)
    ├── Unroutable                the broker kept nothing: no queue was bound
    ├── PublishRefused            the broker refused the message (nack, reject, resource limit)
    ├── OutcomeUnknown            the channel died or no confirm came; the message may or may not be safe
    ├── BrokerUnavailable         absent, starting or blocked; nothing was sent
    ├── AuthenticationFailed      the broker refused our credentials
    ├── LoginCut                  the broker hung up in the middle of the login
    ├── CertificateRefused        the broker's certificate does not verify, or it does not take ours
    ├── ProtocolMismatch          the far end speaks another version, or no AMQP
    ├── LeaseLost                 the channel that held a delivery is gone
    ├── LimitExceeded             over a documented limit (names it)
    ├── LedgerUnavailable         the ledger is locked, full or away; nothing was promised
    │   ├── CommitUnknown         it was lost in a commit: nobody can tell whether it was written
    │   ├── LedgerFull            its disk is full, but for what is reserved
    │   ├── LedgerDamaged         something in it is not what was written
    │   └── NotRecorded           the broker answered, but the ledger could not record it
    ├── EntriesRefused            the ledger cannot hold some of the entries; the others are written
    ├── ReloadRefused             the new configuration is not taken
    │   └── RestartNeeded         it changes what takes a restart (names it)
    ├── EtagMismatch              the resource is not the one that If-Match names
    ├── NoSuchResource            we know no thing of that name
    │   ├── NoSuchBroker
    │   ├── NoSuchSubscription
    │   ├── NoSuchBridge
    │   ├── NoSuchTap
    │   ├── NoSuchFront
    │   ├── NoSuchFrontClient
    │   ├── NoSuchEndpoint
    │   ├── NoSuchDelivery
    │   ├── NoSuchReplay
    │   ├── NoSuchCursor
    │   ├── NoSuchRun
    │   └── NoSuchMessage
    ├── ReadOnly                  what the configuration file defines is not changed over HTTP
    ├── KeyReused                 the Idempotency-Key belongs to another request
    ├── KeyRunning                the first request with this Idempotency-Key is still under way
    ├── Overloaded                a bound on work under way is reached; nothing was done
    ├── BudgetExceeded            the client holds its share of a resource; nothing was done
    ├── PeerUnavailable           another process of the gateway has to do it; it did not answer
    ├── OutboundFailed            an HTTP request of ours came to no answer
    │   ├── AddressDenied         the guard does not let us call there; no connection was made
    │   ├── ResolveFailed         the host has no address, or the resolver failed
    │   ├── ConnectFailed         nobody took the connection
    │   ├── TlsFailed             a certificate was refused, or the far end speaks no TLS
    │   ├── OutboundTimeout       the deadline over connect, head and body passed
    │   ├── AnswerCut             the far end hung up before its answer was whole
    │   ├── AnswerMalformed       octets that are no HTTP/1.1 answer
    │   ├── AnswerHeadTooLarge    status line and headers over the limit
    │   └── TokenRefused          the server of an endpoint's OAuth2 tokens gave us none
    ├── RangeGone                 rows of a log that were asked for are gone (names which, and why)
    ├── RangeAhead                a log does not go so far yet
    ├── NoArrow                   the service cannot make Arrow: what it takes is not installed
    ├── CursorOwned               somebody else reads the log under that name (names the owner)
    ├── PipelineFault             a job of the pipeline cannot begin, or cannot go on
    │   ├── JavaMissing           there is no Java, or it is too old for Spark
    │   ├── SparkMissing          PySpark, PyArrow or pandas is not there, or not in a version that works
    │   ├── ServiceUnreachable    the gateway that the job works for does not answer
    │   ├── ServiceRefused        the gateway answered, and said no
    │   ├── BadFilter             a filter or a transform that is not what it may be
    │   ├── SourceGone            rows that the job has to read are gone
    │   ├── ArchiveTooNew         written by a newer release, in a way that this one does not know
    │   ├── ArchiveDamaged        a file of the archive is missing, cut short or not what its log says
    │   ├── FingerprintDiffers    the id, or the checkpoint, belongs to a job with other settings
    │   ├── DiskFull              no room left where the job writes
    │   └── Breaks                a comparison found what must not be (names how much)
    ├── BackupRefused             a backup that cannot be restored
    └── ConfigurationError        a setting is wrong (names it)

Each class has a stable ``code`` (documented in ``docs/reference/errors.md``), says whether repeating may help, and
what is known of the message: ``not_sent``, ``refused`` or ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar


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


class EndpointInUse(LocalError):
    """Subscriptions push to the endpoint, so it cannot be deleted. The text names them."""

    code = "endpoint_in_use"


class BrokerInUse(LocalError):
    """Something works with the broker, so it cannot be deleted. The text names it."""

    code = "broker_in_use"


class EncodeError(LocalError):
    """A value that does not fit its field. The text names the field, the value and the limit."""

    code = "invalid_value"

    def __init__(self, text: str, frame_size: int = 0) -> None:
        super().__init__(text)
        self.frame_size = frame_size
        """The frame that a content header takes, where that is over the peer's ``frame_max``; 0: it is not."""


class Unsupported(LocalError):
    """The version or the broker has no such thing."""

    code = "unsupported"


class NoDeadLetterDestination(Unsupported):
    """Rejecting would drop the message: no dead-letter destination is known. The message stays where it is."""

    code = "no_dead_letter_destination"


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


class MethodNotImplemented(RemoteError):
    """540: the broker does not have the method that was asked for, and ends the connection over it. The text names the
    method."""

    code = "method_not_implemented"


def remote_error(reply_code: int, reply_text: str) -> RemoteError:
    """Return the :class:`RemoteError` for an AMQP reply code. A few texts say more than their code does."""
    for words, kind, meaning in _BY_REPLY_TEXT:
        if words in reply_text:
            return kind(reply_code, meaning)
    return _BY_REPLY_CODE.get(reply_code, RemoteError)(reply_code, reply_text)


_BY_REPLY_TEXT: tuple[tuple[str, type[RemoteError], str], ...] = (
    (
        "`transient_nonexcl_queues`",
        PreconditionFailed,
        "this RabbitMQ denies transient queues that are not exclusive. Declare the queue with durable = true.",
    ),
)
"""Words in a reply text, what they stand for, and the sentence that replaces them. RabbitMQ 4 closes the whole
connection with 541 (internal error) for a queue that its settings deny."""


_BY_REPLY_CODE: dict[int, type[RemoteError]] = {
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
    540: MethodNotImplemented,
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
    """Begun, but there is no outcome, or the gateway ended first. Repeat; a publish with the same Idempotency-Key."""

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


class LoginCut(BrokerUnavailable):
    """The broker hung up in the middle of the login. Some refuse in this way, and all do when they come up or go down,
    so that nobody can tell until it was tried again."""

    code = "login_cut"


class CertificateRefused(BrokerUnavailable):
    """The broker's certificate does not verify, or the peer refuses the gateway's: waiting will not help."""

    code = "certificate_refused"


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
    written: int = 0
    """Of a call that was written in parts: so many from its first on are durable all the same, but for ``refused``."""
    refused: Mapping[int, str] = MappingProxyType({})
    """Which of these the ledger cannot hold, and why."""


class CommitUnknown(LedgerUnavailable):
    """The ledger was lost while it committed, and nobody can tell whether it did: what was to be written may be there.
    A caller whose messages it would send gets :class:`OutcomeUnknown` instead."""

    code = "commit_unknown"
    outcome = "unknown"


class LedgerFull(LedgerUnavailable):
    """The ledger's disk is full but for its reserve, or full; nothing was promised."""

    code = "ledger_full"


class LedgerDamaged(LedgerUnavailable):
    """Something in the ledger is not what was written there: its disk, or somebody, has changed it."""

    code = "ledger_damaged"
    retryable = False


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


class NoSuchBridge(NoSuchResource):
    """No bridge of that name exists."""

    code = "no_such_bridge"


class NoSuchTap(NoSuchResource):
    """No tap of that name exists."""

    code = "no_such_tap"


class NoSuchFront(NoSuchResource):
    """No front of that name is in the process that was asked."""

    code = "no_such_front"


class NoSuchFrontClient(NoSuchResource):
    """The front has no client of that number. It may have gone."""

    code = "no_such_front_client"


class NoSuchEndpoint(NoSuchResource):
    """No endpoint of this name."""

    code = "endpoint_not_found"


class NoSuchDelivery(NoSuchResource):
    """The ledger neither owes nor keeps a delivery of this id."""

    code = "delivery_not_found"


class NoSuchReplay(NoSuchResource):
    """No replay of this id."""

    code = "replay_not_found"


class NoSuchCursor(NoSuchResource):
    """No cursor of a log of this name."""

    code = "cursor_not_found"


class NoSuchRun(NoSuchResource):
    """No run of a job of the pipeline of this id."""

    code = "run_not_found"


class NoSuchMessage(NoSuchResource):
    """The ledger knows no message with that id."""

    code = "message_not_found"


class ReadOnly(GatewayError):
    """Defined by the configuration file; change it there."""

    code = "read_only"


class ReloadRefused(GatewayError):
    """The configuration was not read again: what is there now is wrong, or would end something that works. Nothing has
    changed."""

    code = "reload_refused"


class RestartNeeded(ReloadRefused):
    """Settings were changed that only count from the start of the process on. Nothing has changed."""

    code = "restart_needed"

    def __init__(self, settings: Sequence[tuple[str, str]]) -> None:
        """``settings``: what was changed, and why it takes a restart."""
        names = ", ".join(name for name, _ in settings)
        super().__init__(f"{names}: this takes a restart; nothing was changed")
        self.settings = settings


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


class BudgetExceeded(GatewayError):
    """One client holds its share of something that all clients need; nothing was done."""

    code = "budget_exceeded"
    retryable = True


class PeerUnavailable(GatewayError):
    """Another process on the same ledger has to do it, and did not answer; it may have done it."""

    code = "peer_unavailable"
    retryable = True
    outcome = "unknown"


class OutboundFailed(GatewayError):
    """An HTTP request of the gateway's own came to no answer."""

    code = "outbound_failed"
    retryable = True
    public: OutboundFailed | None = None
    """Text for callers instead, where the text says how the operator's network resolves a name."""

    def __init__(self, text: str, *, sent: bool = False, status: int = 0) -> None:
        super().__init__(text)
        self.sent = sent
        """Whether the far end may have got the request."""
        self.status = status
        """The status, where that much of the answer came; else 0."""


class AddressDenied(OutboundFailed):
    """The guard of outbound requests does not allow this address, host, port or scheme; no connection was made."""

    code = "address_denied"
    retryable = False

    def __init__(self, text: str, remedy: str = "") -> None:
        """``text`` names every rule that is broken, ``remedy`` the setting that allows the site."""
        super().__init__(f"{text}. {remedy}" if remedy else text)
        self.broken, self.remedy = text, remedy


class ResolveFailed(OutboundFailed):
    """The host has no address, or the resolver failed; no connection was made."""

    code = "resolve_failed"


class ConnectFailed(OutboundFailed):
    """No address of the host took the connection in time; nothing was sent."""

    code = "connect_failed"


class TlsFailed(OutboundFailed):
    """The far end's certificate does not verify, the peer refuses the gateway's, or it speaks no TLS."""

    code = "tls_failed"


class OutboundTimeout(OutboundFailed):
    """The one deadline over connect, head and body passed."""

    code = "outbound_timeout"
    outcome = "unknown"


class AnswerCut(OutboundFailed):
    """The far end hung up before its answer was whole."""

    code = "answer_cut"
    outcome = "unknown"


class AnswerMalformed(OutboundFailed):
    """The far end answered with octets that are no HTTP/1.1."""

    code = "answer_malformed"
    outcome = "unknown"


class AnswerHeadTooLarge(OutboundFailed):
    """Status line and headers of the answer are over the limit, in octets or in number."""

    code = "answer_head_too_large"
    outcome = "unknown"


class TokenRefused(OutboundFailed):
    """The server of an endpoint's OAuth2 tokens gave none; the endpoint itself was not asked."""

    code = "token_refused"


class EntriesRefused(GatewayError):
    """The database cannot hold some of the entries of a call: ``refused`` says why, by their index. All others
    are durable; ``results`` has what the call would have returned, in their places, where it returns a list."""

    code = "entries_refused"

    def __init__(self, refused: dict[int, str], results: Sequence[Any] = ()) -> None:
        index, why = next(iter(refused.items()))
        super().__init__(f"{len(refused)} ledger entries refused; entry {index}: {why}")
        self.refused = refused
        self.results = results


class EtagMismatch(GatewayError):
    """The resource is not, or is no longer, the one that ``If-Match`` names."""

    code = "etag_mismatch"


class RangeGone(GatewayError):
    """Rows of a log that were asked for are gone. The text names the range that is missing, and why it went."""

    code = "log_range_gone"


class RangeAhead(GatewayError):
    """A position or a range that ends behind the last row of a log."""

    code = "log_range_ahead"


class NoArrow(GatewayError):
    """The service is asked for Arrow, and cannot make it. The text says what to install."""

    code = "no_arrow"


class CursorOwned(GatewayError):
    """The cursor belongs to another reader of the log, which was heard of lately. The text names it."""

    code = "cursor_owned"


class PipelineFault(GatewayError):
    """A job of the pipeline cannot begin, or cannot go on."""

    code = "pipeline"


class JavaMissing(PipelineFault):
    """Spark needs Java, and there is none, or one that is too old. The text says what to install."""

    code = "java_missing"


class SparkMissing(PipelineFault):
    """PySpark, PyArrow or pandas is not installed, or not in a version that works. The text says what to install."""

    code = "spark_missing"


class ServiceUnreachable(PipelineFault):
    """The gateway that the job works for cannot be reached, or went away and stayed away."""

    code = "service_unreachable"
    retryable = True


class ServiceRefused(PipelineFault):
    """The gateway that the job works for answered, and said no: a wrong key, a scope that is missing, a wrong value."""

    code = "service_refused"
    outcome = "refused"


class BadFilter(PipelineFault):
    """A filter or a transform is no SQL expression, or uses what it may not: subqueries, functions not built in."""

    code = "bad_filter"


class SourceGone(PipelineFault):
    """Rows that the job has to read are gone, or fewer came than there are. The text names the range."""

    code = "source_gone"


class ArchiveTooNew(PipelineFault):
    """A newer release wrote this archive in a way that this one does not know."""

    code = "archive_too_new"


class ArchiveDamaged(PipelineFault):
    """A file of the archive is missing, cut short, or not what the archive's log says. The text names it."""

    code = "archive_damaged"


class FingerprintDiffers(PipelineFault):
    """The id of the run, or the checkpoint, belongs to a job with other settings."""

    code = "fingerprint_differs"


class DiskFull(PipelineFault):
    """No room is left where the job writes. What was committed stays; the rest is done by the next run."""

    code = "disk_full"
    retryable = True


class Breaks(PipelineFault):
    """A comparison found messages that are lost, doubled, late or changed. The text says how many."""

    code = "breaks"


class BackupRefused(GatewayError):
    """A backup is cut off, damaged or of another version, or the ledger cannot be restored from it. Nothing changed."""

    code = "backup_refused"


class ConfigurationError(GatewayError):
    """A setting is missing or wrong. The text names it."""

    code = "configuration"


def error_of(code: str, text: str) -> GatewayError:
    """The reported or recorded error, by its code and text; :class:`GatewayError` itself for an unknown code."""
    for kind in _tree(GatewayError):
        if kind.code == code:
            error = kind.__new__(kind)
            Exception.__init__(error, text)
            return error
    return GatewayError(text)


def _tree(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


def public_error(error: GatewayError) -> GatewayError:
    """Return what a caller may know of an error of an outbound request. Operators have the log."""
    return (error.public if isinstance(error, OutboundFailed) else None) or error
