"""One connection to a gateway: what its answers, and their absence, mean."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ConfigurationError, CursorOwned, ServiceRefused, ServiceUnreachable
from gateway.exits import exit_status
from gateway.pipeline.source.http import Away, Http, RangeGone
from gateway.pipeline.source.options import Connection
from gateway.pipeline.source.retry import Retry
from tests.pipeline.fake import FakeGateway
from tests.pipeline.unit.conftest import Time


@pytest.fixture
def http(gateway: FakeGateway) -> Iterator[Callable[..., Http]]:
    """``http(timeout=…)``: a connection to the gateway, closed after the test."""
    with ExitStack() as stack:

        def connect(**options: Any) -> Http:
            found = Http(Connection(url=gateway.url, **options))
            stack.callback(found.close)
            return found

        yield connect


def head(client: Http, retry: Retry | None = None) -> object:
    return client.ask("GET", "/v1/log/head", {"log": "messages"}, retry=retry)


def test_a_document_is_asked_for_over_one_connection(gateway: FakeGateway, http: Callable[..., Http]) -> None:
    client = http()
    assert head(client) == head(client)
    assert len(gateway._server.connections) == 1  # type: ignore[union-attr]


def test_the_key_is_sent_as_a_header_and_nowhere_else(
    gateway: FakeGateway, http: Callable[..., Http], tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("hush")
    gateway.key = "hush"
    head(http(api_key_file=str(file)))
    assert gateway.headers[0]["authorization"] == "Bearer hush"
    assert "hush" not in str({**gateway.headers[0], "authorization": ""})


def test_a_wrong_key_is_refused_at_once_and_the_text_says_where_it_comes_from(
    gateway: FakeGateway, http: Callable[..., Http]
) -> None:
    gateway.key = "hush"
    with pytest.raises(
        ServiceRefused, match=r"answered 401: no valid API key \[unauthorized\]. The API key comes from"
    ):
        head(http())
    assert gateway.seen.total() == 1
    assert exit_status(ServiceRefused) == 4


def test_a_wrong_url_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    client = Http(Connection(url=f"http://127.0.0.1:{port}"))
    with pytest.raises(ServiceUnreachable, match=rf"http://127.0.0.1:{port} cannot be reached: Connection refused"):
        head(client)
    assert exit_status(ServiceUnreachable) == 5


def test_a_gateway_that_was_there_is_waited_for(gateway: FakeGateway, http: Callable[..., Http]) -> None:
    client = http(unavailable_timeout=30)
    head(client)
    gateway.down()
    back = threading.Timer(0.3, gateway.up)
    back.start()
    assert head(client)
    back.join()


def test_a_gateway_that_fails_for_a_while_is_asked_again(
    gateway: FakeGateway, http: Callable[..., Http], clock: Time
) -> None:
    gateway.fail("/v1/log/head", 3, status=503)
    assert head(http(), Retry(60, clock, clock.sleep))
    assert len(clock.slept) == 3


def test_a_gateway_that_fails_for_too_long_is_unreachable(
    gateway: FakeGateway, http: Callable[..., Http], clock: Time
) -> None:
    gateway.fail("/v1/log/head", 1_000, status=500)
    with pytest.raises(ServiceUnreachable, match=r"answered 500: as it was asked to \[internal\] for 20 s, over"):
        head(http(), Retry(20, clock, clock.sleep))


def test_an_answer_that_is_cut_off_is_asked_for_again(
    gateway: FakeGateway, http: Callable[..., Http], clock: Time
) -> None:
    gateway.fail("/v1/log/head", 2, cut=10)
    assert head(http(), Retry(60, clock, clock.sleep)) == gateway.head("messages")
    assert len(clock.slept) == 2


def test_a_gateway_that_says_nothing_is_not_waited_for_for_ever(
    gateway: FakeGateway, http: Callable[..., Http], clock: Time
) -> None:
    gateway.fail("/v1/log/head", 1, delay=0.5)
    with pytest.raises(ServiceUnreachable, match="broke off: no answer in time"):
        head(http(timeout=0.05), Retry(0, clock, clock.sleep))


def test_a_connection_that_ended_while_nobody_used_it_is_no_failure(
    gateway: FakeGateway, http: Callable[..., Http], clock: Time
) -> None:
    client = http()
    head(client)
    gateway.down()
    gateway.up()
    assert head(client, Retry(0, clock, clock.sleep))


def test_something_that_is_no_gateway_is_refused(gateway: FakeGateway, http: Callable[..., Http]) -> None:
    gateway.fail("/v1/log/head", 1, octets=b"<html>Welcome to our shop</html>")
    with pytest.raises(ServiceRefused, match="answered, but not with JSON; is it a gateway"):
        head(http())
    with pytest.raises(ServiceRefused, match=r"answered 404: no resource at /v1/nothing \[route_not_found\]"):
        http().ask("GET", "/v1/nothing")


def test_a_cursor_of_somebody_else_and_a_range_that_is_gone_have_errors_of_their_own(
    gateway: FakeGateway, http: Callable[..., Http]
) -> None:
    claim = {"log": "messages", "owner": "one", "start": "earliest", "take_over": False}
    http().ask("POST", "/v1/log/cursors/c:claim", body=claim)
    with pytest.raises(CursorOwned, match="the cursor c belongs to one since"):
        http().ask("POST", "/v1/log/cursors/c:claim", body={**claim, "owner": "two"})
    gateway.logs["messages"][0].floor = 11
    range = {"log": "messages", "shard": 0, "after": 5, "upto": 20}
    with pytest.raises(RangeGone, match="6 to 10 of shard 0 are gone"), http().exchange("GET", "/v1/log", range):
        pass


def test_a_certificate_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ca_file .*none.pem: No such file"):
        Http(Connection(url="https://127.0.0.1:1", ca_file=str(tmp_path / "none.pem")))


def test_nobody_there_is_told_apart_from_somebody_who_broke_off(
    gateway: FakeGateway, http: Callable[..., Http]
) -> None:
    client = http()
    gateway.fail("/v1/log/head", 1, cut=5)
    with pytest.raises(Away) as caught, client.exchange("GET", "/v1/log/head", {"log": "events"}) as answer:
        answer.read()
    assert caught.value.connected
    gateway.down()
    with pytest.raises(Away) as caught, client.exchange("GET", "/"):
        pass
    assert not caught.value.connected
