"""The transitional draft of 0-10: a session of it, open and in use, and octets that no correct peer sends."""

from __future__ import annotations

import struct
from functools import cache
from random import Random
from typing import Any, Final
from zlib import crc32

from gateway.amqp import operations as o
from gateway.amqp.message import Message
from gateway.classic.frames import HEARTBEAT, METHOD
from gateway.classic.methods import Method
from gateway.errors import FrameSyntaxError, LocalError
from gateway.limits import Limits
from gateway.session import Role, Session
from gateway.v010.version import V0_10
from gateway.v010_draft import methods as t
from gateway.v010_draft.attached import IDS, METHODS, REQUEST, RESPONSE
from gateway.v010_draft.fields import ContentType, SerialSetType, UuidType
from gateway.v091.version import V0_9_1
from gateway.wire.types import BitType, Integer, LongString, ShortString
from tests.fuzz import extremes
from tests.fuzz.extremes import number, sized, text
from tests.fuzz.oracle import HELD_MAX, SENT_FACTOR, SENT_MAX, Broken, Case, check_carried
from tests.fuzz.states import LARGE, SMALL, answer
from tests.pair import SessionPair
from tests.v010_draft.pair import consuming, opened

STATE: Final = "in use"
LIMITS: Final = Limits(frame_max=4_096, message_max=20_000, spool_max=30_000, channel_max=64)
SERVED: Final[tuple[type[Method], ...]] = tuple(method for method in METHODS.values() if method in t.OWN)
EVERY: Final[tuple[type[Method], ...]] = tuple(METHODS.values())
NAMES: Final = (b"1", b"1", b"r", b"", b"x" * 200)
"""Of references."""


def octets(random: Random, role: Role) -> bytes:
    """Frames of the draft's grammar, or a stretch of a conversation with changes in it."""
    if random.random() < 0.4:
        heard = bytearray(conversation(role))
        for _ in range(random.choice((1, 2, 6))):
            at = random.randrange(len(heard))
            heard[at] = random.choice((heard[at] ^ 1 << random.randrange(8), 0, 0xFF, random.randrange(256)))
        return bytes(heard)
    return b"".join(_frame(random) for _ in range(random.choice((1, 2, 5, 20))))


def _frame(random: Random) -> bytes:
    channel = random.choice((1, 1, 1, 1, 2, 0, 0xFFFF))
    if random.random() < 0.03:
        return struct.pack(">BHI", random.choice((HEARTBEAT, 2, 3, 7, 99)), channel, 0) + b"\xce"
    method = random.choice(SERVED if random.random() < 0.95 else EVERY)
    if random.random() < 0.4:
        method = random.choice((t.MessageTransfer, t.MessageOpen, t.MessageAppend, t.MessageClose, t.ExecutionComplete))
    kind = RESPONSE if method.key in t.RESPONSES else METHOD
    if random.random() < 0.03:
        kind = random.choice((METHOD, REQUEST, RESPONSE))
    payload = struct.pack(">I", method.key) + _arguments(random, method)
    if kind != METHOD:
        ids = (random.choice((1, 1, 2, 3)), random.choice((0, 1, 2, 5, 1 << 63)), random.choice((0, 1, 9, 0xFFFFFFFF)))
        payload = IDS.pack(*ids) + payload
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _arguments(random: Random, method: type[Method]) -> bytes:
    parts: list[bytes] = []
    bits = 0
    for name, kind in method.layout:
        if isinstance(kind, BitType):
            bits += 1
            if bits % 8 == 1:
                parts.append(random.choice((b"\x00", b"\x01", b"\xff", random.randbytes(1))))
            continue
        bits = 0
        parts.append(_field(random, name, kind))
    return b"".join(parts)


def _field(random: Random, name: str, kind: Any) -> bytes:
    if isinstance(kind, Integer):
        return number(random, struct.calcsize(">" + kind.code))
    if isinstance(kind, ShortString):
        return sized(random, b"t" if name == "destination" and random.random() < 0.8 else text(random)[:255], 1)
    if isinstance(kind, LongString):
        return sized(random, random.choice(NAMES) if name == "reference" else random.randbytes(9), 4)
    if isinstance(kind, UuidType):
        return random.randbytes(16)
    if isinstance(kind, SerialSetType):
        return sized(random, b"".join(number(random, 4) for _ in range(2 * random.choice((0, 1, 3)))), 2)
    if isinstance(kind, ContentType):
        return random.choice((b"\x00", b"\x01", b"\x01", b"\x02")) + sized(random, random.choice(NAMES), 4)
    entries = [
        sized(random, text(random)[:255], 1) + extremes.value(random, 0) for _ in range(random.choice((0, 1, 3)))
    ]
    return sized(random, b"".join(entries), 4)


@cache
def conversation(role: Role) -> bytes:
    """What a session of that role hears behind the handshake."""
    pair = consuming(opened(LIMITS))
    heard = b""
    for request in (
        o.DeclareQueue(1, "q"), o.Publish(1, "x", "k", SMALL), o.Publish(1, "x", "k", LARGE), o.Get(1, "q"),
        o.QueryExchange(1, "x"), o.TxSelect(1), o.TxCommit(1), o.Flow(1, False), o.Recover(1),
    ):  # fmt: skip
        pair.ask(request)
        heard += pair.to_server if role is Role.SERVER else pair.to_client
        for made in pair.requests:
            pair.tell(*answer(made))
            heard += pair.to_server if role is Role.SERVER else pair.to_client
    pair.tell(o.Deliver(1, "t", 0, False, "x", "k", LARGE))
    heard += pair.to_client if role is Role.CLIENT else b""
    pair.ask(o.Settle(1, o.Settlement.ACCEPT, 0, 0))
    return heard + (pair.to_server if role is Role.SERVER else b"")


def play(case: Case) -> str:
    """Play a case. Raises :class:`~tests.fuzz.oracle.Broken`."""
    pair: SessionPair = consuming(opened(LIMITS))
    session: Session = pair.server if case.role is Role.SERVER else pair.client
    random = Random(crc32(b"".join(case.chunks)))
    closed: o.Closed | None = None
    sent = given = 0
    for chunk in (*case.chunks, None):
        events = session.receive_eof(pair.now) if chunk is None else session.receive_data(chunk, pair.now)
        for event in events:
            if closed is not None:
                raise Broken(f"{event} came behind {closed}")
            closed = event if isinstance(event, o.Closed) else None
            given += _react(session, event, random, pair.now)
        sent += sum(map(len, session.data_to_send()))
        if session.unfinished > HELD_MAX or sent > SENT_MAX + SENT_FACTOR * case.size + given:
            raise Broken(f"{case.size} octets: {session.unfinished} are held, {sent} were sent")
    if closed is None or not session.closed or session.next_timeout() is not None:
        raise Broken("the stream ended, and the session did not")
    return f"{closed.reason.value} {closed.code}"


def _react(session: Session, event: o.Operation, random: Random, now: float) -> int:
    """What the user of the session does; how many octets it had it send."""
    message = getattr(event, "message", None)
    if isinstance(message, Message):
        try:
            properties = message.properties
        except FrameSyntaxError:
            properties = None
        if properties is not None and random.random() < 0.2:
            check_carried(V0_9_1, Message(message.body[:100], properties))
    given = 0
    for reply in answer(event) if session.role is Role.SERVER else _settled(event):
        try:
            session.send(reply, now)
        except LocalError:
            continue
        given += 2_048
    return given


def _settled(event: o.Operation) -> list[o.Operation]:
    if isinstance(event, o.Deliver | o.Got | o.DeliveryTooLarge):
        return [o.Settle(event.channel, o.Settlement.ACCEPT, event.delivery, event.delivery)]
    return []


def case_of(role: Role, chunks: tuple[bytes, ...]) -> Case:
    """A case of this target."""
    return Case("draft", V0_10, role, STATE, chunks)
