"""Who we say that we are: basic, bearer, and tokens of OAuth2 from a server that does as it likes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import EndpointAuth
from gateway.errors import AddressDenied, ConfigurationError, GatewayError, OutboundTimeout, TokenRefused
from gateway.outbound import GuardedTransport
from gateway.webhooks.attempts import auth as auth_module
from gateway.webhooks.attempts.auth import EARLY, FRESH, LIFE_UNLESS_SAID, SECRET_MAX, TOKENS, EndpointTokens, fixed
from gateway.webhooks.attempts.sender import Sender
from tests.outbound.endpoint import Endpoint as Server
from tests.outbound.endpoint import plain
from tests.webhooks.receivers import endpoint_of, message


class TokenServer(Server):
    """``/token`` gives tokens t-1, t-2, …; ``/hook`` takes only the last one, unless told otherwise."""

    given = 0
    takes: Any = None
    answer: Any = None
    """What /token answers instead: octets, or JSON."""
    wait: asyncio.Event | None = None
    life: Any = 3_600

    async def _answer(self, request: Any, reader: Any, writer: Any) -> bool:
        if request.line.split()[1] == "/token":
            if self.wait is not None:
                await self.wait.wait()
            self.given += 1
            found = {"access_token": f"t-{self.given}", "token_type": "Bearer", "expires_in": self.life}
            answer = found if self.answer is None else self.answer
            writer.write(answer if isinstance(answer, bytes) else plain(200, body=json.dumps(answer).encode()))
        else:
            takes = self.takes or f"Bearer t-{self.given}"
            writer.write(plain(200 if request.headers.get("authorization") == takes else 401))
        return True

    def tokens(self) -> list[Any]:
        """Requests for tokens."""
        return [request for request in self.requests if request.line.split()[1] == "/token"]


@pytest.fixture
async def server() -> AsyncIterator[TokenServer]:
    found = TokenServer()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = listening.sockets[0].getsockname()[1]
    yield found
    listening.close()
    await found.close()


class Clock:
    """Time as the test has it."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def tokens(transport: GuardedTransport, clock: Clock) -> AsyncIterator[EndpointTokens]:
    found = EndpointTokens(transport, clock)
    yield found
    await found.close()


def auth_of(server: TokenServer, **changes: str) -> EndpointAuth:
    settings = {"user": "shop", "secret": "geheim", "token_url": server.url("/token"), **changes}
    return EndpointAuth(kind="oauth2", **settings)


# ----------------------------------------------------------------------------------------------- OAuth2


async def test_a_token_is_asked_for_as_the_rfc_says(tokens: EndpointTokens, server: TokenServer) -> None:
    auth = auth_of(server, user="sh op:x", secret="ge/h+eim", scope="hooks:write read")
    assert await tokens.get(auth, 5.0) == "t-1"
    (request,) = server.tokens()
    assert request.line == "POST /token HTTP/1.1"
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.body == b"grant_type=client_credentials&scope=hooks%3Awrite+read"
    # RFC 6749 section 2.3.1: both parts are form-encoded before they are joined.
    assert request.headers["authorization"] == "Basic c2grb3AlM0F4OmdlJTJGaCUyQmVpbQ=="


async def test_it_is_kept_until_shortly_before_its_end(
    tokens: EndpointTokens, server: TokenServer, clock: Clock
) -> None:
    auth = auth_of(server)
    assert await tokens.get(auth, 5.0) == "t-1"
    clock.now += 3_600 - EARLY - 0.1
    assert await tokens.get(auth, 5.0) == "t-1"
    clock.now += 0.2
    assert await tokens.get(auth, 5.0) == "t-2"


@pytest.mark.parametrize(
    ("life", "kept"),
    [(None, LIFE_UNLESS_SAID * 0.9), ("100", 90.0), (10, 9.0), (1e12, 86_400 - EARLY), (0, 0.0), (-5, 0.0)],
)
async def test_lives_of_tokens(
    tokens: EndpointTokens, server: TokenServer, clock: Clock, life: Any, kept: float
) -> None:
    server.life = life
    auth = auth_of(server)
    await tokens.get(auth, 5.0)
    if kept:
        clock.now += kept - 0.01
        assert await tokens.get(auth, 5.0) == "t-1"
        clock.now += 0.02
    assert await tokens.get(auth, 5.0) == "t-2"


async def test_one_asks_for_all(tokens: EndpointTokens, server: TokenServer) -> None:
    server.wait = asyncio.Event()
    auth = auth_of(server)
    waiting = [asyncio.create_task(tokens.get(auth, 5.0)) for _ in range(50)]
    while not server.requests:
        await asyncio.sleep(0.005)
    waiting[0].cancel()  # who began may go: the others still get it
    server.wait.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == ["t-1"] * 49
    assert len(server.tokens()) == 1


async def test_all_hear_of_a_failure_and_the_next_one_asks_again(tokens: EndpointTokens, server: TokenServer) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    server.wait, server.answer = asyncio.Event(), plain(503)
    auth = auth_of(server)
    waiting = [asyncio.create_task(tokens.get(auth, 5.0)) for _ in range(3)]
    while not server.requests:
        await asyncio.sleep(0.005)
    server.wait.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [TokenRefused] * 3
    server.answer = None
    assert await tokens.get(auth, 5.0) == "t-2"
    assert reported == []


async def test_at_the_end_who_waits_for_a_token_is_canceled(tokens: EndpointTokens, server: TokenServer) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    server.wait = asyncio.Event()
    waiting = asyncio.create_task(tokens.get(auth_of(server), 5.0))
    while not server.requests:
        await asyncio.sleep(0.005)
    (asking,) = tokens._asking.values()
    await tokens.close()
    assert asking.cancelled()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert (tokens._asking, reported) == ({}, [])
    await tokens.close()


async def test_a_token_server_may_close_the_connections_that_are_kept(
    tokens: EndpointTokens, server: TokenServer
) -> None:
    """Another request for a token does no harm."""
    assert await tokens.get(auth_of(server), 5.0) == "t-1"
    answers = server._answer
    hung_up = 0

    async def answer(request: Any, reader: Any, writer: Any) -> bool:
        nonlocal hung_up
        if hung_up:
            return await answers(request, reader, writer)
        hung_up += 1
        return False

    server._answer = answer  # type: ignore[method-assign]
    assert await tokens.get(auth_of(server, scope="other"), 5.0) == "t-2"
    assert hung_up == 1


async def test_a_token_that_is_replaced_is_one_that_was_used_just_now(
    tokens: EndpointTokens, server: TokenServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth_module, "TOKENS", 2)
    one, two, three = (auth_of(server, scope=scope) for scope in ("1", "2", "3"))
    server.life = 100
    assert await tokens.get(one, 5.0) == "t-1"
    server.life = 10_000
    assert await tokens.get(two, 5.0) == "t-2"
    clock.now += 100
    assert [await tokens.get(auth, 5.0) for auth in (one, three, one)] == ["t-3", "t-4", "t-3"]


async def test_other_settings_have_other_tokens_and_there_is_an_end_to_them(
    tokens: EndpointTokens, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TOKENS >= 1_000
    monkeypatch.setattr(auth_module, "TOKENS", 2)
    one, two, three = (auth_of(server, scope=scope) for scope in ("1", "2", "3"))
    assert [await tokens.get(auth, 5.0) for auth in (one, two, one)] == ["t-1", "t-2", "t-1"]
    assert await tokens.get(three, 5.0) == "t-3"  # in place of the one that was used longest ago
    assert [await tokens.get(auth, 5.0) for auth in (one, two)] == ["t-1", "t-4"]


BAD = {
    "401": (plain(401, body=b'{"error":"invalid_client","error_description":"x\\u0000y"}'), "401: invalid_client"),
    "400 of no JSON": (plain(400, body=b"<html>"), "answered 400"),
    "an error that is none": (plain(400, body=b'{"error":"a\\nb"}'), "answered 400"),
    "302": (plain(302, "Location: http://10.0.0.1/\r\n"), "answered 302"),
    "no JSON": (plain(200, body=b"token"), "no token"),
    "no token": ({"token_type": "bearer"}, "no token"),
    "nested deep": (plain(200, body=b"[" * 16_000), "no token"),
    "of another type": ({"access_token": "t", "token_type": "mac"}, "no bearer token"),
    "with a line end": ({"access_token": "t\r\nx: y", "token_type": "bearer"}, "no bearer token"),
    "a life that is none": ({"access_token": "t", "token_type": "bearer", "expires_in": "soon"}, "no token"),
    "too long": (plain(200, body=b'{"access_token":"' + b"x" * 20_000), "over 16384 octets"),
}


@pytest.mark.parametrize(("answer", "why"), BAD.values(), ids=list(BAD))
async def test_what_is_no_token(sender: Sender, server: TokenServer, answer: Any, why: str) -> None:
    server.answer = answer
    outcome = await sender.send(endpoint_of(server.url("/hook"), auth=auth_of(server)), [message()], 0)
    assert isinstance(outcome.error, TokenRefused)
    assert why in str(outcome.error)
    assert "geheim" not in str(outcome.error)
    assert [request.line.split()[1] for request in server.requests] == ["/token"], "the endpoint was not asked"


async def test_a_life_of_no_number(tokens: EndpointTokens, server: TokenServer) -> None:
    server.answer = plain(200, body=b'{"access_token":"t","token_type":"bearer","expires_in":"nan"}')
    auth = auth_of(server)
    assert [await tokens.get(auth, 5.0) for _ in range(2)] == ["t", "t"]
    assert len(server.tokens()) == 2


async def test_a_token_server_that_says_nothing(sender: Sender, server: TokenServer) -> None:
    server.wait = asyncio.Event()
    endpoint = endpoint_of(server.url("/hook"), auth=auth_of(server), deadline=0.2)
    outcome = await sender.send(endpoint, [message()], 0)
    assert isinstance(outcome.error, OutboundTimeout)
    assert "no OAuth2 token within the deadline" in str(outcome.error)


async def test_a_token_that_is_refused_is_asked_for_anew_once(
    transport: GuardedTransport, server: TokenServer, clock: Clock
) -> None:
    sender = Sender(transport, EndpointTokens(transport, clock))
    endpoint = endpoint_of(server.url("/hook"), auth=auth_of(server))
    item = message()
    assert (await sender.send(endpoint, [item], 0)).status == 200
    server.given += 1  # t-1 is worth nothing any more
    clock.now += FRESH
    assert (await sender.send(endpoint, [item], 0)).status == 200
    hooks = [request.headers for request in server.requests if request.line.split()[1] == "/hook"]
    assert [each["authorization"] for each in hooks] == ["Bearer t-1", "Bearer t-1", "Bearer t-3"]
    assert len({each["webhook-id"] for each in hooks}) == 1
    assert len(server.tokens()) == 2
    await sender.close()


async def test_one_that_takes_no_token_does_not_drive_us(
    transport: GuardedTransport, server: TokenServer, clock: Clock
) -> None:
    server.takes = "Bearer none"
    sender = Sender(transport, EndpointTokens(transport, clock))
    endpoint = endpoint_of(server.url("/hook"), auth=auth_of(server))
    for _ in range(5):
        outcome = await sender.send(endpoint, [message()], 0)
        assert (outcome.status, outcome.error) == (401, None)
    assert len(server.tokens()) == 1, "a token that was just given is not asked for anew"
    clock.now += FRESH
    assert (await sender.send(endpoint, [message()], 0)).status == 401
    assert len(server.tokens()) == 2
    await sender.close()


async def test_the_token_url_is_under_the_same_guard(sender: Sender, server: TokenServer) -> None:
    auth = auth_of(server, token_url="http://169.254.169.254/latest/meta-data")
    outcome = await sender.send(endpoint_of(server.url("/hook"), auth=auth), [message()], 0)
    assert isinstance(outcome.error, AddressDenied)
    assert server.requests == []


# ------------------------------------------------------------------------------------------------ secrets


def test_a_secret_in_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("one\n")
    auth = EndpointAuth(kind="bearer", secret_file=str(path))
    assert fixed(auth) == b"Bearer one"
    path.write_text("two\n")
    os.utime(path, ns=(1, 1))
    assert fixed(auth) == b"Bearer two"


def test_the_longest_secret_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * SECRET_MAX)
    assert fixed(EndpointAuth(kind="bearer", secret_file=str(path))) == b"Bearer " + b"x" * SECRET_MAX


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (None, "No such file"),
        (b"\xff", "not UTF-8"),
        (b"", "one line"),
        (b"a\nb", "one line"),
        (b"x" * 20_000, "limit"),
    ],
)
async def test_files_that_hold_no_secret(tmp_path: Path, sender: Sender, octets: bytes | None, why: str) -> None:
    path = tmp_path / "secret"
    if octets is not None:
        path.write_bytes(octets)
    endpoint = endpoint_of("http://127.0.0.1:9/", auth=EndpointAuth(kind="basic", user="u", secret_file=str(path)))
    outcome = await sender.send(endpoint, [message()], 0)
    error: GatewayError | None = outcome.error
    assert isinstance(error, ConfigurationError)
    assert why in str(error)
