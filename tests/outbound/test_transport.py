"""Requests and answers over real connections, and which connections carry another one."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from gateway.errors import (
    AddressDenied,
    AnswerCut,
    ConnectFailed,
    EncodeError,
    OutboundTimeout,
    Overloaded,
    ResolveFailed,
    StateError,
)
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS, GuardedTransport, OutboundRules, dialer
from gateway.outbound.addresses import Address, parse_address
from gateway.outbound.answers import AnswerReader
from gateway.outbound.connection import HttpConnection
from gateway.outbound.dialer import is_ours
from tests.outbound.conftest import Make
from tests.outbound.endpoint import Endpoint, until


async def test_a_request_arrives_and_its_answer_comes_back(transport: GuardedTransport, server: Endpoint) -> None:
    answer = await transport.send("POST", server.url("/200?a=b"), [(b"webhook-id", b"m-1")], b"\x00\xff")
    assert (answer.status, answer.body) == (404, b"")
    answer = await transport.send("POST", server.url("/200"), [(b"webhook-id", b"m-1")], b"\x00\xff")
    assert (answer.status, answer.body, answer.truncated, answer.resent) == (200, b"ok", False, False)
    request = server.requests[-1]
    assert request.line == "POST /200 HTTP/1.1"
    assert request.body == b"\x00\xff"
    assert request.headers["webhook-id"] == "m-1"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["accept-encoding"] == "identity"
    assert "cookie" not in request.headers


async def test_head_and_body_leave_in_one_write(transport: GuardedTransport) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        call = asyncio.create_task(
            transport.send("POST", f"http://127.0.0.1:{listener.getsockname()[1]}/", (), b"x" * 1_000)
        )
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            got = await loop.sock_recv(accepted, 65_536)
            assert got.endswith(b"\r\n\r\n" + b"x" * 1_000)
            await loop.sock_sendall(accepted, b"HTTP/1.1 204 x\r\n\r\n")
            assert (await call).status == 204


@pytest.mark.parametrize("path", ["/200", "/201", "/204", "/chunked", "/interim", "/404", "/500"])
async def test_a_connection_is_used_again(path: str, transport: GuardedTransport, server: Endpoint) -> None:
    for _ in range(3):
        await transport.send("POST", server.url(path), (), b"x")
    assert server.connections == 1
    assert (transport.open, transport.idle) == (1, 1)


@pytest.mark.parametrize("path", ["/close", "/until-end", "/gzip-bomb?", "/twice"])
async def test_a_connection_is_not_used_again(path: str, make: Make, server: Endpoint) -> None:
    transport = make(body_kept=1_000)
    for _ in range(3):
        await transport.send("POST", server.url(path.rstrip("?")), (), b"x")
    assert server.connections == 3
    assert transport.idle == 0


async def test_an_answer_that_comes_unasked_is_nobodys(transport: GuardedTransport, server: Endpoint) -> None:
    await transport.send("POST", server.url("/later"))
    assert transport.idle == 1
    await until(lambda: transport.idle == 0)  # the second answer comes
    answer = await transport.send("POST", server.url("/404"))
    assert answer.status == 404
    assert server.connections == 2


@pytest.mark.parametrize("last_words", [b"HTTP/1.1 200 OK\r\n", b""])
async def test_what_came_unasked_is_seen_before_the_loop_reads_it(last_words: bytes) -> None:
    ours, theirs = socket.socketpair()
    connection = HttpConnection("key", "https://x.example", DEFAULT_OUTBOUND_LIMITS, lambda _: None, lambda _: None)
    assert connection.is_stale()  # it is not open yet
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
    assert not connection.is_stale()
    theirs.send(last_words)
    theirs.close()
    assert connection.is_stale()
    await asyncio.sleep(0.01)
    with pytest.raises(AnswerCut, match="before it got the request") as error:
        await connection.exchange(b"GET / HTTP/1.1\r\n\r\n", head_only=False, deadline=0)
    assert not error.value.sent


async def test_an_answer_before_the_end_of_the_request_ends_the_connection(
    transport: GuardedTransport, server: Endpoint
) -> None:
    answer = await transport.send("POST", server.url("/hasty"), (), b"x" * (32 << 20))
    assert answer.status == 200
    assert transport.idle == 0


async def test_a_head_request(transport: GuardedTransport, server: Endpoint) -> None:
    answer = await transport.send("HEAD", server.url("/200"))
    assert (answer.status, answer.body) == (200, b"")
    assert (await transport.send("GET", server.url("/200"))).body == b"ok"
    assert server.connections == 2


# ------------------------------------------------------------------------------------ sending a second time


async def test_a_kept_connection_that_is_closed_is_not_used(transport: GuardedTransport, server: Endpoint) -> None:
    for _ in range(3):
        answer = await transport.send("POST", server.url("/kept-then-closed"), (), b"x")
        assert not answer.resent
        await until(lambda: transport.open == 0)
    assert server.connections == 3
    assert len(server.requests) == 3


@pytest.mark.parametrize(("method", "repeatable"), [("GET", None), ("DELETE", None), ("POST", True)])
async def test_a_request_is_sent_again_where_that_is_harmless(
    method: str, repeatable: bool | None, transport: GuardedTransport, server: Endpoint
) -> None:
    await transport.send("POST", server.url("/200"))
    answer = await transport.send(method, server.url("/first-only"), repeatable=repeatable)
    assert (answer.status, answer.resent) == (200, True)
    assert server.paths() == ["/200", "/first-only", "/first-only"]
    assert server.connections == 2


@pytest.mark.parametrize(("method", "repeatable"), [("POST", None), ("PATCH", None), ("GET", False)])
async def test_a_request_is_not_sent_again_where_it_may_do_harm(
    method: str, repeatable: bool | None, transport: GuardedTransport, server: Endpoint
) -> None:
    await transport.send("POST", server.url("/200"))
    with pytest.raises(AnswerCut, match="without an answer") as error:
        await transport.send(method, server.url("/first-only"), repeatable=repeatable)
    assert error.value.sent
    assert server.paths() == ["/200", "/first-only"]


@pytest.mark.parametrize("path", ["/hang-up", "/half-head", "/half-body", "/reset"])
async def test_a_request_is_never_sent_again_on_a_new_connection(
    path: str, transport: GuardedTransport, server: Endpoint
) -> None:
    with pytest.raises(AnswerCut):
        await transport.send("GET", server.url(path))
    assert server.paths() == [path]


@pytest.mark.parametrize("path", ["/half-head", "/half-body"])
async def test_a_request_is_not_sent_again_once_the_answer_began(
    path: str, transport: GuardedTransport, server: Endpoint
) -> None:
    await transport.send("GET", server.url("/200"))
    with pytest.raises(AnswerCut):
        await transport.send("GET", server.url(path), repeatable=True)
    assert server.paths() == ["/200", path]


# -------------------------------------------------------------------------------------------------- limits


async def test_so_many_requests_to_one_site_and_no_more(make: Make, server: Endpoint) -> None:
    transport = make(connections_per_site=2)
    calls = [asyncio.create_task(transport.send("POST", server.url("/never"))) for _ in range(2)]
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="connections_per_site"):
        await transport.send("POST", server.url("/200"))
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await until(lambda: transport.open == 0)
    assert (await transport.send("POST", server.url("/200"))).status == 200


async def test_so_many_requests_in_all_and_idle_ones_make_room(make: Make, server: Endpoint) -> None:
    async def resolve(host: str) -> list[str]:
        return ["127.0.0.1"]

    transport = make(OutboundRules(allow=["*.example"]), resolve=resolve, connections=2)
    for host in ("a.example", "b.example", "c.example"):
        await transport.send("POST", server.url("/200", host=host))
    assert (transport.open, transport.idle) == (2, 2)
    calls = [asyncio.create_task(transport.send("POST", server.url("/never", host=f"{n}.example"))) for n in "de"]
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="the limit is connections"):
        await transport.send("POST", server.url("/200", host="f.example"))
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_few_connections_are_kept(make: Make, server: Endpoint) -> None:
    transport = make(idle_per_site=2)
    await asyncio.gather(*(transport.send("POST", server.url("/200")) for _ in range(5)))
    await until(lambda: transport.open == 2)
    assert transport.idle == 2
    none = make(idle_per_site=0)
    await none.send("POST", server.url("/200"))
    assert none.idle == 0
    some = make(idle=1)
    await asyncio.gather(*(some.send("POST", server.url("/200")) for _ in range(3)))
    assert some.idle == 1


async def test_each_of_100_requests_at_once_finds_its_connection_again(make: Make, server: Endpoint) -> None:
    transport = make()
    first, second = 0, 0
    for _ in range(2):
        await asyncio.gather(*(transport.send("POST", server.url("/200")) for _ in range(100)))
        first, second = second, server.connections
    assert (first, second) == (100, 100)


async def test_idle_connections_are_closed_in_time(make: Make, server: Endpoint) -> None:
    transport = make(idle_timeout=0.4)
    await transport.send("POST", server.url("/200"))
    await asyncio.sleep(0.2)
    await asyncio.gather(*(transport.send("POST", server.url("/200")) for _ in range(2)))
    await asyncio.sleep(0.2)
    assert transport.idle == 2, "the first one was used in between"
    await until(lambda: transport.open == 0)
    assert transport.idle == 0


async def test_a_request_that_will_end_its_connection_takes_nobodys(
    transport: GuardedTransport, server: Endpoint
) -> None:
    await transport.send("POST", server.url("/200"))
    with pytest.raises(OutboundTimeout):
        await transport.send("POST", server.url("/never"), within=0.05, fresh=True)
    assert transport.idle == 1
    await transport.send("POST", server.url("/200"))
    assert server.connections == 2
    await transport.send("POST", server.url("/200"), fresh=True)
    assert (server.connections, transport.idle) == (3, 2), "it is kept for the next one, where it was answered"


async def test_a_connection_grows_old(make: Make, server: Endpoint) -> None:
    transport = make(lifetime=0.5)
    for _ in range(2):
        await transport.send("POST", server.url("/200"))
    assert server.connections == 1
    await asyncio.sleep(0.5)
    await transport.send("POST", server.url("/200"))
    assert server.connections == 2


async def test_a_caller_that_goes_takes_its_connection_along(transport: GuardedTransport, server: Endpoint) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await transport.send("POST", server.url("/never"))
    await until(lambda: transport.open == 0)


async def test_after_the_end(transport: GuardedTransport, server: Endpoint) -> None:
    call = asyncio.create_task(transport.send("POST", server.url("/drip-head"), within=5))
    await transport.send("POST", server.url("/200"))
    await transport.aclose()
    assert transport.idle == 0
    with pytest.raises(StateError, match="closed"):
        await transport.send("POST", server.url("/200"))
    assert (await call).status == 200
    assert transport.idle == 0


# --------------------------------------------------------------------------------------------- no connection


async def test_nobody_listens(transport: GuardedTransport) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1: Connection refused$") as error:
            await transport.send("POST", f"http://127.0.0.1:{held.getsockname()[1]}/")
    assert not error.value.sent
    assert transport.open == 0


async def test_where_nobody_listens_no_parser_is_left_to_the_garbage_collector(transport: GuardedTransport) -> None:
    def readers() -> int:
        return sum(isinstance(each, AnswerReader) for each in gc.get_objects())

    gc.disable()
    try:
        before = readers()
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            for _ in range(3):
                with pytest.raises(ConnectFailed):
                    await transport.send("POST", f"http://127.0.0.1:{held.getsockname()[1]}/")
        assert readers() == before
    finally:
        gc.enable()


async def test_the_next_address_is_tried(make: Make, server: Endpoint) -> None:
    async def resolve(host: str) -> list[str]:
        assert host == "hooks.example"
        return ["127.0.0.2", "127.0.0.3", "127.0.0.1"]

    tried: list[str] = []

    async def dial(address: Address, port: int) -> socket.socket:
        tried.append(str(address))
        if str(address) == "127.0.0.3":
            await asyncio.sleep(30)
        if str(address) != "127.0.0.1":
            raise ConnectionRefusedError(111, "no")
        return await dialer.dial(address, port)

    transport = make(resolve=resolve, dial=dial, connect_timeout=1.2)
    assert (await transport.send("POST", server.url("/200", host="hooks.example"))).status == 200
    assert tried == ["127.0.0.2", "127.0.0.3", "127.0.0.1"]


async def test_all_addresses_are_judged_and_few_are_tried(make: Make) -> None:
    async def resolve(host: str) -> list[str]:
        return [f"1.1.1.{number}" for number in range(50)] + ([] if host == "good.test-zone.example" else ["10.0.0.1"])

    tried: list[str] = []

    async def dial(address: Address, port: int) -> socket.socket:
        tried.append(str(address))
        raise OSError(113, "no route")

    transport = make(OutboundRules(), resolve=resolve, dial=dial)
    with pytest.raises(ConnectFailed, match=r"1\.1\.1\.7: No route to host \(and 7 more\)"):
        await transport.send("POST", "https://good.test-zone.example/")
    assert len(tried) == 8
    with pytest.raises(AddressDenied, match=r"10\.0\.0\.1 is denied"):
        await transport.send("POST", "https://bad.test-zone.example/")
    assert len(tried) == 8


async def test_a_connect_that_takes_too_long(make: Make) -> None:
    async def dial(address: Address, port: int) -> socket.socket:
        await asyncio.sleep(30)
        raise AssertionError

    transport = make(dial=dial, connect_timeout=0.05)
    with pytest.raises(ConnectFailed, match=r"no connection within 0\.[01] s"):
        await transport.send("POST", "http://127.0.0.1:9/")


@pytest.mark.parametrize("found", [[], "never", ResolveFailed("hooks.example: no such host")])
async def test_a_host_without_an_address(found: object, make: Make) -> None:
    async def resolve(host: str) -> list[str]:
        if isinstance(found, Exception):
            raise found
        if found == "never":
            await asyncio.sleep(30)
        return []

    transport = make(resolve=resolve, connect_timeout=0.05)
    with pytest.raises(ResolveFailed, match=r"no address|no such host"):
        await transport.send("POST", "http://hooks.example/")
    assert transport.open == 0


@pytest.mark.parametrize("text", ["fe80::1%eth0", "127.0.0.1%lo", "localhost", "", "0x7f.1"])
async def test_a_resolver_that_answers_no_address(text: str, make: Make) -> None:
    async def resolve(host: str) -> list[str]:
        return [text]

    with pytest.raises(AddressDenied, match="no address or has a zone"):
        await make(resolve=resolve).send("POST", "http://hooks.example/")


async def test_the_system_resolves_localhost(transport: GuardedTransport, server: Endpoint) -> None:
    answer = await transport.send("POST", server.url("/200", host="localhost"))
    assert answer.status == 200


async def test_what_cannot_be_sent_costs_no_connection(transport: GuardedTransport, server: Endpoint) -> None:
    with pytest.raises(EncodeError):
        await transport.send("POST", server.url("/200"), [(b"x", b"a\r\nb")])
    with pytest.raises(EncodeError):
        await transport.send("BREW", server.url("/200"))
    with pytest.raises(EncodeError):
        await transport.send("POST", "http://u:p@127.0.0.1/")
    assert server.connections == 0


async def test_a_deadline_of_the_callers(transport: GuardedTransport, server: Endpoint) -> None:
    with pytest.raises(OutboundTimeout):
        await transport.send("POST", server.url("/never"), within=0.05)


async def test_a_port_of_ours_is_ours_at_every_address_of_the_machine(make: Make, server: Endpoint) -> None:
    async def resolve(host: str) -> list[str]:
        return ["127.0.0.3"]

    rules = OutboundRules(allow=["127.0.0.0/8", "hooks.example"], own=[("0.0.0.0", server.port)])
    transport = make(rules, resolve=resolve)
    for host in ("127.0.0.1", "127.0.0.2", "hooks.example"):
        with pytest.raises(AddressDenied, match=f"port {server.port} is this gateway itself"):
            await transport.send("POST", server.url("/200", host=host))
    assert server.connections == 0


def test_which_addresses_are_ours() -> None:
    for text, ours in (
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("192.0.2.7", False),
    ):
        address = parse_address(text)
        assert address is not None
        assert is_ours(address) is ours
    for *_, (text, *_) in socket.getaddrinfo(socket.gethostname(), 0):
        own = parse_address(text)
        assert own is None or is_ours(own)


async def test_what_can_be_said_beforehand(transport: GuardedTransport) -> None:
    transport.check("http://127.0.0.1:1/")
    with pytest.raises(AddressDenied):
        transport.check("https://10.0.0.1/")
    with pytest.raises(EncodeError):
        transport.check("nonsense")
    assert transport.open == 0
