"""Problems: every error of the API, as ``application/problem+json`` (RFC 9457).

:data:`PROBLEMS` is the one table from a stable ``code`` to its status and title. A
:class:`~gateway.errors.GatewayError` carries its code; what only HTTP knows (a malformed body, a missing key) is an
:class:`ApiProblem`. ``type`` is ``/docs/errors#CODE``, a page that is made from this table.

A problem says ``retryable``, whether the same request may succeed later, and ``outcome``, what is known of the
message: ``not_sent``, ``refused`` (by the broker) or ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.errors import BrokerUnavailable, EncodeError, GatewayError
from gateway.notation.messages import SCALARS, TEXTS
from gateway.observing.telemetry import trace_id

PROBLEM_JSON: Final = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """One row of the table."""

    status: int
    title: str
    advice: str
    """What the caller can do about it."""


PROBLEMS: Mapping[str, ProblemType] = {
    # the request
    "malformed_json": ProblemType(
        400, "The body is not JSON", "Send UTF-8 JSON (RFC 8259), not nested by the thousand."
    ),
    "malformed_request": ProblemType(400, "The request cannot be read", "See detail."),
    "unauthorized": ProblemType(
        401,
        "No valid credential",
        "Send an API key (`Authorization: Bearer KEY`, `X-Api-Key: KEY`) or a bearer token.",
    ),
    "forbidden": ProblemType(
        403, "The caller lacks the scope", "Ask for a credential with the scope that detail names."
    ),
    "origin_refused": ProblemType(
        403,
        "A web page of another site sent the request",
        "Add its origin to http.allowed_origins, or send a key.",
    ),
    "route_not_found": ProblemType(
        404, "There is no such resource", "GET /openapi.json lists every path; /docs shows them."
    ),
    "method_not_allowed": ProblemType(405, "The resource has no such method", "See the Allow header."),
    "request_timeout": ProblemType(408, "The body came too slowly", "Send it again, without long pauses."),
    "body_too_large": ProblemType(413, "The body is over the limit", "See http.body_max; or send NDJSON."),
    "target_too_long": ProblemType(
        414, "The request target is too long", "Ask for less at once: fewer or shorter query parameters."
    ),
    "unsupported_media_type": ProblemType(415, "The Content-Type is not accepted", "See detail."),
    "misdirected_request": ProblemType(
        421, "The Host is not allowed", "Add it to http.allowed_hosts, or use API keys."
    ),
    "invalid_request": ProblemType(
        422, "The body has the wrong shape", "errors[] points at each culprit and says what may stand there."
    ),
    "invalid_parameter": ProblemType(
        422, "A query parameter or header is wrong", "errors[] names each culprit and what may stand there."
    ),
    "invalid_value": ProblemType(422, "A value does not fit", "errors[] names field, value and limit."),
    "invalid_header": ProblemType(422, "The header belongs to the gateway", "Do not send x-gateway."),
    "precondition_required": ProblemType(
        428, "If-Match is missing", "Read the resource and send its ETag in If-Match."
    ),
    "rate_limited": ProblemType(429, "Too many requests of this client", "Repeat after Retry-After."),
    "budget_exceeded": ProblemType(
        429, "The client holds its share of a resource", "Give back some of what detail names, then repeat."
    ),
    "headers_too_large": ProblemType(
        431, "The HTTP headers are over the limit", "Send at most 100 headers, of 16 KiB together."
    ),
    # what it names
    "no_such_resource": ProblemType(
        404, "There is no such resource", "Read its collection: the path without the last name lists what there is."
    ),
    "broker_not_found": ProblemType(404, "There is no such broker", "GET /v1/brokers lists the brokers."),
    "subscription_not_found": ProblemType(404, "There is no such subscription", "GET /v1/subscriptions lists them."),
    "no_such_bridge": ProblemType(404, "There is no such bridge", "GET /v1/bridges lists the bridges."),
    "no_such_tap": ProblemType(404, "There is no such tap", "GET /v1/taps lists the taps."),
    "no_such_front": ProblemType(
        404, "There is no such front", "GET /v1/fronts lists the fronts of the process that answers."
    ),
    "no_such_front_client": ProblemType(
        404, "The front has no such client", "GET /v1/fronts/{front}/clients lists those that are connected."
    ),
    "endpoint_not_found": ProblemType(404, "There is no such endpoint", "GET /v1/endpoints lists the endpoints."),
    "delivery_not_found": ProblemType(
        404,
        "There is no such delivery",
        "It is settled: GET /v1/messages/{id} says how. GET /v1/deliveries lists what is open or dead.",
    ),
    "replay_not_found": ProblemType(404, "There is no such replay", "GET /v1/replays lists the replays."),
    "cursor_not_found": ProblemType(404, "There is no such cursor", "Claim it, which makes it."),
    "run_not_found": ProblemType(404, "There is no such run", "GET /v1/pipeline/runs lists the runs."),
    "message_not_found": ProblemType(
        404,
        "The ledger knows no such message",
        "Use the `id` of the publish's answer, a UUID. GET /v1/messages?message_id= finds it by the publisher's id.",
    ),
    "not_found": ProblemType(404, "The broker has no such queue or exchange", "Correct the name, or declare it first."),
    "endpoint_in_use": ProblemType(
        409, "Subscriptions push to the endpoint", "Delete the subscriptions that detail names, or change their `push`."
    ),
    "broker_in_use": ProblemType(
        409, "Something works with the broker", "Delete what detail names, or have it use another broker."
    ),
    "read_only": ProblemType(409, "Defined by the configuration file", "Change it in the file."),
    "etag_mismatch": ProblemType(412, "The resource was changed in between", "Read it again; repeat with its ETag."),
    "reload_refused": ProblemType(422, "The new configuration is not taken", "See detail; nothing has changed."),
    "restart_needed": ProblemType(
        409, "The new configuration takes a restart", "errors[] names the settings; nothing has changed."
    ),
    # the logs
    "log_range_gone": ProblemType(
        410, "Rows of the log are gone", "Begin behind the range that detail names; see [retention] for what stays."
    ),
    "log_range_ahead": ProblemType(409, "The log does not go so far", "Ask `/v1/log/head` how far it goes."),
    "no_arrow": ProblemType(
        406, "The service makes no Arrow", "Install amqp-gateway[arrow] there, or accept application/x-ndjson."
    ),
    # idempotency
    "idempotency_key_reused": ProblemType(422, "The Idempotency-Key belongs to another request", "Use a new key."),
    "idempotency_key_running": ProblemType(409, "The first request is still under way", "Repeat after Retry-After."),
    # what became of it
    "unroutable": ProblemType(
        422, "No queue took the message", 'Bind a queue, or say `"mandatory": false` to let it go.'
    ),
    "publish_refused": ProblemType(503, "The broker refused the message", "Its queue may be full; repeat later."),
    "outcome_unknown": ProblemType(
        504, "It is not known whether this was done", "Repeat it; a publish with the same Idempotency-Key."
    ),
    "lease_lost": ProblemType(409, "The lease is gone", "The broker delivers the message again."),
    "precondition_failed": ProblemType(
        409,
        "A precondition does not hold",
        "detail says which: it exists with other arguments, does not take one, is not empty, or is in use.",
    ),
    "resource_locked": ProblemType(409, "Exclusive to another connection", "Wait until that connection is gone."),
    "access_refused": ProblemType(
        403, "The broker login lacks permission", "Give the login of the broker's URL the permission that detail names."
    ),
    "method_not_implemented": ProblemType(
        502, "The broker does not have the method", "detail names it; use another broker, or do without."
    ),
    "broker_error": ProblemType(502, "The broker refused", "detail holds the broker's code and text."),
    "frame_syntax": ProblemType(502, "The broker sent octets that are no AMQP", "See the gateway's log."),
    "broker_unavailable": ProblemType(503, "The broker is away or takes nothing", "Repeat after Retry-After."),
    "authentication_failed": ProblemType(502, "The broker refused our credentials", "Correct the broker's URL."),
    "login_cut": ProblemType(
        503, "The broker hung up on our login", "Repeat later; if it stays so, correct the broker's URL."
    ),
    "certificate_refused": ProblemType(
        502, "The certificate of the broker or of the gateway was refused", "See detail; correct [brokers.NAME.tls]."
    ),
    "protocol_mismatch": ProblemType(
        502,
        "The far end speaks another protocol",
        "POST /v1/brokers/{broker}:probe says what it speaks; correct the URL of the broker.",
    ),
    "not_recorded": ProblemType(
        503, "Sent, but not in the ledger", "The message may be safe; repeat with the same Idempotency-Key."
    ),
    "ledger_unavailable": ProblemType(503, "The ledger cannot be written", "Nothing was promised; repeat later."),
    "ledger_damaged": ProblemType(
        500, "Something in the ledger is damaged", "See detail. The operator must restore it from a backup."
    ),
    "commit_unknown": ProblemType(
        503, "The ledger was lost while it wrote", "See whether it was done; if not, repeat."
    ),
    "ledger_full": ProblemType(
        507, "The disk of the ledger is full", "Nothing was promised; repeat later. The operator must make room."
    ),
    "entries_refused": ProblemType(500, "The ledger cannot hold an event", "See detail; report it."),
    "overloaded": ProblemType(503, "Too much is under way", "Repeat after Retry-After."),
    "peer_unavailable": ProblemType(
        503, "The process that has to do it did not answer", "Repeat after Retry-After; another process takes over."
    ),
    # a request of the gateway's own
    "address_denied": ProblemType(
        422,
        "The gateway may not call that address",
        "detail names each rule that it breaks, and the setting that allows it.",
    ),
    "outbound_failed": ProblemType(502, "A request of the gateway got no answer", "See detail."),
    "resolve_failed": ProblemType(
        502, "The host has no address", "Correct the URL, or the DNS. The gateway's log has the reason."
    ),
    "connect_failed": ProblemType(502, "Nobody took the connection", "See detail; repeat later."),
    "tls_failed": ProblemType(502, "TLS failed", "See detail: a certificate, or a port that speaks no TLS."),
    "outbound_timeout": ProblemType(504, "The answer did not come in time", "See detail; repeat later."),
    "answer_cut": ProblemType(502, "The far end hung up", "See detail; repeat later."),
    "answer_malformed": ProblemType(502, "The answer is no HTTP/1.1", "Correct the server at that URL."),
    "token_refused": ProblemType(502, "There is no OAuth2 token", "Correct the endpoint's `auth`; see detail."),
    "answer_head_too_large": ProblemType(
        502,
        "The headers of the answer are too large",
        "Have the endpoint send fewer or shorter headers: detail names the limit.",
    ),
    # what cannot be
    "no_dead_letter_destination": ProblemType(
        422,
        "No dead-letter destination is known",
        "Set dead_letter_routing_key or dead_letter_exchange of the subscription, dead_letter_native = true if its "
        'queue dead-letters natively, or lease = "ledger"; or send "discard": true to drop the message.',
    ),
    "unsupported": ProblemType(
        422, "This version or broker has no such thing", "GET /v1/brokers/{broker} shows what the broker can do."
    ),
    "local": ProblemType(422, "This cannot be done", "See detail."),
    "state": ProblemType(409, "The present state forbids it", "See detail."),
    "limit_exceeded": ProblemType(413, "Over a documented limit", "detail names the limit."),
    # the pipeline: its jobs end with these; only the first is an answer of the API, too
    "cursor_owned": ProblemType(
        409, "Somebody else reads under that name", "End the other reader, use another name, or take it over."
    ),
    "pipeline": ProblemType(500, "A job failed", "See detail."),
    "java_missing": ProblemType(500, "There is no Java, or it is too old", "Install what detail names."),
    "spark_missing": ProblemType(500, "PySpark is not installed", "Install amqp-gateway[spark]."),
    "service_unreachable": ProblemType(503, "The gateway does not answer", "Start it, or correct pipeline.url."),
    "service_refused": ProblemType(403, "The gateway said no to a job", "See detail: the key, its scope, or a value."),
    "bad_filter": ProblemType(422, "That is no filter", "Write one SQL expression over the columns of the archive."),
    "source_gone": ProblemType(410, "Rows are gone", "Start the job again, behind the range that detail names."),
    "archive_too_new": ProblemType(500, "The archive is of a newer release", "Run the job with that release."),
    "archive_damaged": ProblemType(
        500, "The archive is damaged", "Put the file back that detail names, or see docs/explanation/archive.md."
    ),
    "fingerprint_differs": ProblemType(409, "The id belongs to another job", "Take another id, or the old settings."),
    "disk_full": ProblemType(507, "No room is left", "Make room, and run the job again: it goes on where it was."),
    "breaks": ProblemType(409, "Messages are lost, doubled, late or changed", "See the report of the run."),
    "backup_refused": ProblemType(
        409, "The ledger cannot be restored from this", "Do what detail says; nothing was changed."
    ),
    "configuration": ProblemType(500, "A setting is wrong", "Correct the setting that detail names."),
    "internal": ProblemType(500, "The gateway failed", "Look for an event of level `error` in the gateway's log."),
}
"""Code -> status, title, advice. Codes are stable; ``docs/reference/errors.md`` is checked against this table."""


_MESSAGE: Final[Mapping[str, str]] = {
    **{field: f"/properties/{field}" for field in (*TEXTS, *SCALARS, "reply_to")},
    "headers": "/headers",
    "routing_key": "/routing_key",
    "properties": "/properties",
}
"""A field of a message, as errors of the wire name it -> where it stands in the JSON of one."""
_TABLES: Final = re.compile(r"table|headers|the key|the value|tables|a table|a list")
"""How errors begin that are about an entry of the headers."""


class ApiProblem(GatewayError):
    """A problem that only HTTP knows."""

    def __init__(
        self,
        code: str,
        detail: str,
        errors: Sequence[tuple[str, str] | ProblemError] = (),
        headers: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> None:
        """Make a problem.

        Args:
            errors: Every culprit; one in the body may be given by its JSON pointer and a sentence.
            advice: In place of the advice of the code.
        """
        super().__init__(detail)
        self.problem_code = code
        self.errors = [
            each if isinstance(each, ProblemError) else ProblemError(pointer=each[0], detail=each[1]) for each in errors
        ]
        self.headers = headers or {}
        self.advice = advice


class ProblemError(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One culprit: where it stands in the request, and what is wrong with it. It has one of ``pointer``, ``parameter``
    and ``header``."""

    pointer: str | UnsetType = UNSET
    """Where it is in the body, as a JSON pointer (RFC 6901). Of a missing member: where it belongs."""
    parameter: str = ""
    """Name of the query or path parameter."""
    header: str = ""
    """Name of the header."""
    detail: str
    """What is wrong with it."""
    expected: list[str] = []
    """The values that are allowed there. Of an unknown name: the names that exist."""


def wrong_parameter(name: str, detail: str, expected: Sequence[str] = ()) -> ApiProblem:
    """A query or path parameter does not fit."""
    error = ProblemError(parameter=name, detail=detail, expected=list(expected))
    return ApiProblem("invalid_parameter", f"{name}: {detail}", [error])


def wrong_header(name: str, detail: str, expected: Sequence[str] = ()) -> ApiProblem:
    """A header does not fit."""
    error = ProblemError(header=name, detail=detail, expected=list(expected))
    return ApiProblem("invalid_parameter", f"{name}: {detail}", [error])


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457, with our members."""

    type: str
    """Link to the description of the code: ``/docs/errors#CODE``."""
    title: str
    """What kind of problem it is. It is the same for each ``code``."""
    status: int
    """The HTTP status."""
    code: str
    """The code of the problem, which does not change between releases; see /docs/errors."""
    detail: str
    """What is wrong with this request."""
    retryable: bool
    """Whether the same request may succeed later."""
    outcome: str
    """What happened to the message. ``not_sent``: nothing was sent. ``refused``: the broker refused it. ``unknown``: it
    may be at the broker."""
    advice: str = ""
    """What you can do."""
    instance: str = ""
    """The path of the request."""
    id: str = ""
    """The gateway's id of the message, where it has one."""
    trace_id: str = ""
    """The trace that the request belongs to, where there is one."""
    errors: list[ProblemError] = []
    """The fields, parameters and headers that are wrong, one by one."""


def problem_of(error: GatewayError, instance: str = "", id: str = "") -> Problem:
    """The problem that reports ``error``."""
    code = error.problem_code if isinstance(error, ApiProblem) else error.code
    kind = PROBLEMS[code]
    errors = error.errors if isinstance(error, ApiProblem) else ()
    if id and isinstance(error, EncodeError):
        errors = [_in_message(str(error))]
    return Problem(
        type=f"/docs/errors#{code}",
        title=kind.title,
        status=kind.status,
        code=code,
        detail=printable(str(error)),
        retryable=error.retryable or kind.status in (408, 429),
        outcome=error.outcome,
        advice=(error.advice if isinstance(error, ApiProblem) else "") or kind.advice,
        instance=instance,
        id=id,
        trace_id=trace_id(),
        errors=[_printable(each) for each in errors],
    )


def problem_headers(error: GatewayError) -> dict[str, str]:
    """The HTTP headers that go with the problem."""
    headers = dict(error.headers) if isinstance(error, ApiProblem) else {}
    if isinstance(error, BrokerUnavailable):
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    elif error.retryable:
        headers.setdefault("retry-after", "1")
    return headers


def internal_problem(instance: str) -> Problem:
    """For an exception that nobody expected: says nothing of its text."""
    return problem_of(GatewayError("an unexpected error; it is in the gateway's log"), instance)


def printable(text: str) -> str:
    """``text`` without lone surrogates, which JSON in UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _in_message(text: str) -> ProblemError:
    """Where in a message it stands that did not fit, by how the sentence begins: with the name of the field."""
    field, colon, detail = text.partition(": ")
    name = field.partition(".")[0]
    if not colon or name not in _MESSAGE:  # of an entry of a table, whose name the sentence has
        return ProblemError(pointer="/headers" if _TABLES.match(text) else "", detail=text)
    return ProblemError(pointer=_MESSAGE[name] + "".join(f"/{each}" for each in field.split(".")[1:]), detail=detail)


def _printable(error: ProblemError) -> ProblemError:
    return ProblemError(
        pointer=error.pointer if isinstance(error.pointer, UnsetType) else printable(error.pointer),
        parameter=printable(error.parameter),
        header=printable(error.header),
        detail=printable(error.detail),
        expected=[printable(word) for word in error.expected],
    )


def as_json(problem: Problem) -> Any:
    """The problem as a plain object, to stand among the results of a batch."""
    return msgspec.to_builtins(problem)
