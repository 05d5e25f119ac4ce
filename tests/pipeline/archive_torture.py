"""The archive under kill: driver and JVM are killed with SIGKILL, again and again, while messages arrive and another
process compacts; then every message is in the archive, once and in order of sequence.

    python -m tests.pipeline.archive_torture --full        200,000 messages, 20 kills
    python -m tests.pipeline.archive_torture --kind delta

Everything is real: a gateway with its ledger, the job as ``python -m gateway.pipeline run archive`` in a process group
of its own, a publisher, and a tap that spools what it publishes. Where a kill hits is left to chance, and the seed is
printed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final

import httpx

from gateway.pipeline.archive.parquet import ParquetTable
from gateway.pipeline.schema import MESSAGES
from tests.ledgers import sqlite_ledger
from tests.pipeline.service import serving, url_of

BROKER: Final = "local-0-9-1"
"""The embedded broker."""
CHUNK: Final = 500
"""Messages of one publish."""
PATIENCE: Final = float(os.environ.get("TORTURE_PATIENCE", "300"))
"""How long a job may take to say that it has committed something, in seconds: more on a machine that has other work."""
QUICK: Final = (6_000, 2)
FULL: Final = (200_000, 20)
"""Messages and kills."""
COMMITTED: Final = re.compile(r"commits \d+")


@dataclass(frozen=True, slots=True)
class Result:
    """What became of it."""

    messages: int
    kills: int
    killed_at_work: int
    """Kills after which something of an attempt lay about that no commit names."""
    compactions: int
    rows: int
    distinct: int
    in_order: bool
    gapless: bool
    """From 1 on in each shard."""
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every message once, in order."""
        return self.rows == self.distinct == self.messages and self.gapless and self.in_order and not self.problems


def arrive(url: str, messages: int, over: threading.Event) -> None:
    """Publish messages to the exchange that a tap is bound to."""
    with httpx.Client(timeout=60.0) as client:
        for begin in range(0, messages, CHUNK):
            if over.is_set():
                return
            some = [
                {"routing_key": "news", "payload": f"{number:0200}"}
                for number in range(begin, min(begin + CHUNK, messages))
            ]
            answer = client.post(f"{url}/v1/brokers/{BROKER}/exchanges/amq.topic:publish", json={"messages": some})
            assert answer.status_code == 207, answer.text
            assert {each["status"] for each in answer.json()["results"]} == {200}


def spooled(url: str, messages: int) -> None:
    """Wait until the tap has spooled them all."""
    until = time.monotonic() + PATIENCE
    while sum(httpx.get(f"{url}/v1/log/head?log=messages").json()["position"].values()) < messages:
        assert time.monotonic() < until, "the tap does not come to an end"
        time.sleep(0.2)


@contextmanager
def arriving(url: str, messages: int) -> Iterator[threading.Thread]:
    """Messages arrive in the background."""
    over = threading.Event()
    thread = threading.Thread(target=arrive, args=(url, messages, over))
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


class Job:
    """``gateway pipeline run …`` in a process group of its own."""

    def __init__(self, name: str, url: str, folder: Path, kind: str, *options: str) -> None:
        self._log: IO[bytes] = (folder / f"{name}.log").open("wb")
        self._path = folder / f"{name}.log"
        environ = {
            **os.environ,
            "GATEWAY_PIPELINE__ARCHIVE": kind,
            "GATEWAY_PIPELINE__SCRATCH": str(folder / "scratch"),
            "GATEWAY_PIPELINE__MEMORY": "1g",
        }
        command = [
            sys.executable, "-m", "gateway.pipeline", "run", name, "--url", url, "--storage", str(folder / "storage"),
            "--master", "local[2,4]", "--spark", "spark.sql.shuffle.partitions=2", *options,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, env=environ, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def commits(self) -> int:
        """How often it has said that it committed something."""
        return len(COMMITTED.findall(self._path.read_text(errors="replace")))

    def wait_for_commits(self, number: int) -> None:
        """Wait until it has committed so often."""
        until = time.monotonic() + PATIENCE
        while self.commits() < number:
            if self.process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{self._path.name}: {self.text()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the driver, the JVM and whatever they have started, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def finish(self) -> None:
        """Wait until it has done its work."""
        status = self.process.wait(PATIENCE)
        self._log.close()
        assert status == 0, self.text()

    def text(self) -> str:
        """The end of what it said."""
        return self._path.read_text(errors="replace")[-3_000:]


def torture(folder: Path, messages: int, kills: int, kind: str, seed: int, *, beside: bool) -> Result:
    """Do it. ``beside``: with a compaction of Spark's own running beside, killed now and then as well."""
    chance = random.Random(seed)
    ledger = sqlite_ledger(folder / "ledger.db")
    at_work = compactions = 0
    today = datetime.now(UTC).date().isoformat()
    archive = folder / "storage" / "archive" / MESSAGES
    compacting: Job | None = None
    (folder / "gateway").mkdir()
    taps = {"arrivals": {"broker": BROKER, "exchange": "amq.topic", "binding_key": "#"}}
    with serving(ledger, folder / "gateway", taps=taps) as gateway, arriving(url_of(gateway), messages) as arrivals:
        url = url_of(gateway)
        for number in range(kills):
            job = Job("archive", url, folder, kind, "--continuous", "--every", "0.1", "--rows", str(messages // 60))
            job.wait_for_commits(chance.randint(1, 3))
            time.sleep(chance.random())
            job.kill()
            at_work += any((archive / "_attempts").glob("*.lock"))
            print(f"kill {number + 1} of {kills}", file=sys.stderr, flush=True)
            if beside and (compacting is None or compacting.process.poll() is not None):
                compactions += compacting is not None
                compacting = Job("compact", url, folder, kind, "--day", today, "--keep-hours", "0.01")
            elif compacting is not None and chance.random() < 0.2:
                compacting.kill()
        arrivals.join()
        spooled(url, messages)
        Job("archive", url, folder, kind).finish()
        if compacting is not None:
            if compacting.process.poll() is None:
                compacting.finish()
            Job("compact", url, folder, kind, "--day", today, "--keep-hours", "0").finish()
            compactions += 1
    return examined(archive, messages, kills, at_work, compactions, kind)


def examined(archive: Path, messages: int, kills: int, at_work: int, compactions: int, kind: str) -> Result:
    """What the archive holds, read without Spark."""
    import pyarrow.dataset as ds

    if kind == "delta":
        import json

        added: dict[str, None] = {}
        for commit in sorted((archive / "_delta_log").glob("*.json")):
            for line in commit.read_text().splitlines():
                action = json.loads(line)
                if "add" in action:
                    added[action["add"]["path"]] = None
                if "remove" in action:
                    added.pop(action["remove"]["path"], None)
        paths, problems = [archive / path for path in added], ()
    else:
        table = ParquetTable.opened(None, archive, create=False)
        paths = [archive / file.path for file in table.files()]
        problems = table.check(deep=True).problems
    numbers: list[tuple[int, int]] = []
    in_order = True
    for path in paths:
        found = ds.dataset(path).to_table(["shard", "sequence"]).to_pydict()
        own = list(zip(found["shard"], found["sequence"], strict=True))
        in_order &= own == sorted(own)
        numbers += own
    last = dict(sorted(numbers))
    gapless = min(number for _, number in numbers) >= 1 and sum(last.values()) == len(set(numbers))
    return Result(messages, kills, at_work, compactions, len(numbers), len(set(numbers)), in_order, gapless, problems)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="200,000 messages and 20 kills")
    parser.add_argument("--messages", type=int)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--kind", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args()
    messages, kills = FULL if given.full else QUICK
    print(f"seed {given.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gateway-torture-") as folder:
        result = torture(
            Path(folder), given.messages or messages, given.kills or kills, given.kind, given.seed, beside=True
        )
    print(result)
    raise SystemExit(not result.ok)


if __name__ == "__main__":
    main()
