"""The port for the other processes on the same ledger, and requests that are theirs to answer.

It is no part of the API: it takes no API key, only what is sealed with the cluster's secret
(:mod:`gateway.core.work.peers`). The head of a request is sealed as well as all of it. So a stranger is known before
its body is read, takes none of the places of the other processes, and gets no answer that is sealed. Three verbs, each
a POST with a body of MessagePack::

    /peer/settle     end or extend leases that this process holds
    /peer/call       a request of the API that the process that was asked cannot answer, for its caller's principal
    /peer/tell       something has changed

What is passed on is passed on once: a process that finds the work to be another's again says that it is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from gateway.access.rates import address_of
from gateway.access.scopes import Grant, Principal
from gateway.api.http.connections import CONNECTION
from gateway.api.http.heads import TARGET_MAX, TOO_LONG, target_length
from gateway.budgets import ShareHolder
from gateway.core.work.peers import STRANGE, Peers, SettleRequest, TellRequest
from gateway.errors import GatewayError, PeerUnavailable
from gateway.ledger.work import Peer
from gateway.observing.telemetry import log
from gateway.tracing import header_pairs

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from gateway.api.http.call import Call

RUNNING_MAX: Final = 64
"""Most requests of other processes at once."""
STRANGERS_MAX: Final = 16
"""Most requests at once whose head is not sealed. A process of the release before seals no head."""
STRANGERS_PER_ADDRESS: Final = 4
"""Most of them from one address (IPv6: one /64 network)."""
STRANGER_WITHIN: Final = 5.0
"""How long the body of one may take to come, in seconds."""
PROCESS: Final = ShareHolder("another process", is_admin=True, is_alone=True, kind="process")
"""In whose share connections of the other processes count."""
BODY_MORE: Final = 1 << 16
"""How many octets a request may have beside the body of the call that it passes on."""
UNSEALED_MAX: Final = 1 << 16
"""Most octets that are read of a body before it is known that somebody who shares our secret sends it."""
BODY_WITHIN: Final = 30.0
"""How long a body may take to come, in seconds."""
PASSED_ON: Final = ("accept", "content-type", "if-match", "if-none-match", "prefer")
"""Headers of a call that are passed on."""
NOT_BACK: Final = frozenset({b"content-length", b"transfer-encoding", b"connection", b"date", b"server"})
"""Headers of an answer that belong to one connection."""
FORWARDED: Final = "gateway.forwarded_for"
"""Key of the ASGI scope of a call that another process passed on: its caller."""


Handler = Callable[["Call"], Awaitable[Response]]


class CallRequest(msgspec.Struct):
    """``call``: a request of the API."""

    method: str
    path: bytes
    """As it came, percent-encoded."""
    query: bytes
    headers: dict[str, str]
    body: bytes
    principal: str
    admin: bool
    grants: list[tuple[str, str, str]]


class CallAnswer(msgspec.Struct):
    """What the API answered."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


async def forward(call: Call, owner: Peer, *, within: float = 30.0) -> Response:
    """The answer of another process, which owns what the call is about.

    Raises:
        PeerUnavailable: it did not answer, or the call was passed on to us in the first place.
    """
    if FORWARDED in call.scope:
        raise PeerUnavailable("the work is on its way from one process to another; repeat")
    headers = {name: value for name in PASSED_ON if (value := call.header(name.encode())) is not None}
    if call.trace is not None and call.trace.context is not None:
        headers |= {name.decode(): value.decode() for name, value in header_pairs(call.trace.context)}
    request = CallRequest(
        call.scope["method"],
        call.scope["raw_path"],
        call.scope["query_string"],
        headers,
        await call.body(),
        call.principal.name,
        call.principal.admin,
        [(grant.kind, grant.broker, grant.object) for grant in call.principal.grants],
    )
    answer = await ask(call.gateway.peers, owner, request, within)
    response = Response(answer.body, answer.status)
    response.raw_headers = [pair for pair in answer.headers if pair[0] not in NOT_BACK]
    response.raw_headers.append((b"content-length", b"%d" % len(answer.body)))
    return response


def at_the_owner(kind: str) -> Callable[[Handler], Handler]:
    """A handler whose call is answered by the process that owns the work that the path names (``{kind}``); by this one
    where nobody does."""

    def wrap(handler: Handler) -> Handler:
        @wraps(handler)
        async def handle(call: Call) -> Response:
            gateway = call.gateway
            if gateway.peers.shared:
                owner = await gateway.ownership.owner(kind, call.names[kind])
                if owner is not None and gateway.ownership.elsewhere(owner):
                    return await forward(call, owner)
            return await handler(call)

        return handle

    return wrap


async def ask(peers: Peers, owner: Peer, request: CallRequest, within: float) -> CallAnswer:
    """Have another process answer a request of the API. Raises PeerUnavailable."""
    found = await peers.request(owner, "/peer/call", msgspec.msgpack.encode(request), within)
    return msgspec.msgpack.decode(found.body, type=CallAnswer)


class PeerPort:
    """The application on that port."""

    def __init__(self, peers: Peers, api: Callable[..., Awaitable[None]], body_max: int) -> None:
        """``api`` answers the calls; ``body_max``: the largest body of one, in octets."""
        self._peers = peers
        self._api = api
        self.set_body_max(body_max)
        self._running = 0
        self._strangers: Counter[str] = Counter()
        self._verbs: Mapping[str, Callable[[bytes], Awaitable[bytes]]] = {
            "/peer/settle": self._settle,
            "/peer/call": self._call,
            "/peer/tell": self._tell,
        }

    def set_body_max(self, body_max: int) -> None:
        """The largest body of a call, in octets, from now on."""
        self._body_max = body_max + BODY_MORE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI)."""
        assert scope["type"] == "http"
        status, body, is_sealed = await self._answer(scope, receive)
        headers = {"content-type": "text/plain; charset=utf-8"}
        if is_sealed:
            nonce = dict(scope["headers"])[b"x-peer-nonce"].decode("latin-1")
            headers = {"x-peer-seal": self._peers.seal.answer(nonce, status, body)}
        await Response(body, status, headers)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes, bool]:
        """Status and body of an answer, and whether it may be sealed: the request was."""
        if target_length(scope) > TARGET_MAX:
            return TOO_LONG.status, TOO_LONG.text.encode(), False
        if scope["path"] not in self._verbs or scope["method"] != "POST" or scope["query_string"]:
            return 404, b"not found", False
        peers = self._peers
        announced = peers.seal.announced("POST", scope["path"], peers.me.id, dict(scope["headers"]))
        if announced is None:
            return await self._answer_stranger(scope, receive)
        if self._running >= RUNNING_MAX:
            return 503, b"too much is under way", False
        self._running += 1
        try:
            return await self._read(scope, receive, announced, BODY_WITHIN, is_announced=True)
        finally:
            self._running -= 1

    async def _answer_stranger(self, scope: Scope, receive: Receive) -> tuple[int, bytes, bool]:
        """The answer to a request whose head is not sealed, in one of the few places for such."""
        host = (scope.get("client") or ("", 0))[0]
        address = address_of(host) or host
        if self._strangers[address] >= STRANGERS_PER_ADDRESS or self._strangers.total() >= STRANGERS_MAX:
            return 503, b"too many requests without a sealed head", False
        self._strangers[address] += 1
        try:
            return await self._read(scope, receive, UNSEALED_MAX, STRANGER_WITHIN, is_announced=False)
        finally:
            self._strangers[address] -= 1
            self._strangers += Counter()  # drops those that have none

    async def _read(
        self, scope: Scope, receive: Receive, most: int, within: float, *, is_announced: bool
    ) -> tuple[int, bytes, bool]:
        """Read the body, check the seal, and do what is asked."""
        try:
            async with asyncio.timeout(within):
                body = await self._body(receive, min(most, self._body_max))
        except TimeoutError:
            return 408, b"the body did not come", False
        if body is None:
            return 413, b"the body is too large, or was cut off", False
        seal, me = self._peers.seal, self._peers.me
        refused = seal.check("POST", scope["path"], me.id, dict(scope["headers"]), body, is_announced=is_announced)
        if refused:
            host, port = scope.get("client") or ("", 0)
            log("cluster.refused", logging.WARNING, reason=refused, connection=f"{host}:{port}")
            return 403, refused.encode(), refused not in STRANGE
        if (place := scope.get(CONNECTION)) is not None:
            place.known(PROCESS)
        try:
            return 200, await self._verbs[scope["path"]](body), True
        except msgspec.DecodeError as error:
            return 400, str(error).encode(), True
        except GatewayError as error:
            return 503, str(error).encode(), True

    async def _body(self, receive: Receive, most: int) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                return None
            if not message.get("more_body", False):
                return bytes(body)

    async def _settle(self, body: bytes) -> bytes:
        request = msgspec.msgpack.decode(body, type=SettleRequest)
        return msgspec.msgpack.encode(await self._peers.settled(request))

    async def _tell(self, body: bytes) -> bytes:
        self._peers.heard(msgspec.msgpack.decode(body, type=TellRequest))
        return b""

    async def _call(self, body: bytes) -> bytes:
        """Answer a call as the API does, for the principal whom the other process has identified."""
        request = msgspec.msgpack.decode(body, type=CallRequest)
        grants = tuple(Grant(*grant) for grant in request.grants)
        headers = [
            (name.encode("ascii"), value.encode("utf-8", "surrogateescape")) for name, value in request.headers.items()
        ]
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": request.method,
            "path": request.path.decode("latin-1"),
            "raw_path": request.path,
            "query_string": request.query,
            "root_path": "",
            "headers": headers,
            FORWARDED: Principal(request.principal, request.admin, grants),
        }
        left: list[Message] = [{"type": "http.request", "body": request.body, "more_body": False}]
        gone = asyncio.Event()
        answer = CallAnswer(500, [], b"")
        pieces: list[bytes] = []

        async def receive() -> Message:
            if left:
                return left.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status, answer.headers = message["status"], list(message.get("headers", ()))
            else:
                pieces.append(message.get("body", b""))

        await self._api(scope, receive, send)
        answer.body = b"".join(pieces)
        return msgspec.msgpack.encode(answer)
