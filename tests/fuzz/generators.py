"""What is thrown at a session: random octets, mutated conversations, and sentences of the grammar.

Each generator makes the octets of one case for a version, a role (that of the session under test) and a state, from a
:class:`random.Random` alone: the same seed gives the same case.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Final

from gateway.classic import methods as m
from gateway.session import PROTOCOL_HEADERS, Role, Version
from gateway.v010.commands import COMMANDS, TRANSFER
from gateway.v010.controls import CONTROLS
from gateway.v010.structs import DELIVERY_PROPERTIES, FRAGMENT_PROPERTIES, MESSAGE_PROPERTIES, STRUCTS
from gateway.v010.version import V0_10
from gateway.versions import PROTOCOLS
from tests import golden
from tests.fuzz import extremes
from tests.fuzz.states import STATES, frame_borders, tape

METHODS: Final[Mapping[Version, tuple[type[m.Method], ...]]] = {
    version: tuple(
        method
        for dialect in dialects.values()
        for method in dialect.methods.values()
        for _ in range(1 if method.key in dialect.unserved else 8)
    )
    for version, dialects in ((protocol.version, protocol.dialects) for protocol in PROTOCOLS if protocol.is_classic)
}
"""Every method of every dialect; what ends the connection by its name alone comes less often."""
CHANNELS: Final = (0, 1, 1, 1, 1, 2, 2, 3, 0xFFFF)
"""Where frames go: mostly to channels that are open."""
COMMANDS_FIRST: Final = tuple(COMMANDS.values())
WITH_CONTENT: Final = tuple(code for code, kind in COMMANDS.items() if kind.header is not None)
HEADERS: Final[tuple[tuple[int, ...], ...]] = (
    (DELIVERY_PROPERTIES, MESSAGE_PROPERTIES),
    (DELIVERY_PROPERTIES,),
    (),
    tuple(STRUCTS),
    (MESSAGE_PROPERTIES, MESSAGE_PROPERTIES, FRAGMENT_PROPERTIES),
)
"""What a header segment of 0-10 may hold."""
CONTENT: Final[Mapping[Role, tuple[type[m.Method], ...]]] = {
    Role.SERVER: (m.BasicPublish,),
    Role.CLIENT: (m.BasicDeliver, m.BasicReturn, m.BasicGetOk),
}


def random_octets(random: Random, version: Version, role: Role, state: str) -> bytes:
    """Noise, or noise in well-formed frames."""
    if random.random() < 0.4:
        return random.randbytes(random.choice((1, 7, 8, 12, 64, 300)))
    frames = []
    for _ in range(random.choice((1, 1, 2, 6))):
        payload = random.randbytes(random.choice((0, 1, 4, 12, 40, 200)))
        if version is V0_10:
            frames.append(frame010(random, random.randrange(4), random.randrange(2), random.choice((0, 0, 1)), payload))
        else:
            frames.append(frame(random, random.choice((1, 1, 2, 3, 8, 4)), random.choice(CHANNELS), payload))
    return b"".join(frames)


# ------------------------------------------------------------------------------------------------- mutation


@cache
def conversations(version: Version, role: Role) -> tuple[bytes, ...]:
    """What a session of that role may hear: recorded from real brokers and clients, and from our own."""
    heard = [
        transcript.from_server if role is Role.CLIENT else transcript.from_client
        for transcript in map(golden.load, golden.names(version.value))
    ]
    heard += [b"".join(what for verb, what in tape(version, role, state) if verb == "receive") for state in STATES]
    return tuple(octets for octets in heard if octets)


@cache
def cuts(version: Version, role: Role) -> tuple[tuple[bytes, ...], ...]:
    """The same, in frames (a protocol header first)."""
    result = []
    for octets in conversations(version, role):
        start = 8 if octets[:4] == b"AMQP" else 0
        borders = [start + border for border in frame_borders(version, octets[start:])]
        pieces = [octets[:start]] if start else []
        pieces += [octets[a:b] for a, b in itertools.pairwise(borders)]
        result.append(tuple(pieces))
    return tuple(result)


def mutated(random: Random, version: Version, role: Role, state: str) -> bytes:
    """A stretch of a conversation, changed in one to four places."""
    chosen = random.choice(cuts(version, role))
    start = 0 if state == "new" else random.randrange(len(chosen))
    pieces = list(chosen[start : start + random.choice((1, 2, 4, 12, 40))])
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(MUTATIONS)(random, pieces, version, role)
    return b"".join(pieces)


def _at(random: Random, pieces: list[bytes]) -> int:
    return random.randrange(len(pieces))


def _flip(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    """One to three octets become others."""
    index = _at(random, pieces)
    octets = bytearray(pieces[index])
    for _ in range(random.choice((1, 1, 2, 3)) if octets else 0):
        at = random.randrange(len(octets))
        octets[at] = random.choice((octets[at] ^ 1 << random.randrange(8), 0, 0xFF, random.randrange(256)))
    pieces[index] = bytes(octets)


def _cut(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    """A frame ends early, and the next follows; or some octets are missing inside."""
    index = _at(random, pieces)
    octets = pieces[index]
    a = random.randrange(len(octets) + 1)
    b = random.choice((len(octets), min(len(octets), a + random.randrange(1, 9))))
    pieces[index] = octets[:a] + octets[b:]


def _duplicate(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    index = _at(random, pieces)
    pieces[index:index] = [pieces[index]] * random.choice((1, 2, 20))


def _swap(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    a, b = _at(random, pieces), _at(random, pieces)
    pieces[a], pieces[b] = pieces[b], pieces[a]


def _splice(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    """Frames of another conversation, perhaps of the other role, come between."""
    source = random.choice(cuts(version, random.choice((role, role, Role.CLIENT, Role.SERVER))))
    at = random.randrange(len(source))
    index = _at(random, pieces)
    pieces[index:index] = source[at : at + random.choice((1, 2, 5))]


def _length(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    """A length changes: the frame's, or any two or four octets inside that look like one."""
    index = _at(random, pieces)
    octets = bytearray(pieces[index])
    if len(octets) < 8:
        return
    width = random.choice((1, 2, 4))
    if random.random() < 0.4:
        at, width = (2, 2) if version is V0_10 else (3, 4)
    else:
        at = random.randrange(len(octets) - width + 1)
    old = int.from_bytes(octets[at : at + width], "big")
    top = (1 << 8 * width) - 1
    new = random.choice((0, old + 1, old - 1, old + 8, top, top >> 1, 0x7FFFFFFE, 0xFFFFFFFF - 8, random.randrange(64)))
    octets[at : at + width] = (new & top).to_bytes(width, "big")
    pieces[index] = bytes(octets)


def _channel(random: Random, pieces: list[bytes], version: Version, role: Role) -> None:
    index = _at(random, pieces)
    octets = bytearray(pieces[index])
    at = 6 if version is V0_10 else 1
    if len(octets) >= at + 2:
        octets[at : at + 2] = random.choice(CHANNELS).to_bytes(2, "big")
    pieces[index] = bytes(octets)


MUTATIONS: Final = (_flip, _flip, _cut, _duplicate, _swap, _splice, _length, _length, _channel)


# -------------------------------------------------------------------------------------------------- grammar


def frame(random: Random, kind: int, channel: int, payload: bytes) -> bytes:
    """A frame of 0-8 and 0-9-1."""
    end = b"\xce" if random.random() < 0.995 else random.randbytes(1)
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def frame010(random: Random, kind: int, track: int, channel: int, payload: bytes, flags: int = 0x0F) -> bytes:
    """A frame of 0-10."""
    if random.random() < 0.01:
        flags = random.randrange(256)
    size = min(len(payload) + 12, 0xFFFF)
    return struct.pack(">BBHBBHI", flags, kind, size, 0, track, channel, 0) + payload


def grammar(random: Random, version: Version, role: Role, state: str) -> bytes:
    """Methods or commands of the definitions, in any order, their fields at the edges."""
    say = _sentence010 if version is V0_10 else _sentence
    count = random.choice((1, 2, 3, 8, 20))
    if state == "new" and random.random() < 0.9:
        header = next(octets for octets, known in PROTOCOL_HEADERS.items() if known is version)
        return header + b"".join(say(random, version, role) for _ in range(count))
    return b"".join(say(random, version, role) for _ in range(count))


def _sentence(random: Random, version: Version, role: Role) -> bytes:
    channel = random.choice(CHANNELS)
    chance = random.random()
    if chance < 0.35:
        kind = random.choice(CONTENT[role])
        return frame(random, 1, channel, extremes.method(random, kind)) + _content(random, channel)
    if chance < 0.38:
        return frame(random, 8, random.choice((0, 0, 0, 1)), random.choice((b"", b"", b"\x00")))
    if chance < 0.43:
        return _content(random, channel)
    kind = random.choice(METHODS[version])
    if kind.class_id == 10 and random.random() < 0.8:
        channel = 0
    octets = frame(random, 1, channel, extremes.method(random, kind))
    return octets + _content(random, channel, kind.class_id) if kind.content and random.random() < 0.9 else octets


def _content(random: Random, channel: int, class_id: int = 60) -> bytes:
    """A content header and body frames, whose sum is nearly always right."""
    sizes = random.choice(((), (0,), (5,), (1, 1, 1), (0, 0, 3), (4088,), (4088, 4088, 100), (4088,) * 5))
    total = sum(sizes)
    if random.random() < 0.1:
        total = random.choice((0, total + 1, max(total - 1, 0), 20_000, 20_001, 30_001, 1 << 31, (1 << 64) - 1))
    if random.random() > 0.98:
        class_id = random.choice((60, 70, 80, 110, 120, random.randrange(1 << 16)))
    header = struct.pack(">HHQ", class_id, 0, total) + extremes.properties(random)
    parts = [frame(random, 2, channel, header)]
    parts += [frame(random, 3, channel, bytes(size)) for size in sizes]
    if random.random() < 0.05:
        random.shuffle(parts)
    return b"".join(parts)


def _sentence010(random: Random, version: Version, role: Role) -> bytes:
    channel = random.choice((0, 0, 0, 1, 1, 2, 0xFFFF))
    chance = random.random()
    if chance < 0.3:
        return _transfer(random, channel)
    if chance < 0.35:
        return _transfer(random, channel, random.choice(WITH_CONTENT))
    if chance < 0.6:
        control = random.choice(tuple(CONTROLS.values()))
        payload = control.code.to_bytes(2, "big") + extremes.fields(random, control)
        return frame010(random, 0, 0, channel, payload)
    command = random.choice(COMMANDS_FIRST)
    session_header = random.choice((b"\x01\x00", b"\x01\x01", b"\x00", b"\x03\x01\x02\x03", b"\xff"))
    payload = command.code.to_bytes(2, "big") + session_header + extremes.fields(random, command)
    return frame010(random, 1, 1, channel, payload, 0x0F if random.random() < 0.97 else 0x0B)


def _transfer(random: Random, channel: int, code: int = TRANSFER) -> bytes:
    """message.transfer, or another command with content: header and body segments in frames, nearly always in order."""
    command = b"%b\x01%c%b" % (
        code.to_bytes(2, "big"), random.randrange(2), extremes.fields(random, COMMANDS[code])
    )  # fmt: skip
    codes = random.choice(HEADERS)
    header = b"".join(
        extremes.sized(random, code.to_bytes(2, "big") + extremes.fields(random, STRUCTS[code]), 4) for code in codes
    )
    sizes = random.choice(((), (0,), (5,), (1, 1, 1), (4000,), (4000, 4000, 100), (4000,) * 6))
    parts = [frame010(random, 1, 1, channel, command, 0x0B)]
    if random.random() < 0.9:
        half = random.choice((0, len(header) // 2))
        if half:
            parts.append(frame010(random, 2, 1, channel, header[:half], 0x02))
        last = 0x00 if sizes else 0x04
        parts.append(frame010(random, 2, 1, channel, header[half:], (0x01 if half else 0x03) | last))
    for index, size in enumerate(sizes):
        flags = 0x04 | (0x02 if index == 0 else 0) | (0x01 if index == len(sizes) - 1 else 0)
        parts.append(frame010(random, 3, 1, channel, bytes(size), flags))
    if random.random() < 0.05:
        random.shuffle(parts)
    if random.random() < 0.05:
        parts.pop()
    return b"".join(parts)


GENERATORS: Final[Mapping[str, Callable[[Random, Version, Role, str], bytes]]] = {
    "random": random_octets,
    "mutated": mutated,
    "grammar": grammar,
}
