"""The quick form of every row: a few hundred messages, the fault once or twice, and the whole check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.rows import ROWS, BrokenFrames, Row, perform
from tests.servers import Server, serving

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(
    ("row", "kind", "version"),
    [
        pytest.param(row, kind, version, id=f"{row.name}-{kind}-{version}")
        for row in ROWS
        for kind, version in row.quick
    ],
)
async def test_nothing_is_lost(
    row: Row, kind: str, version: str, request: pytest.FixtureRequest, private_server: Callable[[str], Any]
) -> None:
    server: Server = (private_server if row.private else request.getfixturevalue)(serving(kind, version))
    run = await perform(row, server, version, row.messages, row.times[0], seed=1)
    print(run.summary())


CLASSIC = bytes.fromhex("01000000000003") + b"abc\xce"
V0_10 = bytes.fromhex("0f00000f0000000000000000") + b"abc"


@pytest.mark.parametrize(
    ("version", "before", "frame"), [("0-9-1", b"", CLASSIC), ("0-10", b"AMQP\x01\x01\x00\x0a", V0_10)]
)
@pytest.mark.parametrize("size", [1, 4, 9, 1000])
def test_what_is_broken_is_the_beginning_of_a_frame(version: str, before: bytes, frame: bytes, size: int) -> None:
    """However the octets are cut into pieces."""
    toxic, memory = BrokenFrames(version), {}

    def send(data: bytes) -> bytes:
        return b"".join(toxic.change(memory, data[place : place + size]) for place in range(0, len(data), size))

    assert send(before + frame * 3) == before + frame * 3
    assert send(frame[:5]) == frame[:5]
    toxic.armed += 1
    broken = bytes([frame[0] ^ 0xFF]) + frame[1:]
    assert send(frame[5:] + frame * 2) == frame[5:] + broken + frame
    assert toxic.change({}, before + frame) == before + frame, "a connection of later is left alone"
