"""Two sessions of the draft, connected, and octets that neither of them would send."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from gateway.amqp.operations import Consume, Consuming, Done, Operation, SelectConfirm
from gateway.classic.frames import METHOD, method_frame
from gateway.classic.methods import Method
from gateway.limits import Limits
from gateway.v010.version import V0_10
from gateway.v010_draft.attached import IDS, METHODS, REQUEST, RESPONSE, RESPONSE_KIND
from gateway.v010_draft.tables import Tables
from tests.pair import CLIENT, SERVER, SessionPair

TABLES = Tables()


def make_pair(limits: Limits | None = None, client_limits: Limits | None = None, **settings: Any) -> SessionPair:
    """A pair that has not shaken hands. ``limits`` are those of both, or of the server alone."""
    server = limits or Limits()
    chunk = settings.pop("chunk", None)
    return SessionPair(
        V0_10,
        replace(CLIENT, dialect="transitional", limits=client_limits or server),
        replace(SERVER, dialect="transitional", limits=server, **settings),
        chunk,
    )


def opened(limits: Limits | None = None, client_limits: Limits | None = None, **settings: Any) -> SessionPair:
    """A pair with channel 1."""
    return make_pair(limits, client_limits, **settings).open()


def framed(method: Method, channel: int = 1) -> bytes:
    """A method frame."""
    return method_frame(channel, method.encode(TABLES))


def respond(number: int, first: int, batch: int, method: Method) -> bytes:
    """A response frame."""
    payload = IDS.pack(number, first, batch) + method.encode(TABLES)
    return RESPONSE_KIND.pack(RESPONSE, 1, len(payload)) + payload + b"\xce"


def request(number: int, method: Method) -> bytes:
    """A request frame."""
    payload = IDS.pack(number, 0, 0) + method.encode(TABLES)
    return RESPONSE_KIND.pack(REQUEST, 1, len(payload)) + payload + b"\xce"


def to_server(pair: SessionPair, *octets: bytes) -> list[Operation]:
    """What the server makes of octets of the client."""
    return pair.server.receive_data(b"".join(octets), pair.now)


def to_client(pair: SessionPair, *octets: bytes) -> list[Operation]:
    """What the client makes of octets of the server."""
    return pair.client.receive_data(b"".join(octets), pair.now)


def methods(octets: bytes) -> list[tuple[int, int, Any]]:
    """Type of the frame, id of the first command it answers, and method, of each frame."""
    found = []
    at = 0
    while at < len(octets):
        kind, _, length = struct.unpack_from(">BHI", octets, at)
        start, end = at + 7, at + 7 + length
        at = end + 1
        first = 0
        if kind != METHOD:
            _, first, _ = IDS.unpack_from(octets, start)
            start += IDS.size
        (key,) = struct.unpack_from(">I", octets, start)
        found.append((kind, first, METHODS[key].decode(octets, start + 4, end, TABLES)))
    return found


def said(session: Any) -> list[Method]:
    """The methods that a session has to send."""
    return [method for _, _, method in methods(b"".join(session.data_to_send()))]


def consuming(pair: SessionPair, no_ack: bool = False) -> SessionPair:
    """With the consumer ``t``."""
    pair.ask(Consume(1, "q", "t", no_ack=no_ack))
    serial = pair.requests[0].serial  # type: ignore[attr-defined]
    pair.answer(Consuming(1, serial, serial, "t"))
    return pair


def confirming(pair: SessionPair) -> SessionPair:
    """With confirms."""
    pair.ask(SelectConfirm(1))
    serial = pair.requests[0].serial  # type: ignore[attr-defined]
    pair.answer(Done(1, serial, serial))
    return pair


def serial_of(pair: SessionPair) -> int:
    """The serial of the request that the server has got."""
    (found,) = pair.requests
    serial: int = found.serial  # type: ignore[attr-defined]
    return serial
