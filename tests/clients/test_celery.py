"""Celery 5.5 with its defaults on RabbitMQ 4.3: its worker does not start there, and works through a front.

Its remote control uses queues that are neither durable nor exclusive, which RabbitMQ 4.3 refuses; and its worker sets a
prefetch for the whole channel.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import TOOLS
from tests.front.fronts import RunningFront
from tests.front.test_real_survival import cut
from tests.servers.process import HOST

pytestmark = pytest.mark.broker

HERE = Path(__file__).parent
PYTHON = TOOLS / "celery" / "bin" / "python"
"""Of the environment that Celery is installed in."""
WITHIN = 180.0
"""Seconds for one step of Celery's."""
TASKS = 20
CALL = f"""
from tasks import add, app
results = [add.delay(number, number) for number in range({TASKS})]
print([result.get(timeout={WITHIN}) for result in results])
print(list(app.control.inspect(timeout=10).ping().values()))
"""


def python(url: str, *arguments: str, **settings: Any) -> subprocess.Popen[str]:
    """Python with Celery's application, whose broker has that URL."""
    environ = {**os.environ, "BROKER_URL": url, "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen([PYTHON, *arguments], cwd=HERE, env=environ, text=True, **settings)


class Worker:
    """A worker of Celery's."""

    def __init__(self, url: str, log: Path) -> None:
        self._log = log
        with log.open("w", encoding="utf-8") as output:
            command = ["-m", "celery", "-A", "tasks", "worker", "--pool=solo", "--loglevel=INFO"]
            self._process = python(url, *command, stdout=output, stderr=output)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, words: str) -> None:
        """Wait until it says that."""
        deadline = time.monotonic() + WITHIN
        while words not in self.log:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a worker for a broker."""
    workers = []

    def begin(url: str) -> Worker:
        workers.append(Worker(url, tmp_path / "celery.log"))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()


def test_directly(rabbitmq43: Any, start: Any) -> None:
    worker = start(rabbitmq43.url("0-9-1").partition("?")[0])
    worker.wait_for("transient_nonexcl_queues")
    assert " ready." not in worker.log


def test_through_a_front(rabbitmq43: Any, start: Any) -> None:
    """The front loses its connection to the broker in between."""
    front = RunningFront(rabbitmq43.url("0-9-1"))
    url = f"amqp://guest:guest@{HOST}:{front.port}//"
    try:
        worker = start(url)
        worker.wait_for(" ready.")
        for _ in range(2):
            caller = python(url, "-c", CALL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            said, _ = caller.communicate(timeout=2 * WITHIN)
            assert said.splitlines()[-2:] == [str([2 * number for number in range(TASKS)]), "[{'ok': 'pong'}]"], said
            front.call(cut)
        assert "Connection to broker lost" not in worker.log
        assert front.call(lambda front: front.counts.of("rewrites"))["transient_queue"] > 0
        worker.end()
    finally:
        front.close()
