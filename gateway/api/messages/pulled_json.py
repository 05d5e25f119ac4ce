"""A message in an answer as JSON, whole or in pieces.

A large message is written piece by piece, so that its JSON is never held as a whole, and making it never holds up the
loop: everything around the payload first, then the payload in slices.
"""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Final, Literal

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from gateway.amqp.message import delivery_count
from gateway.api.about.schemas import PulledMessage
from gateway.api.http.call import JsonAnswer, encode
from gateway.core.leasing.pulled import Pulled
from gateway.core.sources.turns import Turns
from gateway.ledger import id_text
from gateway.notation.messages import received

SLICE: Final = 196_608
"""Bytes of a body that become JSON at a time: a multiple of three, for base64."""
GATHERED: Final = 65_536
"""Small messages are sent together up to this number of bytes."""
MANY: Final = 100
"""Messages of a pull whose answer is written at once, at most."""
_STUB: Final = b'"payload":""'
"""What an empty payload looks like. Nothing before the payload has these bytes: quotes within a string are escaped."""
_encode = msgspec.json.Encoder().encode
_utf8 = getincrementaldecoder("utf-8")


def pulled_message(item: Pulled, payload: tuple[str, Literal["string", "base64"]] | None = None) -> PulledMessage:
    """What the API says of a message and its lease. ``payload``: in place of its own, with its encoding."""
    delivery = item.delivery
    return PulledMessage(
        ack_id=item.lease.ack_id,
        delivery_attempt=item.attempt,
        broker_delivery_count=delivery_count(delivery.message),
        redelivered=item.redelivered,
        resent=item.resent,
        message=received(id_text(item.id), delivery.exchange, delivery.routing_key, delivery.message, payload),
    )


def pieces_of(item: Pulled) -> Iterator[bytes]:
    """The JSON of a message in pieces, some of them empty: each takes little time to make."""
    body = item.delivery.message.body
    if len(body) <= SLICE:
        yield _encode(pulled_message(item))
    else:
        yield from pieces_around(body, lambda payload: pulled_message(item, payload))


def pieces_around(body: bytes, shown: Callable[[tuple[str, Literal["string", "base64"]]], Struct]) -> Iterator[bytes]:
    """The JSON of what has a body as its first field ``payload``, in pieces. ``shown`` makes it with a payload and its
    encoding in place of the body's."""
    is_text = True
    for is_text in _looks(body):
        if is_text:
            yield b""
    head, stub, tail = encode(shown(("", "string" if is_text else "base64"))).partition(_STUB)
    yield head + stub[:-1]
    yield from _text(body) if is_text else _base64(body)
    yield stub[-1:] + tail


def _looks(body: bytes) -> Iterator[bool]:
    """Slice by slice, whether the body is UTF-8 so far; the last one says it of all."""
    decoder, view = _utf8(), memoryview(body)
    for start in range(0, len(view), SLICE):
        try:
            decoder.decode(view[start : start + SLICE], start + SLICE >= len(view))
        except UnicodeDecodeError:
            yield False
            return
        yield True


def _text(body: bytes) -> Iterator[bytes]:
    decoder, view = _utf8(), memoryview(body)
    for start in range(0, len(view), SLICE):
        yield _encode(decoder.decode(view[start : start + SLICE]))[1:-1]


def _base64(body: bytes) -> Iterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(view), SLICE):
        yield b64encode(view[start : start + SLICE])


def is_large(pulled: Iterable[Pulled]) -> bool:
    """Whether an answer with these messages is written in pieces."""
    size = 0
    for count, item in enumerate(pulled, 1):
        size += len(item.delivery.message.body)
        if size > SLICE or count > MANY:
            return True
    return False


async def answer_pieces(pulled: Iterable[Pulled]) -> AsyncGenerator[bytes, None]:
    """The answer of a pull, in pieces; others have their turn between them."""
    async with aclosing(in_turns(_pieces_of_all(pulled))) as pieces:
        async for piece in pieces:
            yield piece


def _pieces_of_all(pulled: Iterable[Pulled]) -> Iterator[bytes]:
    yield b'{"messages":['
    for index, item in enumerate(pulled):
        if index:
            yield b","
        yield from pieces_of(item)
    yield b"]}"


async def in_turns(pieces: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    """The pieces, small ones put together; others have their turn between them."""
    turns = Turns()
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= GATHERED:
            yield b"".join(gathered)
            gathered, size = [], 0
        await turns.over()
    if gathered:
        yield b"".join(gathered)


class PiecesAnswer(JsonAnswer):
    """An answer whose JSON is made and written piece by piece, each when the one before has been read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        super().__init__(b"")
        self._pieces = pieces
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head, and then the pieces."""
        async with aclosing(in_turns(self._pieces)) as pieces:
            if scope.get("http_version") == "1.0":  # which knows no chunks
                self.body = b"".join([piece async for piece in pieces])
                self.headers["content-length"] = str(len(self.body))
                await super().__call__(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
