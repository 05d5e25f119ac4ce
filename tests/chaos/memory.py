"""Memory and open files of a process over its lives, and whether the memory grows.

Runs add up: each appends the lives of its processes to a file. The slope is one for all lives, each with a level of its
own, by least squares over the means of minutes. The first minutes of a life are left out, in which a process grows to
its size.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.figures import RUNS

LIVES: Final = RUNS / "soak.json"
"""The processes of all runs."""
WARM: Final = 20.0
"""Minutes of each life that are left out."""
ENOUGH: Final = 60.0
"""Minutes, without those, from which on the slope is judged."""


def own_memory(pid: int) -> int:
    """The memory of a process that is no page of a file, in bytes. Pages of its libraries come and go with what other
    processes of the machine read: in one soak they grew by 1.7 MB within four minutes, and the rest did not."""
    resident, shared = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * 4096


class Sample(NamedTuple):
    """What a process held at a time."""

    at: float
    """By the monotonic clock, in seconds."""
    octets: int
    """Of its own memory, see :func:`own_memory`."""
    files: int


@dataclass(frozen=True)
class Life:
    """The memory of one process."""

    code: str
    """The commit that it ran."""
    points: list[tuple[float, float]]
    """Minutes since it began, and the mean of its memory in that minute, in bytes."""

    @property
    def counted(self) -> list[tuple[float, float]]:
        """Without the first minutes."""
        return [point for point in self.points if point[0] >= WARM]


class Slope(NamedTuple):
    """By how much the memory grows."""

    an_hour: float
    """Bytes."""
    error: float
    """The standard error of that, as if each minute told something of its own."""
    minutes: float
    """How many minutes stand behind it."""


@dataclass
class Watch:
    """The samples of each process."""

    samples: dict[int, list[Sample]] = field(default_factory=dict)

    def look(self, pid: int) -> None:
        """One more sample; a process that has just ended gives none."""
        try:
            files = len(os.listdir(f"/proc/{pid}/fd"))
            self.samples.setdefault(pid, []).append(Sample(time.monotonic(), own_memory(pid), files))
        except OSError:
            return

    @property
    def longest(self) -> list[Sample]:
        """Of the process that lived longest, without its first tenth."""
        best = max(self.samples.values(), key=lambda each: each[-1].at - each[0].at)
        return best[len(best) // 10 :]

    @property
    def newest(self) -> int:
        """The memory of the process that was looked at last, in bytes."""
        return max((samples[-1] for samples in self.samples.values()), default=Sample(0.0, 0, 0)).octets

    def lives(self, code: str) -> list[Life]:
        """Those that were long enough to tell something."""
        return [life for samples in self.samples.values() if (life := _life(samples, code)).counted]


def _life(samples: Sequence[Sample], code: str) -> Life:
    minutes: dict[int, list[int]] = {}
    for sample in samples:
        minutes.setdefault(int((sample.at - samples[0].at) // 60), []).append(sample.octets)
    return Life(code, [(float(minute), sum(each) / len(each)) for minute, each in sorted(minutes.items())])


def slope_of(lives: Sequence[Life]) -> Slope | None:
    """One slope for all; None: there are too few minutes for any."""
    across = spread = 0.0
    middles = []
    counted = [life.counted for life in lives if len(life.counted) > 1]
    for points in counted:
        middle, level = (sum(values) / len(points) for values in zip(*points, strict=True))
        middles.append((middle, level))
        across += sum((at - middle) * (size - level) for at, size in points)
        spread += sum((at - middle) ** 2 for at, _ in points)
    number = sum(map(len, counted))
    free = number - len(counted) - 1
    if free < 1:
        return None
    slope = across / spread
    left = sum(
        (size - level - slope * (at - middle)) ** 2
        for points, (middle, level) in zip(counted, middles, strict=True)
        for at, size in points
    )
    return Slope(60 * slope, 60 * math.sqrt(left / free / spread), float(number))


def load(path: Path) -> list[Life]:
    """The lives of earlier runs."""
    if not path.exists():
        return []
    return [
        Life(each["code"], [(at, size) for at, size in each["points"]])
        for each in json.loads(path.read_text(encoding="utf-8"))
    ]


def keep(path: Path, lives: Sequence[Life]) -> None:
    """Write these."""
    texts = [json.dumps(asdict(life)) for life in lives]
    path.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8")
