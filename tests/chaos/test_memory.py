"""Whether memory grows, over the lives of several processes."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest

from tests.chaos.memory import WARM, Life, Sample, Watch, keep, load, own_memory, slope_of
from tests.chaos.slow_target import resident


def life(level: float, an_hour: float, minutes: int, noise: float = 0.0) -> Life:
    chance = random.Random(1)
    return Life("abc", [(minute, level + an_hour * minute / 60 + chance.gauss(0, noise)) for minute in range(minutes)])


def test_the_slope_is_one_for_lives_of_different_levels() -> None:
    found = slope_of([life(1e8, 2e6, 60), life(3e8, 2e6, 50)])
    assert found is not None
    assert found.an_hour == pytest.approx(2e6)
    assert found.error == pytest.approx(0, abs=1)
    assert found.minutes == 60 + 50 - 2 * WARM


def test_the_first_minutes_do_not_count() -> None:
    grown = life(1e8, 0, 60)
    young = [(at, size + (0 if at >= WARM else 1e7 * at)) for at, size in grown.points]
    assert slope_of([Life("abc", young)]) == slope_of([grown])


def test_the_error_says_how_far_the_slope_may_be_off() -> None:
    few, many = (slope_of([life(1e8, 1e6, minutes, 1e6)]) for minutes in (40, 200))
    assert few is not None
    assert many is not None
    assert abs(many.an_hour - 1e6) < 3 * many.error < 3 * few.error


def test_too_little_tells_nothing() -> None:
    assert slope_of([]) is None
    assert slope_of([life(1e8, 0, int(WARM) + 2)]) is None


def test_lives_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "lives.json"
    assert load(path) == []
    lives = [life(1e8, 1e6, 30), life(2e8, 1e6, 40)]
    keep(path, lives)
    assert load(path) == lives


def test_a_watch_tells_the_lives_that_were_long_enough() -> None:
    watch = Watch()
    watch.look(os.getpid())
    ((sample,),) = watch.samples.values()
    assert sample.octets > 1_000_000
    assert sample.files > 2
    assert watch.newest == sample.octets
    assert Watch().newest == 0
    watch.samples = {
        1: [Sample(second, 100, 9) for second in range(0, 1_900, 2)],
        2: [Sample(second, 50 + second % 60, 9) for second in range(0, 1_300, 2)],
        3: [Sample(second, 100, 9) for second in range(0, 600, 2)],
    }
    first, second = watch.lives("abc")
    assert [at for at, _ in first.counted] == [float(minute) for minute in range(20, 32)]
    assert second.counted == [(20.0, 79.0), (21.0, pytest.approx(69.0, abs=1))]
    assert watch.longest == watch.samples[1][95:]


def test_pages_of_files_are_not_its_own(tmp_path: Path) -> None:
    size = 32 << 20
    file = tmp_path / "file"
    file.write_bytes(bytes(size))
    before = own_memory(os.getpid())
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not any(mapped[:: mmap.PAGESIZE])
        assert resident(os.getpid()) > before + size
        assert own_memory(os.getpid()) < before + size // 2
    kept = b"x" * size
    assert own_memory(os.getpid()) > before + size // 2
    assert len(kept) == size
