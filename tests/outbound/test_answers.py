"""Answers, whole, octet by octet, and with something behind them."""

from __future__ import annotations

import pytest

from gateway.errors import AnswerCut, AnswerHeadTooLarge, AnswerMalformed
from gateway.outbound.answers import AnswerReader, HttpAnswer
from gateway.outbound.limits import OutboundLimits

LIMITS = OutboundLimits(head_max=200, headers_max=5, body_kept=20, framing_max=100)
OK = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nok"


def reader(*, head_only: bool = False, limits: OutboundLimits = LIMITS) -> AnswerReader:
    found = AnswerReader("https://x.example", limits)
    found.expect(head_only=head_only)
    return found


def read(octets: bytes, step: int = 0, *, head_only: bool = False) -> tuple[HttpAnswer, AnswerReader]:
    """The answer, given in pieces of ``step`` octets (0: at once); it must end with the last octet, or before."""
    found = reader(head_only=head_only)
    step = step or len(octets)
    for start in range(0, len(octets), step):
        if found.feed(octets[start : start + step]):
            return found.answer(), found
    found.end()
    return found.answer(), found


WHOLE = {
    "with a length": (OK, 200, b"ok", True),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
    "of no octets": (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b"", True),
    "in chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n1\r\n!\r\n0\r\nTrailer: t\r\n\r\n",
        200,
        b"ok!",
        True,
    ),
    "that ends the connection": (
        b"HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
        500,
        b"no",
        False,
    ),
    "of HTTP/1.0": (b"HTTP/1.0 404 x\r\nContent-Length: 2\r\n\r\nno", 404, b"no", False),
    "of HTTP/1.0, kept": (b"HTTP/1.0 200 x\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    "up to the end": (b"HTTP/1.1 200 OK\r\n\r\nok", 200, b"ok", False),
    "up to the end, coded": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 200, b"ok", False),
    "after interim ones": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nLink: a\r\n\r\n" + OK, 200, b"ok", True),
    "a redirect": (b"HTTP/1.1 301 x\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", 301, b"", True),
    "compressed": (
        b"HTTP/1.1 200 x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        200,
        b"\x1f\x8b\x08",
        True,
    ),
    "as long as is kept": (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + b"x" * 20, 200, b"x" * 20, True),
}  # fmt: skip


@pytest.mark.parametrize("step", [0, 1, 2, 7])
@pytest.mark.parametrize("name", WHOLE)
def test_an_answer(name: str, step: int) -> None:
    octets, status, body, reusable = WHOLE[name]
    answer, found = read(octets, step)
    assert (answer.status, answer.body, answer.truncated) == (status, body, False)
    assert answer == read(octets)[0]
    assert found.reusable is reusable
    assert found.whole
    assert found.heard


def test_headers_keep_order_and_spelling() -> None:
    answer, _ = read(b"HTTP/1.1 200 OK\r\nX-B: 2\r\nx-a:  1 \r\nX-B:3\r\nX-C:\r\nX-D: \r\n\r\n")
    assert answer.headers == [(b"X-B", b"2"), (b"x-a", b"1"), (b"X-B", b"3"), (b"X-C", b""), (b"X-D", b"")]
    assert answer.header(b"x-b") == b"2"
    assert answer.header(b"x-e") is None


def test_interim_headers_are_not_those_of_the_answer() -> None:
    answer, _ = read(WHOLE["after interim ones"][0])
    assert answer.header(b"link") is None


def test_one_answer_after_the_other() -> None:
    found = reader()
    for _ in range(3):
        assert found.feed(OK)
        assert found.reusable
        assert found.answer().body == b"ok"
        found.expect()
        assert not found.heard
        assert not found.feed(OK[:30])
        assert found.heard
        assert found.feed(OK[30:])
        found.expect()


@pytest.mark.parametrize("behind", [OK, b"HTTP/1.1 200 OK\r\n", b"garbage", b"\x00"])
def test_what_was_not_asked_for_makes_the_connection_useless(behind: bytes) -> None:
    answer, found = read(OK + behind)
    assert (answer.status, answer.body) == (200, b"ok")
    assert not found.reusable


def test_a_head_is_answered_by_a_head() -> None:
    answer, found = read(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", head_only=True)
    assert (answer.status, answer.body, answer.truncated) == (200, b"", False)
    assert not found.reusable


@pytest.mark.parametrize("step", [0, 1, 13])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 10000000000\r\n\r\n" + b"x" * 500,
        b"Content-Length: 21\r\n\r\n" + b"x" * 21,
        b"Transfer-Encoding: chunked\r\n\r\n1F4\r\n" + b"x" * 500 + b"\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 21,
        b"\r\n" + b"x" * 500,
    ],
)
def test_no_more_of_the_body_is_read_than_is_kept(body: bytes, step: int) -> None:
    answer, found = read(b"HTTP/1.1 200 OK\r\n" + body, step)
    assert answer.body == b"x" * 20
    assert answer.truncated
    assert not found.reusable
    assert found.whole


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    "framing",
    [
        b"1;" + b"e" * 1_000 + b"\r\n",
        b"1\r\nx\r\n0\r\n" + b"T: 1\r\n" * 100,
        b"1\r\nx\r\n0\r\nT: " + b"1" * 1_000,
    ],
)
def test_framing_without_end_is_not_read_to_the_end(framing: bytes, step: int) -> None:
    answer, found = read(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framing, step)
    assert answer.status == 200
    assert answer.truncated
    assert not found.reusable


@pytest.mark.parametrize("step", [0, 1, 50])
@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 6 + b"\r\n", "over 5 headers"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 1_000, "over 200 octets"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 1_000, "over 200 octets"),
        (b"HTTP/1.1 200 " + b"O" * 1_000, "over 200 octets"),
        (b"HTTP/1.1 103 x\r\n\r\n" * 100, "over 200 octets"),
    ],
)
def test_heads_over_a_limit(head: bytes, why: str, step: int) -> None:
    with pytest.raises(AnswerHeadTooLarge, match=why) as error:
        read(head, step)
    assert error.value.sent


def test_headers_as_many_as_are_allowed() -> None:
    answer, _ = read(b"HTTP/1.1 204 x\r\n" + b"a: b\r\n" * 5 + b"\r\n")
    assert len(answer.headers) == 5


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize(
    "octets",
    [
        b"\x15\x03\x01\x00\x02\x02",
        b"AMQP\x00\x00\x09\x01",
        b"SSH-2.0-x\r\n",
        b"<html>",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/0.9 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 099 x\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nX y: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\nX: 1\n\nok",
    ],
)
def test_what_is_no_answer(octets: bytes, step: int) -> None:
    with pytest.raises(AnswerMalformed) as error:
        read(octets, step)
    assert error.value.sent
    assert str(error.value).startswith("https://x.example: ")


@pytest.mark.parametrize("length", range(len(OK)))
def test_an_answer_that_is_cut_off_anywhere(length: int) -> None:
    found = reader()
    if length:
        assert not found.feed(OK[:length])
    with pytest.raises(AnswerCut) as error:
        found.end()
    assert error.value.status == (200 if length >= OK.index(b"\r\n\r\n") + 4 else 0)
    assert ("without an answer" in str(error.value)) == (length == 0)


def test_an_answer_in_chunks_that_is_cut_off() -> None:
    found = reader()
    found.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nok\r\n")
    with pytest.raises(AnswerCut):
        found.end()


def test_the_end_after_the_end() -> None:
    _, found = read(OK)
    found.end()
    assert not found.reusable
