"""F32: the previous release and this one on one database: migrated under load, and replaced process by process.

The previous release is the newest commit whose schema is older by one revision. It is taken from the repository's
history, so that this runs in a clone only, and in the full form only. Publishers follow readiness, as a load balancer
does; a request that is answered anything but 200 has failed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.deploy.kubelet import PodHttp
from tests.deploy.load import Load
from tests.faults.harness import GatewayProcess
from tests.servers.process import HOST, ROOT
from tests.traces import QUERY, impossible_traces

RATE: Final = 40.0
"""Requests a second of the publishers."""
PAUSE: Final = 3.0
"""Between two steps, in seconds."""
LOOKED_AT: Final = 40
"""Commits with an older schema, of which the newest that runs is taken."""
NOTICED: Final = 1.0
"""So many seconds before a process is told to end nobody is sent to it any more, as a hook before the end has it."""


def previous(folder: Path) -> str:
    """Unpack the newest commit with an older schema that can be run; its name. Some commits are steps on the way to
    the next and cannot.

    Raises:
        subprocess.CalledProcessError: there is no history here.
        FileNotFoundError: none of them can be run.
    """
    newest = sorted((ROOT / "migrations" / "versions").glob("[0-9]*.py"))[-1].relative_to(ROOT)
    added = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", str(newest))
    for commit in _git("rev-list", f"--max-count={LOOKED_AT}", f"{added}^" if added else "HEAD").split():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE) as archive:
            subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
        command = [sys.executable, "-c", "import gateway.app, gateway.commands.serve"]
        environ = {**os.environ, "PYTHONPATH": str(folder)}
        if not subprocess.run(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL).returncode:
            return commit
    raise FileNotFoundError(f"none of {LOOKED_AT} commits with an older schema can be run")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Replica(GatewayProcess):
    """A gateway of one of the two releases."""

    def __init__(self, folder: Path, tables: dict[str, Any], root: Path) -> None:
        folder.mkdir()
        self._root = root
        super().__init__(folder, tables)
        self._environ["PYTHONPATH"] = str(root)

    def _spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gateway", *arguments, "--config", str(self.config)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=self._root, env=self._environ, stdout=log, stderr=log)


class Pod:
    """A replica as clients see it: an address, and whether it is ready."""

    def __init__(self, name: str, process: Replica) -> None:
        self.name = name
        self.address = HOST
        self.process = process
        self.ready = False
        self.leaving = False

    def port(self, name: str) -> int:
        return self.process.port

    async def watch(self) -> None:
        """Ask it again and again."""
        while True:
            found = await asyncio.to_thread(self.process.get_ops, "/readyz")
            self.ready = not self.leaving and found is not None and found[0] == 200
            await asyncio.sleep(0.2)


class Fleet:
    """Two replicas, replaced one by one."""

    def __init__(self, folder: Path, tables: dict[str, Any]) -> None:
        self.folder = folder
        self.tables = tables
        self.pods: list[Pod] = []
        self.logs: list[Replica] = []
        self._watchers: dict[Pod, asyncio.Task[None]] = {}

    async def start(self, name: str, root: Path) -> Pod:
        """One more, ready."""
        folder = self.folder / name
        process = Replica(folder, {**self.tables, "data_dir": str(folder / "data")}, root)
        self.logs.append(process)
        await asyncio.to_thread(process.start)
        pod = Pod(name, process)
        self._watchers[pod] = asyncio.create_task(pod.watch())
        async with asyncio.timeout(60):
            while not pod.ready:
                await asyncio.sleep(0.05)
        self.pods.append(pod)
        return pod

    async def end(self, pod: Pod) -> float:
        """One less; how long it took, in seconds."""
        pod.leaving, pod.ready = True, False
        await asyncio.sleep(NOTICED)
        seconds = await asyncio.to_thread(pod.process.terminate, 60.0)
        self.pods.remove(pod)
        self._watchers.pop(pod).cancel()
        return seconds

    def close(self) -> None:
        """End all."""
        for watcher in self._watchers.values():
            watcher.cancel()
        for process in self.logs:
            process.close()


async def _play(context: Context) -> list[Figures]:
    rabbitmq, postgresql = context.server("rabbitmq"), context.server("postgresql")
    began = time.monotonic()
    key, run = secrets.token_hex(24), uuid4().hex[:8]
    pull, source, target = (f"{word}-{run}" for word in ("pull", "source", "target"))
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="gateway-upgrade-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        old = folder / "previous"
        commit = await asyncio.to_thread(previous, old)
        url = postgresql.create_database()
        stack.callback(postgresql.drop_database, url)
        tables: dict[str, Any] = {
            "ledger": {"url": url, "shard_lease": 3.0},
            "brokers": {"rabbit": {"url": rabbitmq.url("0-9-1")}},
            "subscriptions": {
                "pulled": {"broker": "rabbit", "queue": pull},
                "bridged": {"broker": "rabbit", "queue": target},
            },
            "bridges": {
                "over": {
                    "source": {"broker": "rabbit", "queue": source},
                    "target": {"broker": "rabbit", "routing_key": target},
                }
            },
        }
        fleet = Fleet(folder, tables)
        stack.callback(fleet.close)
        for name, root in (("migrate-old", old), ("migrate-new", ROOT)):
            process = Replica(folder / name, tables, root)
            fleet.logs.append(process)
        await asyncio.to_thread(fleet.logs[0].run, "migrate")
        first = [await fleet.start(f"old-{number}", old) for number in range(2)]
        client = PodHttp(HOST, first[0].process.port)
        for queue in (pull, source, target):
            answer = await client.request("PUT", f"/v1/brokers/rabbit/queues/{queue}", {"durable": True}, {})
            assert answer.status == 201, answer.body
        client.close()
        load = Load(lambda: fleet.pods, key, (pull, source), RATE)  # type: ignore[arg-type, return-value]
        load.begin("pulled")
        await asyncio.sleep(PAUSE)
        await asyncio.to_thread(fleet.logs[1].run, "migrate")  # the old ones go on, on a schema newer by one
        await asyncio.sleep(PAUSE)
        ends = []
        for number, pod in enumerate(first):
            await fleet.start(f"new-{number}", ROOT)
            await asyncio.sleep(PAUSE)  # both releases at once
            ends.append(await fleet.end(pod))
        await asyncio.sleep(PAUSE)
        await load.end()
        clients: dict[str, PodHttp] = {}
        while await load.take(clients, "pulled"):
            pass
        bridged: Counter[int] = Counter()
        end = time.monotonic() + 60
        while time.monotonic() < end and load.published[source] - bridged.keys():
            bridged.update(await load.take(clients, "bridged"))
        for each in clients.values():
            each.close()
        wanted = load.published[pull] | load.published[source]
        got = load.pulled.keys() | bridged.keys()
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            traces = impossible_traces(connection.execute(QUERY))
        logged = [line for process in fleet.logs for line in process.log().splitlines() if "Traceback" in line]
        figures = Figures(
            "two releases under load, RabbitMQ 0-9-1, PostgreSQL",
            len(wanted) + sum("publish" in failure for failure in load.failures),
            len(wanted),
            len(wanted - got),
            len(got - wanted),
            sum(times - 1 for counts in (load.pulled, bridged) for times in counts.values()),
            0,
            extra={
                "requests": load.requests,
                "failed_requests": len(load.failures),
                "unmarked": len(load.unmarked),
                "slowest_end_s": round(max(ends), 1),
                "previous": commit[:10],
            },
            seconds=round(time.monotonic() - began, 1),
        )
        figures.must(not load.failures, f"{len(load.failures)} requests failed: {load.failures[:2]}")
        figures.must(not load.unmarked, f"{len(load.unmarked)} messages came again without a mark")
        figures.problems += traces[:5]
        figures.must(not logged, f"{len(logged)} exceptions in the logs")
        for queue in (pull, source, target):
            rabbitmq.delete_queue(queue)
    return [figures]


def upgrade(context: Context) -> list[Figures]:
    """Two processes of the previous release, and two of this one after them."""
    os.environ.setdefault("GIT_OPTIONAL_LOCKS", "0")  # the repository is only read
    return asyncio.run(_play(context))
