"""pamqp's side of the codec's benchmark, and the check that both read what the other wrote."""

from __future__ import annotations

from collections.abc import Callable

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header

from gateway.amqp.message import Properties
from tests.benchmarks.sections.codec import BODY, DECODE, DELIVER, ENCODE, HEADERS, PROPERTIES, RAW


def works(data: bytes) -> dict[str, Callable[[], object]]:
    """What pamqp does; its properties are always decoded."""
    return {ENCODE: encode, DECODE: lambda: decode(data), RAW: lambda: decode(data)}


def encode() -> bytes:
    """The same message as ours."""
    method = pamqp.frame.marshal(pamqp.commands.Basic.Deliver(*DELIVER), 1)
    content = pamqp.commands.Basic.Properties(**PROPERTIES)
    header = pamqp.frame.marshal(pamqp.header.ContentHeader(body_size=len(BODY), properties=content), 1)
    return b"".join((method, header, pamqp.frame.marshal(pamqp.body.ContentBody(BODY), 1)))


def decode(data: bytes) -> tuple[object, object, object]:
    """Its three frames."""
    first, _, method = pamqp.frame.unmarshal(data)
    second, _, header = pamqp.frame.unmarshal(data[first:])
    _, _, body = pamqp.frame.unmarshal(data[first + second :])
    return method, header, body


def check(ours: bytes, read: Callable[[bytes], Properties]) -> None:
    """Each codec reads what the other wrote."""
    _, header, body = decode(ours)
    assert header.properties.headers == HEADERS  # type: ignore[attr-defined]
    assert body.value == BODY  # type: ignore[attr-defined]
    found = read(encode())
    assert found.message_id == PROPERTIES["message_id"]
    assert found.headers is not None
    assert found.headers.keys() == HEADERS.keys()  # an integer of pamqp's has another size than ours
    assert found.headers["customer"] == HEADERS["customer"]
