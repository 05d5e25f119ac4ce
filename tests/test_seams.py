"""The check of the seams finds what it is for; the suite ``layers`` has the package pass it."""

from __future__ import annotations

import pytest

from tests.seams import check, findings

USES = {
    "import time\ntime.time()": "time.time",
    "import time as t\nx = t.monotonic": "time.monotonic",
    "from time import time_ns\ntime_ns()": "time.time_ns",
    "from time import perf_counter as p\np()": "time.perf_counter",
    "import time\ntime.gmtime()": "time.gmtime",
    "import time\ntime.strftime('%Y')": "time.strftime",
    "from datetime import datetime\ndatetime.now()": "datetime.datetime.now",
    "import datetime\ndatetime.datetime.utcnow()": "datetime.datetime.utcnow",
    "import asyncio\nasyncio.sleep(1)": "asyncio.sleep",
    "import asyncio\nasyncio.get_running_loop().time()": "loop.time",
    "clock = self._loop.time": "loop.time",
    "import random\nrandom.random()": "random.random",
    "from random import Random\nRandom()": "random.Random",
    "import secrets\nsecrets.token_hex(4)": "secrets.token_hex",
    "from uuid import uuid4\nuuid4()": "uuid.uuid4",
    "import os\nos.urandom(4)": "os.urandom",
    "import asyncio\nasyncio.to_thread(f)": "asyncio.to_thread",
    "loop.run_in_executor(None, f)": "run_in_executor",
    "from threading import Thread\nThread()": "threading.Thread",
    "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()": "concurrent.futures.ThreadPoolExecutor",
    "import multiprocessing.pool\nmultiprocessing.pool.Pool()": "multiprocessing.pool.Pool",
    "from gateway.runtime.clock import clock\ndef f(now=clock.now): ...": "gateway.runtime.clock.clock.now is kept",
}


@pytest.mark.parametrize(("source", "what"), USES.items())
def test_it_finds(source: str, what: str) -> None:
    assert what in {finding.what for finding in findings("gateway/x.py", source)}


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.gmtime(0)",
        "from datetime import datetime\ndatetime.fromtimestamp(0)\nx.time()",
        "from random import Random\ndef f(random: Random) -> None: random.random()",
        "from uuid import UUID\nUUID(int=0)",
        "import asyncio\nasyncio.timeout(1)\nloop.call_later(1, f)",
        "import threading\nthreading.Lock()\nthread: threading.Thread | None = None",
        "from gateway.runtime.clock import clock\nclock.now()\nf(lambda: clock.monotonic())",
        "def time(): ...\ntime()",
    ],
)
def test_it_admits(source: str) -> None:
    assert not list(findings("gateway/x.py", source))


def test_exceptions_are_used() -> None:
    sources = {"gateway/a.py": "import time\ntime.time()", "gateway/b.py": "", "gateway/runtime/c.py": "import random"}
    assert check(sources, {"gateway/a.py": {"time.time": "why"}}) == []
    assert len(check(sources, {})) == 1
    assert check(sources, {"gateway/a.py": {"time.time": "why", "time.sleep": "why"}}) == [
        "gateway/a.py: it does not use time.sleep: take that from EXCEPTIONS"
    ]
    assert check({}, {"gateway/a.py": {"time.time": "why"}}) == [
        "gateway/a.py: it does not exist: take it from EXCEPTIONS"
    ]
