"""The brokers of a world do to messages what real ones did.

What the client of a transcript sent goes to the embedded broker, which the simulated ones are. What is compared: which
messages come, in which order, with which mark; which publishes are confirmed; and what every request is answered with.
Of how many publishes one confirm tells, and what comes between two deliveries, a broker is free to say.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.versions import VERSIONS
from tests import golden
from tests.broker.raw import Raw, frames, publishing, served

QUIET: Final = 0.3
"""A broker that has said nothing for so long says nothing more, in seconds."""
PATIENCE: Final = 10.0
"""The same where there must be more."""
METHOD, HEADER, BODY = 1, 2, 3
DELIVER, GET_OK, RETURN, ACK, NACK, CLOSE = (60, 60), (60, 71), (60, 50), (60, 80), (60, 120), (20, 40)
RECOVERED: Final = ((60, 101), (60, 111))
"""In 0-8 a broker may answer basic.recover or not."""
CONTENT: Final = {DELIVER: "delivered", GET_OK: "got", RETURN: "returned"}
"""Class and method of what comes with a message -> how it comes."""
OPEN_OK: Final = (10, 41)
NATIVE_OPEN_OK, NATIVE_SESSION, NATIVE_TRANSFER, NATIVE_EXCEPTION = b"\x01\x08", 2, b"\x04\x01", b"\x03\x03"
LAST: Final = 0x05
"""Flags of the last frame of the last segment of 0-10."""
REDELIVERED: Final = 0x04
"""In the first flags of delivery-properties."""
PROPERTIES: Final = "$virtualhostProperties"
"""What Qpid's client reads first; Broker-J has one empty message there."""
ATTACHED, DETACHED = b"\x02\x02", b"\x02\x04"
ORDER, PACKED = (
    "Broker-J lets transient messages overtake persistent ones",
    "Broker-J unpacks bodies",
)
BROWSED, SELECTED = (
    "Broker-J says with a cancel-ok that a browser has seen all, the embedded broker with a cancel, or not at all",
    "Broker-J takes confirm.select on a channel with transactions, RabbitMQ and the embedded broker do not",
)
DIFFERENT: Final = {
    **dict.fromkeys(("brokerj-0-8", "brokerj-0-9-1", "brokerj-0-10"), ORDER),
    **dict.fromkeys(("brokerj-0-8-gzip", "brokerj-0-9-1-gzip", "brokerj-0-10-gzip"), PACKED),
    **dict.fromkeys(("brokerj-0-8-jms-browse", "brokerj-0-9-1-jms-browse"), BROWSED),
    **dict.fromkeys(("brokerj-0-8-jms-transaction", "brokerj-0-9-1-jms-transaction"), SELECTED),
    "rabbitmq-0-9-1-refused-float": "RabbitMQ ends the connection over a float that is no number",
}
"""Transcript -> how the real broker differs from the embedded one."""
REFUSED: Final = ("rabbitmq-0-9-1-wrong-password", "rabbitmq-0-9-1-unknown-virtual-host")
"""Transcripts of connections that were never open."""


@dataclass
class Heard:
    """What a client has heard of its broker on one channel."""

    messages: list[tuple[Any, ...]] = field(default_factory=list)
    """How each came, whether it may be a repeat, and its body."""
    answers: list[str] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    """Numbers of publishes."""


class Listener:
    """Reads what a broker says."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.channels: defaultdict[int, Heard] = defaultdict(Heard)
        self._left = b""
        self._coming: list[Any] = []
        """The message that is on its way: how it comes, its mark, its body; and how large that is to be."""

    @property
    def count(self) -> int:
        """How much was heard."""
        return sum(len(heard.messages) + len(heard.answers) + len(heard.confirmed) for heard in self.channels.values())

    def hear(self, octets: bytes) -> None:
        """Take what has come. The end may be part of a frame."""
        found, self._left = frames(self.version, self._left + octets), b""
        if found and not self._is_whole(found[-1]):
            self._left = found.pop()
        for frame in found:
            if self.version is V0_10:
                self._hear_native(frame)
            else:
                self._hear_classic(frame)

    def _is_whole(self, frame: bytes) -> bool:
        if self.version is V0_10:
            return len(frame) > 4 and len(frame) == int.from_bytes(frame[2:4])
        return len(frame) > 7 and len(frame) == int.from_bytes(frame[3:7]) + 8

    def _hear_classic(self, frame: bytes) -> None:
        kind, heard, payload = frame[0], self.channels[int.from_bytes(frame[1:3])], frame[7:-1]
        if kind == METHOD:
            method, arguments = (int.from_bytes(payload[:2]), int.from_bytes(payload[2:4])), payload[4:]
            if method in CONTENT:
                at = {DELIVER: 9 + arguments[0], GET_OK: 8, RETURN: 0}[method]
                self._coming = [CONTENT[method], method != RETURN and arguments[at] & 1, b""]
            elif method in (ACK, NACK):
                number = int.from_bytes(arguments[:8])
                until = max(heard.confirmed, default=0) if arguments[8] & 1 else number - 1
                heard.confirmed.update(range(until + 1, number + 1))
            elif method not in RECOVERED:
                code = f" {int.from_bytes(arguments[:2])}" if method == CLOSE else ""
                heard.answers.append(f"{method[0]}.{method[1]}{code}")
        elif kind == HEADER:
            self._coming.append(int.from_bytes(payload[4:12]))
        elif kind == BODY:
            self._coming[2] += payload
        if kind in (HEADER, BODY) and len(self._coming[2]) == self._coming[3]:
            heard.messages.append(tuple(self._coming[:3]))

    def _hear_native(self, frame: bytes) -> None:
        flags, kind, heard, payload = frame[0], frame[1], self.channels[int.from_bytes(frame[6:8])], frame[12:]
        if kind == 0 and (payload[0] != NATIVE_SESSION or payload[:2] in (ATTACHED, DETACHED)):
            heard.answers.append(payload[:2].hex("."))
        elif kind == METHOD and payload[:2] == NATIVE_TRANSFER:
            self._coming = ["delivered", 0, b""]
        elif kind == METHOD:
            code = f" {int.from_bytes(payload[6:8])}" if payload[:2] == NATIVE_EXCEPTION else ""
            heard.answers.append(payload[:2].hex(".") + code)
        elif kind == HEADER and payload[4:6] == b"\x04\x01":
            self._coming[1] = payload[6] & REDELIVERED
        elif kind == BODY:
            self._coming[2] += payload
        if kind and self._coming and flags & LAST == LAST:
            heard.messages.append(tuple(self._coming))
            self._coming = []


def from_the_first_channel_on(transcript: golden.Transcript, version: Version) -> Iterator[tuple[str, bytes]]:
    """Yield who said what after the connection was open."""
    is_open = False
    for who, octets in transcript.pieces:
        said = octets.removeprefix(octets[:8]) if octets.startswith(b"AMQP") else octets
        left = b""
        for frame in frames(version, said):
            if is_open:
                left += frame
            is_open = is_open or (who == "server" and is_open_ok(frame, version))
        if left:
            yield who, left


def version_of(transcript: golden.Transcript) -> Version:
    (version,) = (each for each in VERSIONS if each.value == transcript.version)
    return version


def is_open_ok(frame: bytes, version: Version) -> bool:
    if version is V0_10:
        return frame[1] == 0 and frame[12:14] == NATIVE_OPEN_OK
    return frame[0] == METHOD and (int.from_bytes(frame[7:9]), int.from_bytes(frame[9:11])) == OPEN_OK


async def replayed(transcript: golden.Transcript, patience: float) -> tuple[Listener, Listener]:
    """Return what the client of a transcript has heard, and what it hears from the embedded broker. Nothing more is
    sent when that has said less for ``patience`` seconds."""
    version = version_of(transcript)
    real, simulated = Listener(version), Listener(version)
    async with served() as broker:
        other = await Raw.open(broker.port)
        await other.declare(PROPERTIES)
        await other.tell(publishing(PROPERTIES))
        await other.declare("golden-mine", exclusive=True)
        client = await Raw.open(broker.port, version, channels=0)
        pieces = [*from_the_first_channel_on(transcript, version), ("client", b"")]
        for (who, octets), (_, answer) in zip(pieces, [*pieces[1:], ("server", b"")], strict=True):
            if who != "client":
                continue
            await client.write(octets)
            real.hear(answer)
            while simulated.count < real.count or not octets:
                try:
                    async with asyncio.timeout(patience if octets else QUIET):
                        said = await client.read()
                except TimeoutError:
                    said = b""
                if not said:
                    break
                simulated.hear(said)
            if simulated.count < real.count:
                break
    return real, simulated


@pytest.mark.parametrize("name", [name for name in golden.names() if name not in {*DIFFERENT, *REFUSED}])
async def test_the_same_comes_from_the_embedded_broker(name: str) -> None:
    real, simulated = await replayed(golden.load(name), PATIENCE)
    assert real.count > 0
    assert simulated.channels == real.channels


@pytest.mark.parametrize("name", DIFFERENT)
async def test_what_differs_still_does(name: str) -> None:
    real, simulated = await replayed(golden.load(name), QUIET)
    assert simulated.channels != real.channels


def test_enough_of_them_are_the_same() -> None:
    assert len(golden.names()) - len(DIFFERENT) - len(REFUSED) >= 10


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_opens_no_channel(name: str) -> None:
    transcript = golden.load(name)
    assert list(from_the_first_channel_on(transcript, version_of(transcript))) == []
