"""Gateways that start in a moment: forked off a process that has imported everything before.

To import the gateway and its libraries costs two seconds of a processor, and a run with fifty kills would spend nearly
all of its time with that. A gateway from here is a process like any other, with its own memory, files and connections;
it is started with the same command line and the same configuration file, and dies of the same signals.

``python -m tests.faults.nursery`` is what they are forked off. It reads requests from its standard input, one
line of JSON each, and answers on its standard output: ``{"start": ...}`` with ``{"pid": ...}``, ``{"poll": pid}`` with
``{"status": ...}``, as :meth:`subprocess.Popen.poll` would say.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.servers.process import ROOT

_PRELOADED: Final = (
    "gateway.app",
    "gateway.commands.serve",
    "alembic.command",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql",
    "uvloop",
)
_LOOK: Final = 0.005
"""How often it is asked for the end of a process that is waited for, in seconds."""


class Nursery:
    """The process that gateways are forked off. It ends with this one."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._asking = threading.Lock()

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, and its answer; of several threads one after the other."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it, and what it has forked."""
        self._process.communicate()


_nursery: list[Nursery] = []


def nursery() -> Nursery:
    """The one of this process."""
    if not _nursery:
        _nursery.append(Nursery())
        atexit.register(_nursery[0].close)
    return _nursery[0]


class Forked:
    """A process that was forked there, as far as :class:`subprocess.Popen` is used here."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environ: Mapping[str, str], log: Path, module: str = ""
    ) -> None:
        """
        Args:
            arguments: of the command ``gateway``, or of the module.
            log: what it prints is written to the end of this file.
            module: the program in place of the gateway's own.
        """
        start = {"arguments": [*arguments], "folder": str(folder), "environ": {**environ}, "log": str(log)}
        start["module"] = module
        self.pid: int = nursery().ask(start=start)["pid"]
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None: it runs."""
        if self._status is None:
            self._status = nursery().ask(poll=self.pid)["status"]
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        deadline = time.monotonic() + (timeout if timeout is not None else 1e9)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("gateway", timeout or 0.0)
            time.sleep(_LOOK)
        return status

    def send_signal(self, number: int) -> None:
        """Any signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


# ------------------------------------------------------------------------------- in the process of the nursery


def _start(arguments: list[str], folder: str, environ: dict[str, str], log: str, module: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        from gateway.commands import main as serve

        os.setsid()
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(folder)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(descriptor, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if module:
            sys.argv[1:] = arguments
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            serve(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    else:
        status = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _main() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its input does
    ended: dict[int, int] = {}
    pids: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = _start(**request["start"])
            pids.add(pid)
            print(json.dumps({"pid": pid}), flush=True)
            continue
        pid = request["poll"]
        if pid in pids:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                pids.discard(pid)
                ended[pid] = os.waitstatus_to_exitcode(status)
        print(json.dumps({"status": ended.get(pid)}), flush=True)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _main()
