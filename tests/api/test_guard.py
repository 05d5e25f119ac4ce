"""One HTTP connection: what goes in as octets, what comes out as octets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.api.http import cycle, guard
from gateway.api.http.connections import Connections
from gateway.api.http.guard import Bounds, GuardedProtocol, guarded
from gateway.runtime.clock import clock

DATE = b"date: today\r\n"
Answer = Callable[[Any, Any, Any], Awaitable[None]]


class Transport(asyncio.Transport):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    reading = True
    """Whether octets would be read."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Connection:
    """A protocol, its transport, and the application that answers."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.answer: Answer = self.plain
        self.keep_alive = 30
        self.transport = Transport()
        self.bounds = Bounds()

    def open(self) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            self.scopes.append(scope)
            await self.answer(scope, receive, send)

        config = uvicorn.Config(
            app, http=GuardedProtocol, ws="none", lifespan="off", interface="asgi3", log_config=None,
            timeout_keep_alive=self.keep_alive, proxy_headers=False,
        )  # fmt: skip
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"today")]
        self.protocol: GuardedProtocol = guarded(self.bounds)(config=config, server_state=state, app_state={})
        self.protocol.connection_made(self.transport)

    async def plain(self, scope: Any, receive: Any, send: Any) -> None:
        body: bytes = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def ask(self, *requests: bytes) -> bytes:
        """What is written once nothing goes on any more."""
        before = len(self.transport.writes)
        for request in requests:
            self.protocol.data_received(request)
        while self.protocol.tasks:
            await asyncio.sleep(0)
        return b"".join(self.transport.writes[before:])


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    connection = Connection()
    connection.open()
    yield connection
    connection.protocol.connection_lost(None)


def request(target: bytes = b"/a", body: bytes = b"", method: bytes = b"POST", more: bytes = b"") -> bytes:
    head = b"%b %b HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n%b\r\n"
    return head % (method, target, len(body), more) + body


async def test_head_and_body_are_one_write(connection: Connection) -> None:
    assert await connection.ask(request(body=b"hello")) == (
        b"HTTP/1.1 200 OK\r\n" + DATE + b"content-length: 5\r\n\r\nhello"
    )
    assert len(connection.transport.writes) == 1
    connection.protocol.server_state.default_headers = [(b"date", b"tomorrow")]
    assert b"\r\ndate: tomorrow\r\n" in await connection.ask(request())


@pytest.mark.parametrize(
    ("target", "path", "raw_path", "query"),
    [
        (b"/v1/a:b", "/v1/a:b", b"/v1/a:b", b""),
        (b"/%2F%C3%A9?q=%20&r=/?", "/" + "/é", b"/%2F%C3%A9", b"q=%20&r=/?"),
        (b"/a?", "/a", b"/a", b""),
        (b"http://here/a?b=c", "/a", b"/a", b"b=c"),
    ],
)
async def test_target(connection: Connection, target: bytes, path: str, raw_path: bytes, query: bytes) -> None:
    await connection.ask(request(target))
    (scope,) = connection.scopes
    assert (scope["method"], scope["path"], scope["raw_path"], scope["query_string"]) == ("POST", path, raw_path, query)


async def test_pipelined_requests_are_answered_in_their_order(connection: Connection) -> None:
    found = await connection.ask(b"".join(request(body=b"%d" % index) for index in range(3)))
    assert [answer[-1:] for answer in found.split(b"HTTP/1.1 ")[1:]] == [b"0", b"1", b"2"]


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nUpgrade: h2c\r\n"
"""What Java's HTTP client sends with the first request of a connection that is not encrypted."""


def chunked(*parts: bytes, more: bytes = b"") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))
    return b"POST /a HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n%b\r\n" % more + chunks


async def answers(connection: Connection, octets: bytes, piece: int) -> list[bytes]:
    """The bodies that come back, for octets that come in pieces of this size."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        said = b"%b %b" % (scope["method"].encode(), body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
        await send({"type": "http.response.body", "body": said})

    connection.answer = echo
    found = await connection.ask(*(octets[start : start + piece] for start in range(0, len(octets), piece)))
    return [answer.partition(b"\r\n\r\n")[2] for answer in found.split(b"HTTP/1.1 200")[1:]]


@pytest.mark.parametrize("piece", [1, 7, 64, 10_000])
async def test_who_asks_for_another_protocol_is_served_in_this_one(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(guard, "SMALL_FREE", 10_000)
    octets = b"".join(
        [
            request(body=b"one", more=UPGRADE),
            request(body=b"two"),
            chunked(b"th", b"ree", more=UPGRADE),
            request(more=UPGRADE),
            b"GET /a HTTP/1.1\r\nHost: here\r\n%b\r\n" % UPGRADE,
            request(
                body=b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", more=b"Connection: upgrade\r\nUpgrade: websocket\r\n"
            ),
            request(body=b"last", more=UPGRADE),
        ]
    )
    smuggled = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
    assert await answers(connection, octets, piece) == [
        b"POST one", b"POST two", b"POST three", b"POST ", b"GET ", b"POST " + smuggled, b"POST last",
    ]  # fmt: skip
    assert not connection.transport.closing


async def test_a_wrong_body_behind_an_upgrade_is_refused(connection: Connection) -> None:
    connection.protocol.data_received(chunked(more=UPGRADE).replace(b"0\r\n\r\n", b"zz\r\n"))
    assert b"".join(connection.transport.writes).startswith(b"HTTP/1.1 400")
    assert connection.transport.closing


async def test_a_body_of_unknown_length_is_chunked_and_its_head_does_not_wait(connection: Connection) -> None:
    heads = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        heads.append(b"".join(connection.transport.writes))
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"de"})

    connection.answer = stream
    assert (await connection.ask(request())).endswith(b"\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert heads == [b"HTTP/1.1 200 OK\r\n" + DATE + b"transfer-encoding: chunked\r\n\r\n"]


async def test_http_1_0_gets_no_chunks(connection: Connection) -> None:
    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        await send({"type": "http.response.body", "body": b"de"})

    connection.answer = stream
    found = await connection.ask(b"GET /a HTTP/1.0\r\n\r\n")
    assert found == b"HTTP/1.1 200 OK\r\n" + DATE + b"connection: close\r\n\r\nabcde"
    assert connection.transport.closing


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET http://here/ HTTP/1.1\r\nHost: here\r\n\r\n",
        b'GET /?a=" HTTP/1.1\r\nHost: here\r\n\r\n',
        b"GET / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
)
async def test_requests_of_every_form_are_answered_in_pieces_and_cut(connection: Connection, head: bytes) -> None:
    body = b"x" * (3 * cycle.WRITE_MAX)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body[:-1], "more_body": True})
        await send({"type": cycle.CUT})

    connection.answer = large
    assert (await connection.ask(head)).endswith(b"\r\n\r\n" + body[:-1])
    assert max(map(len, connection.transport.writes)) < cycle.WRITE_MAX + 1_000
    assert connection.transport.closing


async def test_a_head_request_gets_no_body(connection: Connection) -> None:
    found = await connection.ask(request(method=b"HEAD"))
    assert found.endswith(b"content-length: 0\r\n\r\n")

    async def long(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    connection.answer = long
    assert (await connection.ask(request(method=b"HEAD"))).endswith(b"content-length: 5\r\n\r\n")
    assert not connection.transport.closing


async def test_the_connection_is_closed_where_either_side_says_so(connection: Connection) -> None:
    assert b"connection: close\r\n" in await connection.ask(request(more=b"Connection: close\r\n"))
    assert connection.transport.closing


async def test_a_connection_that_is_made_while_the_server_ends_has_one_answer(connection: Connection) -> None:
    type(connection.protocol).is_ending = True
    assert b"connection: close\r\n" in await connection.ask(request())
    assert connection.transport.closing


async def test_an_answer_may_close_the_connection(connection: Connection) -> None:
    async def last(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    connection.answer = last
    found = await connection.ask(request())
    assert found.count(b"connection: close\r\n") == 1
    assert connection.transport.closing


WRONG: list[list[Any]] = [
    [{"type": "http.response.body", "body": b""}],
    [{"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]}],
    [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"abc"},
    ],
    [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
        {"type": "http.response.body", "body": b"a"},
    ],
    [
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
        {"type": "http.response.start", "status": 200, "headers": []},
    ],
]


@pytest.mark.parametrize("messages", WRONG)
async def test_an_answer_that_is_none_ends_in_500_or_the_end(connection: Connection, messages: list[Any]) -> None:
    async def wrong(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    connection.answer = wrong
    found = await connection.ask(request())
    assert connection.transport.closing
    assert b"abc" not in found
    assert b"set-cookie" not in found
    if messages[0]["type"] == "http.response.body" or len(messages) == 1:
        assert found.startswith(b"HTTP/1.1 500 ")


async def test_a_caller_that_waits_to_be_asked_for_the_body(connection: Connection) -> None:
    head = request(more=b"Expect: 100-continue\r\n").replace(b"Length: 0", b"Length: 2")
    connection.protocol.data_received(head)
    while not connection.transport.writes:
        await asyncio.sleep(0)
    assert connection.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    assert (await connection.ask(b"ok")).endswith(b"\r\n\r\nok")


async def test_an_idle_connection_is_closed_and_one_in_use_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer for all requests: it looks when the last answer was."""
    now = [100.0]
    timers: list[tuple[float, Any]] = []

    class Loop:
        def call_at(self, at: float, call: Any) -> Any:
            timers.append((at, call))
            return asyncio.get_running_loop().call_later(60, lambda: None)

        def call_later(self, delay: float, call: Any) -> Any:
            return self.call_at(now[0] + delay, call)

        def create_task(self, work: Any) -> Any:
            return asyncio.get_running_loop().create_task(work)

    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    connection = Connection()
    connection.open()
    connection.protocol.loop = Loop()  # type: ignore[assignment]  # as much of one as is needed
    await connection.ask(request())
    ((at, look),) = timers
    assert at == 130.0
    now[0] = 120.0
    await connection.ask(request())
    assert len(timers) == 1
    now[0] = 130.0
    look()
    assert not connection.transport.closing
    assert timers[-1][0] == 150.0

    hold = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await hold.wait()
        await connection.plain(scope, receive, send)

    connection.answer = slow
    connection.protocol.data_received(request())
    now[0] = 150.0
    timers[-1][1]()
    assert not connection.transport.closing  # a request is under way
    hold.set()
    await connection.ask()
    assert timers[-1][0] == 180.0
    now[0] = 180.0
    timers[-1][1]()
    assert connection.transport.closing
    connection.protocol.connection_lost(None)


async def test_connections_of_one_address_are_counted(connection: Connection) -> None:
    connections = Connections(per_address=2)
    refused: list[str] = []
    connections.holdings.on_refused = lambda _, reached: refused.append(reached)
    bounds = Bounds(connections=connections)

    def opened(host: str) -> Connection:
        made = Connection()
        made.bounds = bounds
        made.transport = Transport()
        made.transport._extra["peername"] = (host, 1)  # type: ignore[attr-defined]  # asyncio keeps it there
        made.open()
        return made

    first, second, third = (opened("192.0.2.1") for _ in range(3))
    assert [each.transport.closing for each in (first, second, third)] == [False, False, True]
    assert not opened("192.0.2.2").transport.closing
    assert not any(opened("127.0.0.1").transport.closing for _ in range(5))
    assert not any(opened("::1").transport.closing for _ in range(5))
    assert (connections.open["192.0.2.1"], refused) == (2, ["share"])
    third.protocol.connection_lost(None)
    assert connections.open["192.0.2.1"] == 2
    first.protocol.connection_lost(None)
    second.protocol.connection_lost(None)
    assert "192.0.2.1" not in connections.open
    assert not opened("192.0.2.1").transport.closing
    assert [opened(f"2001:db8::{host}").transport.closing for host in (1, 2, 3)] == [False, False, True]
    assert not opened("2001:db8:0:1::1").transport.closing, "another network"
    assert not opened("not an address").transport.closing


async def test_the_rest_of_a_body_whose_answer_is_written(connection: Connection) -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    connection.answer = early
    connection.bounds.rest = 0.05
    whole = request(body=b"x" * 100)
    assert b"401" in await connection.ask(whole[:-50])
    assert not connection.transport.closing
    for octet in whole[-50:-1]:  # it drips
        connection.protocol.data_received(bytes([octet]))
        await asyncio.sleep(0.002)
    assert connection.transport.closing


async def test_a_body_that_comes_whole_after_its_answer_keeps_the_connection(connection: Connection) -> None:
    async def early(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    connection.answer = early
    connection.bounds.rest = 0.02
    whole = request(body=b"x" * 100)
    await connection.ask(whole[:-50])
    await connection.ask(whole[-50:])
    await asyncio.sleep(0.05)
    assert not connection.transport.closing


async def test_empty_lines_are_no_request(connection: Connection) -> None:
    connection.keep_alive = 0
    connection.transport = Transport()
    connection.open()
    await connection.ask(request())
    for _ in range(3):
        connection.protocol.data_received(b"\r\n")
        await asyncio.sleep(0)
    assert connection.transport.closing


async def test_who_does_not_read_is_cut_off(connection: Connection) -> None:
    connection.bounds.send = 0.02
    connection.protocol.pause_writing()
    connection.protocol.pause_writing()
    connection.protocol.resume_writing()
    connection.protocol.resume_writing()
    await asyncio.sleep(0.05)
    assert not connection.transport.closing
    connection.protocol.pause_writing()
    await asyncio.sleep(0.05)
    assert connection.transport.closing


@pytest.mark.parametrize("answer", ["plain", "large", "late"])
async def test_a_connection_that_a_write_has_closed(
    connection: Connection, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The protocol hears of it a turn later; the next write to such a transport raises."""
    transport, writes = connection.transport, 0

    def write(data: Any) -> None:
        nonlocal writes
        assert not transport.closing, "the handler is closed"
        writes += 1
        transport.closing = True

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000")]})
        await send({"type": "http.response.body", "body": bytes(100_000)})

    async def late(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    transport.write = write  # type: ignore[method-assign]
    connection.answer = {"plain": connection.plain, "large": large, "late": late}[answer]
    await connection.ask(request(body=b"x"))
    assert writes == 1
    assert not caplog.records


# --------------------------------------------------------------------------------- behind another request


NEXT = b"GET /v1/brokers HTTP/1.1\r\nHo"


@pytest.mark.parametrize("parts", [1, 2, 3])
async def test_a_head_behind_a_body_is_counted_without_it(connection: Connection, parts: int) -> None:
    octets = request(body=b"x /v1/" * 5_000) + NEXT
    step = -(-len(octets) // parts)
    found = await connection.ask(*(octets[start : start + step] for start in range(0, len(octets), step)))
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not connection.transport.closing
    assert connection.protocol._octets == len(NEXT) - 3
    assert b"200 OK" in await connection.ask(b"st: x\r\n\r\n")


async def test_a_head_behind_a_request_is_bounded_as_well(connection: Connection) -> None:
    assert b"200 OK" in await connection.ask(request(body=b"hello") + NEXT)
    assert b" 400 " in await connection.ask(b"x" * (guard.HEAD_MAX - len(NEXT) + 4))
    assert connection.transport.closing


REFUSED = [
    NEXT + b"x" * guard.HEAD_MAX,
    b"\x00\x00\x00",
    request(more=b"Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"") + b"nonsense\r\n",
]


@pytest.mark.parametrize("wrong", REFUSED, ids=["long", "garbage", "chunk"])
async def test_an_answer_that_is_due_is_not_lost_to_a_refusal(connection: Connection, wrong: bytes) -> None:
    found = await connection.ask(request(body=b"one") + request(body=b"two") + wrong, b"more")
    first, second, refusal = found.split(b"HTTP/1.1 ")[1:]
    assert (first[:3], first[-3:], second[:3], second[-3:], refusal[:3]) == (b"200", b"one", b"200", b"two", b"400")
    assert connection.transport.closing


async def test_a_head_that_is_late_waits_for_the_answer_before_it(connection: Connection) -> None:
    hold = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await hold.wait()
        await connection.plain(scope, receive, send)

    connection.answer = slow
    connection.bounds.head = 0.02
    connection.protocol.data_received(request(body=b"hello") + NEXT)
    await asyncio.sleep(0.1)
    assert not connection.transport.closing
    hold.set()
    assert (await connection.ask()).endswith(b"hello")
    await asyncio.sleep(0.1)
    assert connection.transport.closing


# ----------------------------------------------------------------------------------------- octet by octet


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
DRIPS = [
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: ", True),
    (HEAD + b"Content-Length: 100\r\n\r\n", True),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n64\r\n", False),  # lines of a stream come when they will
]


@pytest.mark.parametrize(("begin", "paused"), DRIPS, ids=["head", "body", "stream"])
async def test_who_sends_octet_by_octet_is_read_from_now_and_then(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, begin: bytes, paused: bool
) -> None:
    monkeypatch.setattr(guard, "SMALL_PAUSE", 0.05)
    transport, protocol = connection.transport, connection.protocol
    protocol.data_received(begin)
    for _ in range(guard.SMALL_FREE - (len(begin) < guard.SMALL)):
        protocol.data_received(b"x")
        await asyncio.sleep(0)
        assert transport.reading
    protocol.data_received(b"x")
    assert transport.reading is not paused
    async with asyncio.timeout(10):
        while not transport.reading:
            await asyncio.sleep(0.01)
    protocol.data_received(b"x")
    assert transport.reading is not paused
    protocol.connection_lost(None)
    assert protocol._pause is None


async def test_whoever_sends_whole_requests_is_read_from_always(connection: Connection) -> None:
    for _ in range(50):
        connection.protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0)
        connection.protocol.data_received(HEAD + b"Content-Length: 2\r\n\r\n")
        connection.protocol.data_received(b"ok")
        await asyncio.sleep(0)
    assert connection.protocol._pause is None


async def test_a_connection_that_others_hold_is_not_read_on(connection: Connection) -> None:
    connection.protocol.data_received(DRIPS[1][0])
    connection.protocol.flow.pause_reading()
    connection.protocol._read_on()
    assert not connection.transport.reading


async def test_pipelined_requests_wait_unparsed(connection: Connection) -> None:
    """Parsed requests cost about 75 times the memory of their bytes, so few are parsed before their turn."""
    most = 0

    async def count(scope: Any, receive: Any, send: Any) -> None:
        nonlocal most
        most = max(most, len(connection.protocol.pipeline))
        await receive()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    connection.answer = count
    answers = await connection.ask(b"GET /a HTTP/1.1\r\nHost: here\r\n\r\n" * 8_000)
    assert answers.count(b"HTTP/1.1 204 ") == len(connection.scopes) == 8_000
    assert 0 < most <= guard.PARSED_MAX // 30
    assert connection.transport.reading


async def test_nothing_is_read_while_a_pipelined_request_waits(connection: Connection) -> None:
    """A caller that listens for the end of its connection does not let more requests in."""
    end = asyncio.Event()

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        waiting = asyncio.ensure_future(receive())
        await end.wait()
        waiting.cancel()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    connection.answer = hold
    answering = asyncio.ensure_future(connection.ask(request(), request(b"/b")))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not connection.transport.reading
    connection.protocol.data_received(request(b"/c"))
    connection.protocol.data_received(b"x" * guard.UNPARSED_MAX)
    assert connection.transport.closing, "what comes although nothing is read is bounded"
    end.set()
    await answering


async def test_a_large_answer_is_written_as_it_is_read(connection: Connection) -> None:
    body = bytes(range(256)) * 1_000

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    connection.answer = large
    plain = connection.transport.write

    def write(data: Any) -> None:
        plain(data)
        connection.protocol.pause_writing()

    connection.transport.write = write  # type: ignore[method-assign]
    answering = asyncio.ensure_future(connection.ask(request()))
    written = 0
    while not answering.done():
        for _ in range(10):
            await asyncio.sleep(0)
        now = sum(map(len, connection.transport.writes))
        assert now - written <= cycle.WRITE_MAX + 1_000
        written = now
        connection.protocol.resume_writing()
    assert (await answering).endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a/b@c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nauthorization: Bearer y\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", 200),
    ],
)
async def test_heads_that_others_may_read_in_another_way(connection: Connection, head: bytes, status: int) -> None:
    answers = await connection.ask(request(), head)
    first, _, second = answers.partition(b"HTTP/1.1 200 OK\r\n")[2].partition(b"HTTP/1.1 ")
    assert b"content-length: 0" in first, "the answer that is due comes first"
    assert second.startswith(b"%d " % status)
    assert connection.transport.closing == (status != 200 or b"HTTP/1.0" in head)
    assert len(connection.scopes) == (2 if status == 200 else 1)
