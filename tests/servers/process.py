"""A server of its own: started on free ports and a private folder, ended by process id.

What all three servers share. A :class:`Server` is described by its :class:`State`, plain data that can be written
to a file, so that another process can use (and end) a server that it did not start. Nothing is ever found by
name: processes are the ones that were started here and their descendants, each remembered with its start time so
that a number which was given to somebody else is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".servers"
"""Where ``install.sh`` puts what is no package of the system."""

MAIN_VARIABLE = "GATEWAY_TEST_MAIN_RABBITMQ"
"""Environment variable that says which kind ``rabbitmq`` is in the tests: ``rabbitmq-4.0`` unless it is set."""
USED: set[str] = set()
"""Kinds of servers whose port was asked for since this was emptied: whom a test talked to."""

_Self = TypeVar("_Self", bound="Server")


class ServerUnavailable(Exception):
    """A server cannot be had. The text is one sentence that says what to do about it."""


# ------------------------------------------------------------------------------------------------ ports

_BLOCK = 256
_ports: list[int] = []
"""Ports that this process alone may hand out, and has not handed out yet."""


def free_port() -> int:
    """A port that nobody listens on, that no outgoing connection and no other process of the tests will be given.

    The system's own choice (binding port 0) comes from the range it also takes client ports from. While a server
    is down for a restart such a port may be handed to a client, even to the very client that is trying to
    reconnect, which then talks to itself. So the choice is made below that range. A server listens only seconds
    after its port was chosen: until then nothing but the claim keeps it from the suite that runs beside this one.

    Raises:
        ServerUnavailable: no port is left.
    """
    while True:
        if not _ports:
            _claim_ports()
        port = _ports.pop()
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


def _claim_ports() -> None:
    """Take a block of ports that no process has taken which still runs.

    The claim is a socket with a name: the system gives a name to one process only, and frees it when that ends.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(10_240, low) if low > 11_000 else range(1_024, 65_536)
    for first in random.sample(ports[::_BLOCK], len(ports[::_BLOCK])):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0gateway-tests-ports-{first}")
        except OSError:
            claim.close()
            continue
        claim.detach()  # open until this process ends
        block = range(first, min(first + _BLOCK, ports.stop))
        _ports.extend(random.sample(block, len(block)))
        return
    raise ServerUnavailable("no free port was found on 127.0.0.1: end some of the programs that listen there.")


# -------------------------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class ProcessId:
    """A process and when it started, in ticks since boot: together never used twice."""

    pid: int
    started: int


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` from the state on, None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(") ")[2].split()


def identify(pid: int) -> ProcessId:
    """The process that has this number now."""
    stat = _stat(pid)
    if stat is None:
        raise ProcessLookupError(pid)
    return ProcessId(pid, int(stat[19]))


def alive(process: ProcessId) -> bool:
    """Whether it still runs (a zombie does not)."""
    stat = _stat(process.pid)
    return stat is not None and int(stat[19]) == process.started and stat[0] not in "ZX"


def tree(root: ProcessId) -> list[ProcessId]:
    """A process and its descendants, parents first."""
    children: dict[int, list[ProcessId]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            children.setdefault(int(stat[1]), []).append(ProcessId(int(entry), int(stat[19])))
    found = [root] if alive(root) else []
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def cpu_seconds(processes: Sequence[ProcessId]) -> float:
    """What they, and children of theirs that have ended, took of a processor so far."""
    stats = [stat for process in processes if alive(process) and (stat := _stat(process.pid)) is not None]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / os.sysconf("SC_CLK_TCK")


def send_signal(processes: Sequence[ProcessId], number: int) -> None:
    """Signal each that still runs."""
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def wait_until(condition: Callable[[], bool], seconds: float, interval: float = 0.05) -> bool:
    """Ask until it is true; False after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


def accepts(port: int) -> bool:
    """Whether somebody listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


# -------------------------------------------------------------------------------------------- leftovers

RECORD = "record.json"
"""In each server's folder: its state, who owns it, and which signal ends it."""


@cache
def end_leftovers() -> None:
    """End the servers of test runs that were killed, and remove their folders. A server is one's own if its record is;
    it is a leftover if its owner runs no more."""
    for record in Path(tempfile.gettempdir()).glob(f"gateway-*/{RECORD}"):
        try:
            if record.stat().st_uid != os.getuid():
                continue
            document = json.loads(record.read_text())
        except FileNotFoundError:  # another run was quicker
            continue
        if document["owner"] is None or alive(ProcessId(**document["owner"])):
            continue
        roots = State.from_json(document).processes.values()
        family = [process for root in roots for process in tree(root)]
        send_signal(family, signal.SIGCONT)
        send_signal(family, document["discard"])
        if not wait_until(lambda left=family: not any(alive(process) for process in left), 10.0):  # type: ignore[misc]
            send_signal(family, signal.SIGKILL)
        shutil.rmtree(record.parent, ignore_errors=True)


# ----------------------------------------------------------------------------------------------- server


@dataclass
class State:
    """All there is to know about a server, as plain data."""

    kind: str
    folder: str
    ports: dict[str, int] = field(default_factory=dict)
    processes: dict[str, ProcessId] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> State:
        """What :meth:`to_json` made."""
        processes = {name: ProcessId(**value) for name, value in document["processes"].items()}
        return cls(document["kind"], document["folder"], dict(document["ports"]), processes)


class Server:
    """A private instance of some server.

    ``start`` returns when it can be used. ``restart`` keeps ports and data. A server that was attached to
    belongs to others: it can be used, but neither ended nor paused.
    """

    kind: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    main: ClassVar[str] = "server"
    """Name of the process that serves, of those in the state."""
    discard: ClassVar[int] = signal.SIGKILL
    """The signal that ends it when its data may be lost."""
    start_timeout: ClassVar[float] = 90.0
    stop_timeout: ClassVar[float] = 30.0
    user: ClassVar[str] = "guest"
    password: ClassVar[str] = "guest"
    virtual_host: ClassVar[str] = "/"

    def __init__(self, state: State | None = None) -> None:
        self.owned = state is None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._owner: ProcessId | None = identify(os.getpid())
        if state is None:
            self.require()
            end_leftovers()
            folder = tempfile.mkdtemp(prefix=f"gateway-{self.kind}-")
            state = State(self.kind, folder, {name: free_port() for name in self.port_names})
            Path(folder).chmod(0o755)
        self.state = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}(port {self.port}, {'running' if self.running else 'not running'})"

    # What a kind of server says of itself ------------------------------------------------------------

    @classmethod
    def require(cls) -> None:
        """Raise ServerUnavailable where the server is not installed."""
        raise NotImplementedError

    @classmethod
    def elsewhere(cls) -> State | None:
        """The running server that the environment names for this kind; None where it names none."""
        return None

    def prepare(self) -> None:
        """Write the data folder, before the first start."""
        raise NotImplementedError

    def launch(self) -> None:
        """Start the processes, by :meth:`spawn`."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    # What a user of it calls -------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The private folder: data, configuration, logs."""
        return Path(self.state.folder)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        USED.add(self.kind)
        return self.state.ports[self.port_names[0]]

    @property
    def pid(self) -> int:
        """Process id of the server itself."""
        return self.state.processes[self.main].pid

    @property
    def running(self) -> bool:
        """Whether its process is there (paused or not)."""
        process = self.state.processes.get(self.main)
        return process is not None and alive(process)

    def url(self, version: str = "auto", virtual_host: str | None = None) -> str:
        """The broker's URL, ``amqp://user:password@127.0.0.1:port/vhost?version=…``."""
        host = self.virtual_host if virtual_host is None else virtual_host
        return f"amqp://{self.user}:{self.password}@{HOST}:{self.port}/{quote(host, safe='')}?version={version}"

    def start(self: _Self, wait: bool = True) -> _Self:
        """Start it and return it once it serves (``wait`` false: at once).

        Raises:
            ServerUnavailable: it does not come up; the text holds the end of its log.
        """
        self._must_be_owned()
        if not (self.folder / "prepared").exists():
            self.prepare()
            (self.folder / "prepared").touch()
        self.launch()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Return once it serves."""
        wait_until(lambda: self.ready() or not self.running, self.start_timeout, 0.1)
        if not self.running or not self.ready():
            log = self.log()[-2000:]
            self.kill()
            raise ServerUnavailable(
                f"{self.kind} did not come up within {self.start_timeout:.0f} s; its log ends:\n{log}"
            )

    def stop(self) -> None:
        """End all its processes and remove its folder."""
        self._must_be_owned()
        self._end(list(self.state.processes), self.discard)
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self) -> None:
        """End the server in good order, so that it can be started again."""
        self._must_be_owned()
        self._end([self.main], signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash would (SIGKILL)."""
        self._must_be_owned()
        self._end([self.main], signal.SIGKILL)

    def restart(self, wait: bool = True) -> None:
        """Start again on the same ports and data; ends it in good order first where it still runs."""
        if self.running:
            self.halt()
        self.start(wait)

    def pause(self) -> None:
        """Stall it: connections stay open, nothing is read or answered (SIGSTOP)."""
        self._must_be_owned()
        send_signal(tree(self.state.processes[self.main]), signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._must_be_owned()
        send_signal(tree(self.state.processes[self.main])[::-1], signal.SIGCONT)

    @property
    def cpu_seconds(self) -> float:
        """What its processes took of a processor so far, since they were started last."""
        return cpu_seconds([process for root in self.state.processes.values() for process in tree(root)])

    def log(self) -> str:
        """What it printed so far."""
        path = self.folder / f"{self.main}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    # For the kinds -----------------------------------------------------------------------------------

    def spawn(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        user: tuple[int, int] | None = None,
    ) -> None:
        """Start a process in a session of its own; its output goes to ``NAME.out`` in the folder. ``user`` is
        the user and group to run as."""
        with open(self.folder / f"{name}.out", "ab") as output:
            child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=dict(environment),
                start_new_session=True,
                user=user[0] if user else None,
                group=user[1] if user else None,
                extra_groups=[] if user else None,
            )
        self._children[name] = child
        self.state.processes[name] = identify(child.pid)
        self._record()

    def _record(self) -> None:
        """Write down what :func:`end_leftovers` needs, at once or not at all."""
        owner = asdict(self._owner) if self._owner else None
        document = self.state.to_json() | {"owner": owner, "discard": int(self.discard)}
        part = self.folder / f"{RECORD}.part"
        part.write_text(json.dumps(document))
        part.rename(self.folder / RECORD)

    def _must_be_owned(self) -> None:
        if not self.owned:
            raise RuntimeError(f"this {self.kind} is shared with other processes: take a private one")

    def _end(self, names: Sequence[str], number: int) -> None:
        """Signal the named processes; what is left of them and of their descendants is killed in the end."""
        everything: list[ProcessId] = []
        for name in names:
            if (root := self.state.processes.get(name)) is None:
                continue
            family = tree(root)
            everything += family
            send_signal(family, signal.SIGCONT)
            send_signal(family if number == signal.SIGKILL else family[:1], number)
        if number != signal.SIGKILL:
            self._wait_gone(everything, self.stop_timeout)
            send_signal(everything, signal.SIGKILL)
        if not self._wait_gone(everything, 10.0):
            raise RuntimeError(f"{self.kind}: a process outlived SIGKILL")
        for name in names:
            if (child := self._children.pop(name, None)) is not None:
                child.wait()

    def _wait_gone(self, processes: Sequence[ProcessId], seconds: float) -> bool:
        return wait_until(lambda: not any(alive(process) for process in processes), seconds)

    def disown(self, owner: ProcessId | None = None) -> State:
        """Leave it running when this process ends; the state lets another one end it. With an ``owner`` it is a
        leftover once that process has ended."""
        self._owner = owner
        self._record()
        for child in self._children.values():
            child.returncode = 0  # the garbage collector is not to warn that it still runs
        self._children.clear()
        self.owned = False
        return self.state

    def adopt(self: _Self) -> _Self:
        """Take over an attached server, to end it."""
        self.owned = True
        return self


@contextlib.contextmanager
def started(server: _Self) -> Iterator[_Self]:
    """The server, started; stopped at the end."""
    try:
        yield server.start()
    finally:
        server.stop()
