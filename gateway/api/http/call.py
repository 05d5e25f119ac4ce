"""One HTTP request, as the handlers see it: names, query, body, headers; and the answers they give.

Bodies are read chunk by chunk and counted as they come: what is over the limit is refused before it is held,
and a body that stalls is given up. All bodies that come in pieces, and the lines of streams, are held in
the budget ``bytes``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope

from gateway.access.access import Access
from gateway.access.scopes import Principal
from gateway.api.http.auth import require, unauthorized
from gateway.api.http.eager import begin
from gateway.api.http.json_bounds import check_size, is_deeper
from gateway.api.http.members import repeated, repeated_member
from gateway.api.http.problems import (
    PROBLEM_JSON,
    ApiProblem,
    Problem,
    ProblemError,
    printable,
    wrong_header,
    wrong_parameter,
)
from gateway.api.http.routing import Route, not_text
from gateway.bridges import BridgeSupervisor
from gateway.broker_store import BrokerStore
from gateway.budgets import ShareHolder
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.errors import BudgetExceeded, EncodeError, Overloaded
from gateway.notation.values import ValueProblem
from gateway.replays import Replays
from gateway.runtime.clock import clock, monotonic_time
from gateway.taps import TapSupervisor
from gateway.validation import SHOWN_MAX, Misfit, Path, explain, fields_of, moments_in, resolve_ages, unknown
from gateway.webhooks.settings.endpoints import EndpointRegistry
from gateway.webhooks.supervisor import Pushes

if TYPE_CHECKING:
    from gateway.api.history.traced import Trace
    from gateway.api.resources.reloads import Reloader
    from gateway.front.server import Front

T = TypeVar("T")

JSON: Final = "application/json"
DISCARD_MAX: Final = 64 * 1024 * 1024
"""Most octets of a body over the limit that are read and dropped before it is refused."""
DISCARD_SECONDS: Final = 5.0
"""And for how long, in seconds."""
ONE_PIECE: Final = 65_536
"""Octets of a body that may come in one piece, and are not counted in the budget ``bytes``."""
PLAIN_MAX: Final = 1_048_576
"""Most octets of a body that is no message: 10,000 ack ids fit."""
DEPTH_MAX: Final = 64
"""Deepest nesting of a body that is no message; tables of messages have a limit of their own (``table_depth``)."""
LOOK_AGAIN: Final = 4.0
"""How long a stream may wait without asking whether its caller still counts, in seconds."""
PARAMETERS_MAX: Final = 100
"""Most query parameters of a request."""
ANY_OCTETS: Final = frozenset(
    {
        "exchange", "queue", "destination", "routing_key", "binding_key", "arguments", "header", "message_id",
        "correlation_id", "type", "content_type", "q",
    }
)  # fmt: skip
"""Query parameters that stand for something of AMQP, which may be any octets. All others are text."""
STILL_COUNTS: Final = 1.0
"""How long the answer is good for, in seconds."""
_encode = msgspec.json.Encoder().encode


class _Pace:
    """How fast a body comes that is waited for as a whole. The clock begins with the first wait."""

    __slots__ = ("_began", "_http", "octets")

    def __init__(self, http: HttpSettings) -> None:
        self._http = http
        self._began: float | None = None
        self.octets = 0
        """How much has come."""

    def until(self, idle: float, why: str) -> tuple[float, str]:
        """When it will be too slow if nothing more comes, by the loop's clock, and why; ``idle`` and ``why``: when and
        why it would be anyhow."""
        http = self._http
        if self._began is None:
            self._began = idle - http.body_idle
        ends = [(idle, why)]
        ends.append((self._began + http.body_timeout, f"the body took {http.body_timeout:g} s (http.body_timeout)"))
        if http.body_rate:
            slow = f"less than {http.body_rate} octets of the body came a second (http.body_rate)"
            ends.append((self._began + max(http.body_idle, self.octets / http.body_rate), slow))
        return min(ends)


@dataclass(slots=True)
class Call:
    """A request on its way to its handler."""

    scope: Scope
    receive: Receive
    headers: Mapping[bytes, bytes]
    """Names in lower case; of several of a name, the last."""
    route: Route
    names: Mapping[str, str]
    """Decoded names of the path."""
    principal: Principal
    gateway: Gateway
    http: HttpSettings
    client: ShareHolder
    """Whose share of everything it takes."""
    bridges: BridgeSupervisor
    taps: TapSupervisor
    brokers: BrokerStore | None = None
    endpoints: EndpointRegistry | None = None
    pushes: Pushes | None = None
    replays: Replays | None = None
    access: Access | None = None
    trace: Trace | None = None
    """None: nothing is traced."""
    reloader: Reloader | None = None
    fronts: Mapping[str, Front] = field(default_factory=dict)
    holds: int = 0
    """Bytes of bodies that are counted for this request."""
    takes: list[str] = field(default_factory=list)
    """Resources of which it holds one, until it is over."""
    again: Callable[[Call], Awaitable[Principal]] | None = None
    """Looks up once more who calls; None: who it was."""
    _looked: float = field(default_factory=monotonic_time)
    _query: Any = field(default=None)

    @property
    def path(self) -> str:
        """The raw path, as text."""
        raw: bytes = self.scope["raw_path"]
        return raw.decode("latin-1")

    async def still(self) -> Principal:
        """The caller, as what its credential allows now. What goes on for long asks before each piece, and at least
        every :data:`LOOK_AGAIN` seconds.

        Raises:
            ApiProblem: unauthorized: the credential counts no more, or is another client's; forbidden: it does not
                allow this route any more.
        """
        if self.again is not None and clock.monotonic() >= self._looked + STILL_COUNTS:
            principal = await self.again(self)
            if principal.name != self.principal.name:
                raise unauthorized("the credential is not that of the same client any more")
            require(principal, self.route.scope, self.names)
            self.principal = principal
            self._looked = clock.monotonic()
        return self.principal

    def header(self, name: bytes) -> str | None:
        """A header's value; octets above ASCII are taken as UTF-8."""
        value = self.headers.get(name)
        return value.decode("utf-8", "surrogateescape") if value is not None else None

    def check_query(self) -> None:
        """Refuse what the route does not declare (:attr:`Route.query`). Raises ApiProblem (invalid_parameter)."""
        raw: bytes = self.scope["query_string"]
        if raw:
            self._query = parse_query(raw, self.route.query, self.route.body)

    def query(self, kind: type[T]) -> T:
        """The query parameters, as the struct that the route declares. Raises ApiProblem (invalid_parameter)."""
        if self._query is None:
            self._query = parse_query(self.scope["query_string"], kind)
        found: T = self._query
        return found

    # --------------------------------------------------------------------------------------------- body

    def take(self, resource: str) -> None:
        """Hold one of a resource until the request is over. Raises BudgetExceeded, Overloaded."""
        self.gateway.budgets[resource].take(self.client)
        self.takes.append(resource)

    def hold(self, octets: int) -> None:
        """Hold this many bytes from now on, until the request is over. Raises BudgetExceeded, Overloaded."""
        more = octets - self.holds
        if more > 0:
            self.gateway.budgets["bytes"].take(self.client, more)
        elif more < 0:
            self.gateway.budgets["bytes"].give(self.client, -more)
        self.holds = octets

    def hold_all(self, octets: int) -> None:
        """The same for messages that were taken already: they are counted whether or not there is room."""
        if octets > self.holds:
            self.gateway.budgets["bytes"].take(self.client, octets - self.holds, forced=True)
            self.holds = octets
        else:
            self.hold(octets)

    def hold_answer(self, answer: Response) -> None:
        """Count the body of an answer until the caller has read it.

        Documents are there once for all. An answer to a request that changed something is never refused, nor is one to
        a client that holds nothing else: it could not be smaller.

        Raises:
            BudgetExceeded, Overloaded: it may not be held.
        """
        if self.route.tag != "documents":
            self.hold_for_answer(len(answer.body))

    def hold_for_answer(self, size: int) -> None:
        """Count these many bytes, of which an answer will be made, until it is over. A GET to a client that holds
        something else may be refused.

        Raises:
            BudgetExceeded, Overloaded: they may not be held.
        """
        if size <= max(ONE_PIECE, self.holds):
            return
        if self.route.method == "GET" and self.gateway.budgets["bytes"].held_by(self.client) > self.holds:
            self.hold(size)
        else:
            self.hold_all(size)

    def leave(self) -> None:
        """Give back all that the request holds: it is over."""
        if self.holds:
            self.hold(0)
        for resource in self.takes:
            self.gateway.budgets[resource].give(self.client)
        self.takes.clear()

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            ApiProblem: body_too_large, request_timeout, malformed_request.
            BudgetExceeded, Overloaded: it may not be held.
        """
        limit = self.http.body_max if self.route.takes_messages else min(self.http.body_max, PLAIN_MAX)
        length = self.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            await self._discard()
            raise _too_large(limit, self.http)
        pace = _Pace(self.http)
        message = await self._next(pace)
        if not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > limit:
                raise _too_large(limit, self.http)
            if len(body) > ONE_PIECE:
                self.hold(len(body))
            return body
        chunks = [message.get("body", b"")]
        size = len(chunks[0])
        while message.get("more_body", False):
            pace.octets = size
            message = await self._next(pace)
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                chunks.clear()
                if message.get("more_body", False):
                    await self._discard()
                raise _too_large(limit, self.http)
            try:
                self.hold(size)
            except (BudgetExceeded, Overloaded):
                chunks.clear()
                self.hold(0)
                if message.get("more_body", False):
                    await self._discard()
                raise
            chunks.append(chunk)
        return b"".join(chunks)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, without a limit in all."""
        more = True
        while more:
            message = await self._next()
            yield message.get("body", b"")
            more = message.get("more_body", False)

    async def _discard(self) -> None:
        """Read on for a while, keeping nothing, so that the caller gets to see its answer: a connection that is
        closed over octets that nobody read is reset. Who waits for ``100 Continue`` has sent nothing yet."""
        if b"expect" in self.headers:
            return
        size = 0
        more = True
        with suppress(TimeoutError):  # it sends for ever, or stopped: the answer is all that it gets
            async with asyncio.timeout(DISCARD_SECONDS):
                while more and size < DISCARD_MAX:
                    message = await self.receive()
                    size += len(message.get("body", b""))
                    more = message.get("more_body", False)

    async def _next(self, pace: _Pace | None = None) -> Mapping[str, Any]:
        """The next piece of the body. ``pace``: what a body must keep that is waited for as a whole."""
        message, waiting = begin(self.receive())
        if waiting is not None:
            until = clock.monotonic() + self.http.body_idle
            why = f"nothing of the body came for {self.http.body_idle:g} s (http.body_idle)"
            if pace is not None:
                until, why = pace.until(until, why)
            try:
                async with asyncio.timeout_at(until):
                    message = await waiting
            except TimeoutError:
                raise ApiProblem("request_timeout", why, headers={"connection": "close"}) from None
        assert message is not None
        if message["type"] == "http.disconnect":
            raise ApiProblem("malformed_request", "the connection was closed in the middle of the body")
        return message

    async def json(self, kind: type[T], taken: Sequence[str] = (JSON,)) -> T:
        """The body as JSON of this struct; an empty body is ``{}`` where the route allows it. ``taken``: media types.

        Raises:
            ApiProblem: unsupported_media_type, body_too_large, malformed_json, invalid_request.
        """
        media = media_type(self.headers)
        if media and media not in taken:
            raise ApiProblem("unsupported_media_type", f"{media!r} is not accepted here; send {' or '.join(taken)}")
        octets = await self.body()
        if not octets and not self.route.body_required:
            octets = b"{}"
        check_size(octets, self.http.batch_max if self.route.takes_messages else 0)
        found = decode_json(octets, kind)
        if is_deeper(octets, DEPTH_MAX):
            raise ApiProblem("malformed_json", f"nested deeper than {DEPTH_MAX}")
        return found


def media_type(headers: Mapping[bytes, bytes]) -> str:
    """The Content-Type without its parameters, in lower case; empty where there is none."""
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")


def parse_query(raw: bytes, kind: type | None, body: type | None = None) -> Any:
    """The query parameters as a struct of ``kind``; None: none is taken. ``body``: the struct of the body, whose fields
    some take for query parameters. Raises ApiProblem (invalid_parameter)."""
    if raw.count(b"&") > PARAMETERS_MAX:
        raise ApiProblem("invalid_parameter", f"there are more than {PARAMETERS_MAX} query parameters")
    names = fields_of(kind) if kind is not None else ()
    several: frozenset[str] = _several(cast("Any", kind)) if kind is not None else frozenset()
    pairs: dict[str, Any] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"):
        if name not in names:
            detail, known = unknown(name, names, "query parameter")
            hint = "; it belongs into the body" if body is not None and name in fields_of(body) else ""
            raise wrong_parameter(name[:SHOWN_MAX], detail + hint, known)
        if name not in ANY_OCTETS and (wrong := not_text(value)):
            raise wrong_parameter(name, f"the value {wrong}")
        if name in several:
            pairs.setdefault(name, []).append(value)
        elif name in pairs:
            raise wrong_parameter(name, "it is given more than once")
        else:
            pairs[name] = value
    if kind is None:
        return pairs
    try:
        found: Any = msgspec.convert(resolve_ages(pairs, kind), kind, strict=False)
    except msgspec.ValidationError as error:
        misfit = explain(error, pairs, kind, strict=False, what="query parameter")
        raise wrong_parameter(misfit.place, misfit.detail, misfit.expected) from None
    except UnicodeEncodeError:  # only names of AMQP may be any octets; a number or a time is looked at as UTF-8
        for name, value in pairs.items():
            if not "".join(value).isascii() and printable("".join(value)) != "".join(value):
                raise wrong_parameter(name, "the value is not percent-encoded UTF-8") from None
        raise
    except ValueError:  # seconds that no year of the calendar has, which msgspec does not tell
        for name in moments_in(kind):
            if name in pairs and not _is_in_calendar(pairs[name]):
                raise wrong_parameter(name, "the time is not in the years 1 to 9999") from None
        raise
    for member in msgspec.structs.fields(kind):  # msgspec reads the word null as None, and a filter would be ignored
        if member.encode_name in pairs and getattr(found, member.name) is None:
            raise wrong_parameter(member.encode_name, "null is not a value; leave the parameter out")
    return found


def _is_in_calendar(value: str) -> bool:
    """Whether a value is a time that there is, or none at all."""
    try:
        msgspec.convert(value, datetime, strict=False)
    except msgspec.ValidationError:
        return True
    except ValueError:
        return False
    return True


def decode_json(
    octets: bytes | memoryview | msgspec.Raw, kind: type[T], passes_over: Callable[[Path], bool] | None = None
) -> T:
    """Decode and check JSON. Raises ApiProblem (malformed_json, invalid_request).

    Args:
        passes_over: whether the value at a path may have members twice: somebody else looks at it.
    """
    try:
        if moments_in(cast("Any", kind)):
            found = msgspec.convert(resolve_ages(msgspec.json.decode(octets), kind), kind)
        else:
            found = msgspec.json.decode(octets, type=kind)
    except msgspec.ValidationError as error:
        raise invalid_request(error, octets, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiProblem("malformed_json", str(error)) from None
    except RecursionError:
        raise ApiProblem("malformed_json", "nested too deep") from None
    if (path := repeated(octets, passes_over=passes_over)) is not None:
        raise repeated_member(path)
    return found


def invalid_request(
    error: msgspec.ValidationError, octets: bytes | memoryview | msgspec.Raw, kind: type[Any]
) -> ApiProblem:
    """What is wrong with a body that is JSON, and not of ``kind``."""
    try:
        misfit = explain(error, msgspec.json.decode(octets), kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as broken:  # behind what does not fit
        return ApiProblem("malformed_json", str(broken))
    except RecursionError:
        return ApiProblem("malformed_json", "nested too deep")
    return wrong_body(misfit)


def invalid_value(problem: ValueProblem) -> ApiProblem:
    """A value that does not fit, as a problem."""
    return wrong_body(Misfit(tuple(problem.path), problem.detail), "invalid_value")


def wrong_body(misfit: Misfit, code: str = "invalid_request") -> ApiProblem:
    """What does not fit in a body, as a problem."""
    error = ProblemError(pointer=misfit.pointer, detail=misfit.detail, expected=list(misfit.expected))
    return ApiProblem(code, str(misfit), [error])


def invalid_setting(error: EncodeError) -> ApiProblem:
    """What is wrong with a setting; the sentence begins with its dotted name."""
    setting, colon, detail = str(error).partition(": ")
    known = colon and setting.replace(".", "").replace("_", "").isalnum()
    culprit = ("/" + setting.replace(".", "/"), detail) if known else ("", str(error))
    return ApiProblem("invalid_value", str(error), errors=[culprit])


def _too_large(limit: int, http: HttpSettings) -> ApiProblem:
    why = "http.body_max" if limit == http.body_max else "no message is taken here"
    return ApiProblem(
        "body_too_large", f"the body is larger than {limit} octets ({why})", headers={"connection": "close"}
    )


# --------------------------------------------------------------------------------------------------- answers


class JsonAnswer(Response):
    """JSON that is encoded already, without further headers: what nearly every answer is."""

    media_type = JSON

    def __init__(self, body: bytes, status_code: int = 200) -> None:
        self.status_code = status_code
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


def encode(value: Any) -> bytes:
    """JSON. What a broker said may hold lone surrogates, which are escaped."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode("ascii")


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    if headers:
        return Response(encode(value), status, headers, media_type=JSON)
    return JsonAnswer(encode(value), status)


def no_content() -> Response:
    """204."""
    return Response(status_code=204)


def problem_response(problem: Problem, headers: Mapping[str, str]) -> Response:
    """A problem as an answer of its own."""
    return Response(_encode(problem), problem.status, headers, media_type=PROBLEM_JSON)


@lru_cache
def _several(kind: Any) -> frozenset[str]:
    """The parameters of a route that may be there more than once."""

    def is_array(kind: Any) -> bool:
        info = msgspec.inspect.type_info(kind)
        return isinstance(
            info.type if isinstance(info, msgspec.inspect.Metadata) else info, msgspec.inspect.VarTupleType
        )

    return frozenset(field.name for field in msgspec.structs.fields(kind) if is_array(field.type))


def page_headers(call: Call, cursor: str | None, **query: str | int | Sequence[str]) -> dict[str, str]:
    """``Link: rel="next"`` where there is a next page (RFC 8288)."""
    if cursor is None:
        return {}
    pairs = "&".join(
        f"{name}={quote(str(each), safe='', errors='surrogateescape')}"
        for name, value in {**query, "cursor": cursor}.items()
        for each in ((value,) if isinstance(value, str | int) else value)
        if each != ""
    )
    return {"link": f'<{call.path}?{pairs}>; rel="next"'}


def if_match(call: Call) -> str | None:
    """The etag of ``If-Match``: ``*`` as it is, None where there is no such header."""
    value = call.header(b"if-match")
    if value is None:
        return None
    value = value.strip()
    if value == "*":
        return value
    if len(value) < 2 or not (value.startswith('"') and value.endswith('"')) or "," in value:
        raise wrong_header("If-Match", f"{value!r:.80} is neither one strong ETag in quotes nor *")
    return value[1:-1]
