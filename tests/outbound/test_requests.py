"""A request as octets."""

from __future__ import annotations

import pytest

from gateway import __version__
from gateway.errors import EncodeError
from gateway.outbound.hosts import split_url
from gateway.outbound.requests import METHODS, OURS, request_line, request_octets

LINE = request_line(*split_url("https://hooks.example:8443/a?b=c"))


def octets(method: str = "POST", headers: tuple[tuple[bytes, bytes], ...] = (), body: bytes = b"{}") -> bytes:
    return request_octets(method, LINE, headers, body, 1_000)


def test_a_request() -> None:
    assert octets(headers=((b"Webhook-Id", b"m-1"), (b"x", b""))) == (
        b"POST /a?b=c HTTP/1.1\r\nhost: hooks.example:8443\r\n"
        + f"user-agent: amqp-gateway/{__version__}\r\n".encode()
        + b"accept-encoding: identity\r\nWebhook-Id: m-1\r\nx: \r\ncontent-length: 2\r\n\r\n{}"
    )


def test_a_head_as_long_as_it_may_be() -> None:
    size = len(octets(body=b"{}")) - 2
    assert len(request_octets("POST", LINE, (), b"{}", size)) == size + 2
    with pytest.raises(EncodeError, match=f"has {size} octets, the limit is {size - 1}"):
        request_octets("POST", LINE, (), b"{}", size - 1)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_request_without_a_body_says_so_where_one_is_expected(method: str) -> None:
    found = octets(method, body=b"")
    assert found.startswith(method.encode() + b" /a?b=c HTTP/1.1\r\n")
    assert found.endswith(b"\r\n\r\n")
    assert (b"content-length: 0\r\n" in found) == (method in ("POST", "PUT", "PATCH"))


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "post", "", "GET\r\n", "GET /x"])
def test_methods_that_are_not_sent(method: str) -> None:
    with pytest.raises(EncodeError, match="method is"):
        octets(method)


@pytest.mark.parametrize("name", sorted(OURS))
def test_headers_that_are_ours(name: bytes) -> None:
    for spelling in (name, name.upper()):
        with pytest.raises(EncodeError, match="the gateway's own"):
            octets(headers=((spelling, b"x"),))


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"host: x", b"a\r\nb", b"\xe9", b"a\x00", b"a\n"])
def test_names_that_are_none(name: bytes) -> None:
    with pytest.raises(EncodeError, match="no name of a header"):
        octets(headers=((name, b"x"),))


@pytest.mark.parametrize("control", [*range(9), *range(10, 32), 127])
def test_values_hold_no_control_characters(control: int) -> None:
    with pytest.raises(EncodeError, match="header 'x': the value holds a control character"):
        octets(headers=((b"x", b"a" + bytes([control]) + b"b"),))


def test_tabs_and_other_octets_are_let_through() -> None:
    assert b"x: a\tb \xc3\xa9\r\n" in octets(headers=((b"x", b"a\tb \xc3\xa9"),))


def test_the_head_is_bounded_and_the_body_is_not() -> None:
    octets(body=b"x" * 100_000)
    with pytest.raises(EncodeError, match="the limit is 1000"):
        octets(headers=((b"x", b"a" * 1_000),))
