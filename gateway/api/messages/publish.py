"""``POST …/exchanges/{exchange}:publish``: one message, a batch, a stream, a raw body, CloudEvents.

What the body is, the Content-Type says (:data:`FORMS`). JSON is a message or a batch; a raw body, with ``raw=true``
in the query, and beside an ``Amqp-*`` header where it is no message. One message is answered with its own status; a
batch with 207 and one result each, in order; NDJSON with NDJSON (:mod:`gateway.api.messages.stream`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from gateway.api.about.schemas import (
    KEY_MAX,
    BatchResults,
    Published,
    PublishMessage,
    PublishQuery,
    PublishRequest,
    RawBatch,
    Scheduled,
)
from gateway.api.history.traced import Publishing
from gateway.api.http import raw_body
from gateway.api.http.call import JSON, Call, answer, decode_json, invalid_value, media_type, problem_response
from gateway.api.http.json_bounds import FREE, check_size
from gateway.api.http.members import repeated, repeated_member
from gateway.api.http.problems import (
    PROBLEM_JSON,
    ApiProblem,
    problem_headers,
    problem_of,
    wrong_header,
    wrong_parameter,
)
from gateway.api.http.routing import Media, Route, Scope
from gateway.api.messages import cloudevents
from gateway.api.messages.later import APPLIED, all_or_none, prefers_later, publish_each
from gateway.api.messages.messages_json import is_payload, members_of, to_publish
from gateway.api.messages.results import batch_results
from gateway.api.messages.stream import NDJSON, publish_stream
from gateway.api.resources.allowed_keys import refuse_foreign_keys
from gateway.core import KeyedAnswer, KeyedRequest, Publication, PublishOutcome
from gateway.core.publishing.fingerprints import of_request
from gateway.core.publishing.outbox import moment
from gateway.core.sources.turns import ASIDE_MIN, aside
from gateway.notation.cloudevents import BATCH, STRUCTURED
from gateway.notation.values import ValueProblem

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PublishRequest).decode
RESULT: Final = 200
"""Approximate size of a result, in bytes."""
_FORM: Final = "application/x-www-form-urlencoded"


async def publish(call: Call) -> Response:
    """Take the body apart by what it is, publish, answer."""
    raw_body.check(call)
    media = media_type(call.headers)
    is_raw = bool(call.scope["query_string"]) and call.query(PublishQuery).raw
    if media in NDJSON and not is_raw:
        if b"idempotency-key" in call.headers:
            raise wrong_header("Idempotency-Key", "a stream has none; give each message a key")
        if raw_body.is_raw(call.headers):
            raise ApiProblem("invalid_parameter", "Amqp-* headers are for other bodies: a stream says it in its lines")
        _no_query(call)
        return publish_stream(call)
    form = _raw if is_raw and b"ce-specversion" not in call.headers else _form(call, media)
    octets = await call.body()
    if len(octets) <= ASIDE_MIN or form in _OPAQUE:
        batch, messages = form(call, octets)
    else:
        batch, messages = await aside(len(octets), form, call, octets)
    messages = refuse_foreign_keys(call, messages, json=form is _json, alone=not batch)
    if call.trace is None:
        return await _publish(call, octets, batch, messages)
    with Publishing(call, [item for item in messages if isinstance(item, Publication)]) as span:
        response = await _publish(call, octets, batch, messages)
        span.error = str(response.status_code) if response.status_code >= 400 else ""
        return response


def _form(call: Call, media: str) -> Callable[[Call, bytes], tuple[bool, list[Publication | ApiProblem]]]:
    if b"ce-specversion" in call.headers:
        return _cloudevent_binary
    if media in ("", JSON):
        return _raw_json if raw_body.is_raw(call.headers) else _json
    form = FORMS.get(media)
    if form is not None:
        return form
    if media == _FORM:
        raise ApiProblem(
            "unsupported_media_type", f"{_FORM} is not accepted; send {JSON}, or the Content-Type that the payload has"
        )
    return _raw


def _json(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    _no_query(call)
    if len(octets) > FREE:
        check_size(octets, call.http.batch_max)
    try:
        request = _decode(octets)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _json_item_by_item(call, octets)
    members = members_of(request)
    if isinstance(request.messages, list):
        members += 1 + sum([members_of(item) for item in request.messages])
    if (path := repeated(octets, members=members, passes_over=is_payload)) is not None:
        if path[0] == "messages" and len(path) > 2:
            return _json_item_by_item(call, octets)
        raise repeated_member(path)
    if isinstance(request.messages, list):
        _check_batch(call, len(request.messages))
        if request != PublishRequest(messages=request.messages):
            raise ApiProblem("invalid_request", "messages: it stands alone", errors=[("/messages", "it stands alone")])
        return True, [_convert(call, item) for item in request.messages]
    if request.key is not UNSET:
        text = "the key of a single message is the header Idempotency-Key"
        raise ApiProblem("invalid_request", text, errors=[("/key", text)])
    return False, [_convert(call, request)]


def _no_query(call: Call) -> None:
    if call.scope["query_string"] and (query := call.query(PublishQuery)) != PublishQuery():
        given = [name for name in query.__struct_fields__ if getattr(query, name) != getattr(PublishQuery(), name)]
        raise wrong_parameter(
            given[0],
            "this query parameter is for a raw body or a CloudEvent. In JSON, say it in the message; or add raw=true, "
            "if the body is the payload itself",
        )


def _json_item_by_item(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    """JSON of which some part has the wrong shape: in a batch, that costs only the items that have it."""
    try:
        batch = msgspec.json.decode(octets, type=RawBatch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decode_json(octets, PublishRequest, is_payload)  # raises what is wrong
        raise
    _check_batch(call, len(batch.messages))
    items: list[Publication | ApiProblem] = []
    for raw in batch.messages:
        try:
            item = decode_json(raw, PublishMessage, is_payload)
        except ApiProblem as problem:
            items.append(problem)
        else:
            items.append(_convert(call, item))
    return True, items


def _check_batch(call: Call, count: int) -> None:
    if count > call.http.batch_max:
        raise ApiProblem(
            "body_too_large", f"{count} messages; a batch holds at most {call.http.batch_max} (http.batch_max)"
        )
    if count == 0:
        raise ApiProblem("invalid_request", "messages: it is empty", errors=[("/messages", "it is empty")])


def _convert(call: Call, item: PublishMessage) -> Publication | ApiProblem:
    try:
        if item.logged is UNSET:
            return to_publish(item)
        return to_publish(item, call.gateway.broker(call.names["broker"]).settings.annotate)
    except ValueProblem as problem:
        return invalid_value(problem)
    except ApiProblem as problem:
        return problem


def _raw_json(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    raw_body.check_no_envelope(call, octets)
    return _raw(call, octets)


def _raw(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    return False, [raw_body.message(call, octets)]


def _cloudevent_binary(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    return False, [cloudevents.from_binary(call, octets)]


def _cloudevent_structured(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    return False, [cloudevents.from_structured(call, octets)]


def _cloudevent_batch(call: Call, octets: bytes) -> tuple[bool, list[Publication | ApiProblem]]:
    return True, cloudevents.from_batch(call, octets)


_OPAQUE: Final = frozenset({_raw, _raw_json, _cloudevent_binary})
"""Forms whose body is the payload itself."""
FORMS: Mapping[str, Callable[[Call, bytes], tuple[bool, list[Publication | ApiProblem]]]] = {
    STRUCTURED: _cloudevent_structured,
    BATCH: _cloudevent_batch,
}
"""Content-Type -> how the body becomes messages, besides JSON and NDJSON. What is not here is a raw body."""


# --------------------------------------------------------------------------------------------------- publish


async def _publish(call: Call, octets: bytes, batch: bool, items: Sequence[Publication | ApiProblem]) -> Response:
    messages = [item for item in items if isinstance(item, Publication)]
    if not batch and not messages:
        assert isinstance(items[0], ApiProblem)
        raise items[0]
    broker, exchange = call.names["broker"], call.names["exchange"]
    client = call.principal.name
    later = prefers_later(call)
    key = call.header(b"idempotency-key")
    if key is None:
        results = await publish_each(call, messages, later=later) if messages else []
        if batch:
            return await aside(len(items) * RESULT, _batch_answer, items, results, APPLIED if later else None)
        error = results[0].error
        if error is not None:
            return problem_response(
                raw_body.placed(call, problem_of(error, call.path, results[0].id)), problem_headers(error)
            )
        if results[0].scheduled:
            return answer(_scheduled(messages[0], results[0]), 202, _scheduled_headers(results[0], later))
        return answer(_published(results[0]))
    key = _check_key(key)
    if any(item.key for item in messages):
        raise wrong_header("Idempotency-Key", "the request has it, or its messages have keys, not both")
    meant = [item if isinstance(item, Publication) else item.problem_code for item in items]
    fingerprint = await aside(len(octets), partial(of_request, broker, exchange, meant, batch=batch, later=later))
    older = await aside(len(octets), _fingerprint_of_octets, call, octets)
    request = KeyedRequest(client, key, fingerprint, lambda: (older,))
    upstream = call.gateway.broker(broker)
    if not messages:
        return answer(batch_results(items, ()), 207)
    keeps = all_or_none(messages, later)

    def render(results: list[PublishOutcome]) -> KeyedAnswer:
        if batch:
            return KeyedAnswer(
                207, _encode(batch_results(items, results)), {"content-type": JSON, **(APPLIED if later else {})}
            )
        error = results[0].error
        if error is None and results[0].scheduled:
            headers = {"content-type": JSON, **_scheduled_headers(results[0], later)}
            return KeyedAnswer(202, _encode(_scheduled(messages[0], results[0])), headers)
        if error is None:
            return KeyedAnswer(200, _encode(_published(results[0])), {"content-type": JSON})
        problem = raw_body.placed(call, problem_of(error, call.path, results[0].id))
        return KeyedAnswer(problem.status, _encode(problem), {"content-type": PROBLEM_JSON, **problem_headers(error)})

    budgets, size = call.gateway.ledger_budgets, (0, 0)
    if keeps:
        size = len(messages), sum([len(item.message.body) for item in messages])
    taken = await budgets.claim(call.client, (key,), *size)
    try:
        if keeps:
            kept = await call.gateway.outbox.put_keyed(request, upstream, exchange, messages, render)
        else:
            kept = await call.gateway.publish_keyed(request, broker, exchange, messages, render)
    finally:
        if taken:
            budgets.give(call.client, 1, *size)
    headers = {**kept.headers, "idempotent-replayed": "true"} if kept.replayed else kept.headers
    return Response(kept.body, kept.status, headers)


def _batch_answer(
    items: Sequence[Publication | ApiProblem], results: Sequence[PublishOutcome], headers: Mapping[str, str] | None
) -> Response:
    return answer(batch_results(items, results), 207, headers)


def _check_key(key: str) -> str:
    text = key.strip()
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        text = text[1:-1]  # the draft's structured string; a bare one is taken as well
    if not 0 < len(text) <= KEY_MAX or not text.isascii() or not text.isprintable():
        raise wrong_header("Idempotency-Key", f"it is not 1 to {KEY_MAX} printable ASCII characters")
    return text


_MEANINGFUL: Final = ("content-type", "content-encoding", "prefer")


def _fingerprint_of_octets(call: Call, octets: bytes) -> bytes:
    """What an earlier release kept for the request (:mod:`gateway.core.publishing.fingerprints`)."""
    digest = hashlib.sha256(octets)
    digest.update(call.scope["raw_path"] + b"\n" + call.scope["query_string"] + b"\n")
    for name, value in sorted(call.headers.items()):
        if name.startswith((b"amqp-", b"ce-")) or name.decode("latin-1") in _MEANINGFUL:
            digest.update(name + b":" + value + b"\n")
    return digest.digest()


def _published(result: PublishOutcome) -> Published:
    return Published(
        id=result.id,
        status="confirmed" if result.routed else "unroutable",
        routed=result.routed,
        durable=result.durable,
        resent=result.resent,
    )


def _scheduled(item: Publication, result: PublishOutcome) -> Scheduled:
    when = UNSET if item.not_before is None else moment(item.not_before)
    return Scheduled(id=result.id, status="scheduled", not_before=when)


def _scheduled_headers(result: PublishOutcome, later: bool) -> dict[str, str]:
    return {"location": f"/v1/scheduled/{result.id}", **(APPLIED if later else {})}


_OBJECT: Mapping[str, Any] = {"type": "object"}

ROUTES = (
    Route(
        "POST",
        "/v1/brokers/{broker}/exchanges/{exchange}:publish",
        "publish",
        "Publish one message, a batch, or a stream",
        publish,
        Scope.PUBLISH,
        {
            200: (
                "The broker confirmed the message, or it may be `unroutable`. NDJSON: one result per line.",
                Published,
            ),
            202: ("The ledger holds the message, and publishes it later, as was asked.", Scheduled),
            207: ("A batch: one result per message, in order.", BatchResults),
        },
        body=PublishRequest,
        takes_messages=True,
        media=(
            Media("application/x-ndjson", "One message per line; answered line by line.", {"type": "string"}),
            Media(STRUCTURED, "A CloudEvent, published as it is (structured mode).", _OBJECT),
            Media(BATCH, "CloudEvents, each published, and answered, separately.", {"type": "array"}),
            Media("*/*", "The payload itself; properties in `Amqp-*` headers, or a CloudEvent in `ce-*` headers.", {}),
        ),
        query=PublishQuery,
        headers=("Idempotency-Key", "Prefer", *raw_body.HEADERS),
        codes=(
            "malformed_json",
            "invalid_request",
            "invalid_value",
            "invalid_header",
            "invalid_parameter",
            "broker_not_found",
            "not_found",
            "unroutable",
            "publish_refused",
            "outcome_unknown",
            "broker_unavailable",
            "ledger_unavailable",
            "not_recorded",
            "access_refused",
            "limit_exceeded",
            "unsupported",
            "idempotency_key_reused",
            "idempotency_key_running",
            "unsupported_media_type",
        ),
        description=(
            "`amq.default` names the default exchange. 200 means that the broker confirmed the message and the ledger "
            "holds what happened. A message that no queue takes is 422 `unroutable`; with `mandatory` false it is 200 "
            "with the status `unroutable`. `delivery_mode` is 2 unless given. An `Amqp-*` header beside a message in "
            "JSON is 422."
        ),
        tag="publish",
    ),
)
