"""Logins of the embedded broker: no odd one succeeds, and guessing passwords is slow and in the log."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Final

from gateway.broker.logins import DELAY_MAX, FREE_OF_USER
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests import canary
from tests.attack.client import HOST, at_once, talk
from tests.attack.judge import Record
from tests.attack.lab import Target
from tests.attack.neighbor import QUEUE
from tests.hostile import control, long, map010, method, short

GUESSER: Final = "127.0.0.77"
"""The address that guesses, so that nobody else is slowed."""
PER_SECOND: Final = 50
"""Most wrong logins of one address and user a second, once the first few are over."""
EMPTY: Final = struct.pack(">I", 0)
RESPONSES: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"PLAIN", b""), (b"PLAIN", b"\x00"), (b"PLAIN", b"\x00\x00"), (b"PLAIN", b"guest"), (b"PLAIN", b"\x00guest"),
    (b"PLAIN", b"\x00guest\x00"), (b"PLAIN", b"\x00guest\x00guest\x00"), (b"PLAIN", b"\x00guest\x00guest\x00guest"),
    (b"PLAIN", b"guest\x00guest\x00gues"), (b"PLAIN", b"\x00\x00guest"), (b"PLAIN", b"\x00guest\x00Guest"),
    (b"PLAIN", b"\x00GUEST\x00guest"), (b"PLAIN", b"\x00guest \x00guest"), (b"PLAIN", b"\x00canary\x00guest"),
    (b"PLAIN", b"\x00" + b"a" * 100_000 + b"\x00guest"), (b"PLAIN", b"\x00guest\x00" + b"a" * 100_000),
    (b"PLAIN", b"\x00\xff\xfe\x00\xff"), (b"plain", b"\x00guest\x00guest"), (b"PLAIN\x00", b"\x00guest\x00guest"),
    (b"", b"\x00guest\x00guest"), (b"ANONYMOUS", b""), (b"ANONYMOUS", b"guest"), (b"EXTERNAL", b""),
    (b"EXTERNAL", b"guest"), (b"CRAM-MD5", b""), (b"DIGEST-MD5", b""), (b"GSSAPI", b""), (b"AMQPLAIN", b""),
    (b"AMQPLAIN", b"\x05LOGINS" + long(b"guest")), (b"AMQPLAIN", b"\x05LOGINS\xff\xff\xff\xff"),
    (b"SCRAM-SHA-256", b""), (b"SCRAM-SHA-256", b"n,,n=guest,r="), (b"SCRAM-SHA-256", b"y,,n=guest,r=x"),
    (b"SCRAM-SHA-256", b"p=tls-unique,,n=guest,r=x"), (b"SCRAM-SHA-256", b"c=biws,r=x,p=x"),
    (b"SCRAM-SHA-1", b"n,,n=guest,r=x"), (b"PLAIN" * 50, b"\x00guest\x00guest"),
)  # fmt: skip
"""Mechanisms and first responses that must not log in."""


def start_ok(version: Version, mechanism: bytes, response: bytes) -> bytes:
    """Return a client's answer to start."""
    if version is V0_10:
        fields = map010(0, b"") + short(mechanism) + long(response) + short(b"en_US")
        return control(1, 2, 0x0F00, fields)
    return method(10, 11, EMPTY + short(mechanism) + long(response) + short(b"en_US"), 0)


def opens(version: Version) -> bytes:
    """Return what a client says that takes itself for logged in."""
    if version is V0_10:
        return control(1, 6, 0x0000) + control(1, 7, 0x0100, short(b"/"))
    return method(10, 31, struct.pack(">HIH", 0, 0, 0), 0) + method(10, 40, short(b"/") + short(b"") + b"\x00", 0)


def logged_in(version: Version, said: bytes) -> bool:
    """Whether the broker has tuned or opened the connection."""
    if version is V0_10:
        return bytes((1, 5)) in _controls(said) or bytes((1, 8)) in _controls(said)
    return struct.pack(">HH", 10, 30) in said or struct.pack(">HH", 10, 41) in said


def _controls(said: bytes) -> set[bytes]:
    """Class and code of each control frame of 0-10."""
    found, at = set(), 8 if said[:4] == b"AMQP" else 0
    while at + 14 <= len(said):
        found.add(said[at + 12 : at + 14])
        at += max(int.from_bytes(said[at + 2 : at + 4], "big"), 12)
    return found


async def mechanisms(target: Target, record: Record) -> None:
    """Try odd responses in every version, with what follows a login behind them, each from an address of its own."""
    for version in VERSIONS:
        good = start_ok(version, b"PLAIN", b"\x00guest\x00guest")
        said = await talk(target.amqp_port, version.header + good, within=0.5)
        record.check(logged_in(version, said), f"{version.value}: the right login: {said[-40:]!r}")
        said = await talk(target.amqp_port, version.header + opens(version), within=0.2)
        record.check(not logged_in(version, said), f"{version.value}: open without a login")
    tries = [(version, *response) for version in VERSIONS for response in RESPONSES if len(response[0]) < 256]
    within = target.scaled(1, 0) * DELAY_MAX + 0.3

    async def one(number: int, version: Version, mechanism: bytes, response: bytes) -> None:
        response = response[:50_000] if version is V0_10 else response
        octets = version.header + start_ok(version, mechanism, response) + opens(version)
        said = await talk(target.amqp_port, octets, within=within, source=f"127.1.0.{number + 1}")
        record.check(not logged_in(version, said), f"{version.value} {mechanism[:20]!r} {response[:40]!r} logged in")

    await at_once(32, [one(number, *each) for number, each in enumerate(target.some(tries, FREE_OF_USER))])


async def guesses(target: Target, record: Record) -> None:
    """Guess passwords as fast as the broker lets one address: it is slow, in the log, and no burden to others."""
    seconds = target.scaled(6.0, 2.0)  # type: ignore[arg-type]
    end = time.monotonic() + seconds
    before = len(target.log())
    count = 0

    async def guess() -> None:
        nonlocal count
        while time.monotonic() < end:
            writer = None
            try:
                async with asyncio.timeout(5):
                    reader, writer = await asyncio.open_connection(HOST, target.amqp_port, local_addr=(GUESSER, 0))
                    response = f"\x00{canary.USER}\x00wrong{count}".encode()
                    writer.write(V0_9_1.header + start_ok(V0_9_1, b"PLAIN", response))
                    said = await reader.read(1 << 16)
                    if not logged_in(V0_9_1, said):
                        said += await reader.read(1 << 16)
                    record.check(not logged_in(V0_9_1, said), "a wrong password logged in")
                    count += 1
            except (OSError, TimeoutError):
                pass  # it may hang up
            finally:
                if writer is not None:
                    writer.close()

    await asyncio.gather(*(guess() for _ in range(8)))
    rate = count / seconds
    record.notes["guesses"] = f"{rate:.0f} a second"
    record.check(rate <= PER_SECOND, f"{rate:.0f} wrong logins a second; the limit is {PER_SECOND}")
    said = target.log()[before:]
    record.check("login" in said or "authentication" in said, "the log says nothing of wrong logins")
    record.check(canary.CANARY not in said, "the log shows a password")
    login = f"\x00{QUEUE}\x00{QUEUE}".encode()  # the row before this one has guessed guest's
    said_to = await talk(target.amqp_port, V0_9_1.header + start_ok(V0_9_1, b"PLAIN", login), within=0.5)
    record.check(logged_in(V0_9_1, said_to), "another user's login from another address was slow")
