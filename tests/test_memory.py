"""What a burst took goes back to the system."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import weakref

import pytest

from gateway import memory

BURST = """
from pathlib import Path
from gateway.memory import give_back

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before = resident()
burst = [bytes(1_000) for _ in range(60_000)]
kept = burst[::1_000]  # a few that live on, between the holes
del burst
held = resident() - before
assert give_back()
print(held, resident() - before)
"""


def test_what_a_burst_took_goes_back() -> None:
    told = subprocess.run([sys.executable, "-c", BURST], check=True, capture_output=True, text=True).stdout
    held, left = map(int, told.split())
    assert held > 40e6, "it was not kept at all"
    assert left < held / 4


LARGE = """
from pathlib import Path
from gateway.memory import map_large

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

assert map_large()
before = resident()
for _ in range(3):
    burst, kept = [], []
    for _ in range(60):
        burst.append(bytes([1]) * 1_000_000)
        kept.append(bytes(100_000))  # these live on, between the holes
    held = resident() - before
    del burst
print(held, resident() - before)
"""


def test_what_is_large_goes_back_at_once() -> None:
    """Nobody has to be kept from memory for that."""
    told = subprocess.run([sys.executable, "-c", LARGE], check=True, capture_output=True, text=True).stdout
    held, left = map(int, told.split())
    assert held > 60e6, "it was not kept at all"
    assert left < 20e6


async def test_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(memory, "EVERY", 0.01)
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(1))
    with memory.given_back():
        async with asyncio.timeout(10):
            while len(calls) < 3:
                await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    ended = len(calls)
    await asyncio.sleep(0.05)
    assert len(calls) == ended


class Circle:
    """Holds itself."""

    def __init__(self) -> None:
        self.itself = self


async def test_what_only_holds_itself_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is. Where that takes long, it is done seldom."""
    monkeypatch.setattr(memory, "EVERY", 0.01)
    collect, slow, collected = gc.collect, [0.0], list[int]()

    def timed(generation: int = 2) -> int:
        collected.append(generation)
        time.sleep(slow[0] if generation == 2 else 0.0)
        return collect(generation)

    monkeypatch.setattr(gc, "collect", timed)
    monkeypatch.setattr(memory, "RARELY", 0.0)
    circle = Circle()
    collect()  # it is old from now on
    gone = weakref.ref(circle)
    del circle
    with memory.given_back():
        async with asyncio.timeout(10):
            while gone() is not None:
                await asyncio.sleep(0.01)
            monkeypatch.setattr(memory, "RARELY", 5_000.0)
            slow[0] = 0.01
            while 1 not in collected:
                await asyncio.sleep(0.01)
            collected.clear()
            while len(collected) < 3:
                await asyncio.sleep(0.01)
    assert set(collected) == {1}


def test_a_library_that_has_no_such_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert memory.give_back() is False
    assert memory.map_large() is False
