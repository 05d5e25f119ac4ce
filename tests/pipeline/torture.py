"""Kill a stream with SIGKILL, driver and JVM at once, wherever it hurts, and count what came out.

The stream reads a log whose retention takes at once whatever the cursor says is read, and publishes it: a cursor that
is told too early loses rows for good, and a message that is sent again without its key is there twice. What must come
out is every row, once.

``python -m tests.pipeline.torture --full`` is the long form; ``tests/pipeline/stream`` has the short one.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.pipeline.fake import FakeGateway

ROOT = Path(__file__).resolve().parent.parent.parent
WITHIN = float(os.environ.get("TORTURE_PATIENCE", "300"))
"""How long a run may take, in seconds: more on a machine that has other work."""
POINTS = {
    "planning: the log's end is asked for": ("/v1/log/head", "run"),
    "reading: a task asks for its rows": ("/v1/log", "run"),
    "writing: a request arrives": ("*:publish", "run"),
    "writing: stored, and not answered": ("*:publish", "then"),
    "between batches: the cursor is about to be told": ("/v1/log/cursors/torture", "run"),
    "between batches: the cursor was told": ("/v1/log/cursors/torture", "then"),
}
"""Where it is killed: at which request, before or after that is carried out."""


@dataclass
class Result:
    """What came out."""

    rows: int
    kills: list[str]
    published: int
    received: int
    missing: int
    position: dict[str, int]

    @property
    def good(self) -> bool:
        """Every row is there once."""
        return self.published == self.rows and not self.missing

    def lines(self) -> list[str]:
        """A table."""
        return [
            f"rows in the log          {self.rows}",
            f"killed                   {len(self.kills)} times",
            *(f"  {point:<50} {self.kills.count(point)}" for point in POINTS),
            f"messages received        {self.received}",
            f"known by their keys      {self.received - self.published}",
            f"published                {self.published}",
            f"missing                  {self.missing}",
            f"cursor at the end        {self.position}",
        ]


class Run:
    """One life of the stream."""

    def __init__(self, gateway: FakeGateway, folder: Path, batch: int) -> None:
        self.killed = threading.Event()
        command = [sys.executable, "-m", "tests.pipeline.stream.driver", gateway.url, str(folder), str(batch)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        self._log = (folder / "driver.log").open("ab")
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM."""
        if not self.killed.is_set():
            self.killed.set()
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status."""
        try:
            return self._process.wait(WITHIN)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._log.close()


def torture(folder: Path, rows: int, batch: int, points: Sequence[str], seed: int, spare: int = 1) -> Result:
    """Run the stream, kill it once at each of these points, and let it end. ``spare`` of the requests at which it could
    be killed pass, or up to two more."""
    chance = random.Random(seed)
    killed: list[str] = []
    with FakeGateway(trims=True) as gateway:
        gateway.add("messages", 0, rows * 3 // 4)
        gateway.add("messages", 3, rows - rows * 3 // 4)
        for point in points:
            run = Run(gateway, folder, batch)
            path, moment = POINTS[point]
            spared = chance.randrange(spare, spare + 3)
            gateway.faults[:] = []
            gateway.fail(path, spared)
            gateway.fail(path, 1, **{moment: run.kill})
            run.wait()
            if run.killed.is_set():
                killed.append(point)
        gateway.faults[:] = []
        run = Run(gateway, folder, batch)
        status = run.wait()
        if status:
            raise AssertionError(f"the last run ended with {status}:\n{(folder / 'driver.log').read_text()[-5000:]}")
        expected = {
            f"body {shard} {n}".encode()
            for shard, log in gateway.logs["messages"].items()
            for n in range(1, log.head + 1)
        }
        bodies = gateway.bodies()
        return Result(
            rows=rows, kills=killed, published=len(bodies), received=gateway.received,
            missing=len(expected.difference(bodies)), position=gateway.told("torture"),
        )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tests.pipeline.torture", description=__doc__)
    parser.add_argument("--full", action="store_true", help="20 kills and 200,000 rows")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    kills, rows = (20, 200_000) if options.full else (options.kills, options.rows)
    points = [list(POINTS)[number % len(POINTS)] for number in range(kills)]
    with tempfile.TemporaryDirectory(prefix="gateway-torture-") as folder:
        found = torture(Path(folder), rows, max(100, rows // (kills * 8)), points, options.seed)
    print("\n".join(found.lines()))
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
