"""Ports: free, a running gateway's, or somebody else's.

A port is tried by binding it and not listening, under the same option that the gateway uses (SO_REUSEADDR): that
disturbs nobody who is about to start. The owner of a taken port is found by a request: a gateway answers on its
operations port and its API.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from gateway.commands.doctor.findings import Report
from gateway.config import Config
from gateway.outbound.hosts import WILDCARDS
from gateway.versions import FALLBACK_HEADER

WITHIN: Final = 2.0
"""How long who has a port may take to answer, in seconds."""
ANSWER_MAX: Final = 64 << 10
"""Most octets of an answer that are read."""
REASONS: Final = 5
"""Most reasons that are shown."""


@dataclass(frozen=True, slots=True)
class Port:
    """One that the gateway would listen on."""

    setting: str
    host: str
    port: int
    kind: str
    """``ops``, ``http``, ``https``, ``amqp`` or ``peers``."""

    @property
    def where(self) -> str:
        """As findings name it."""
        return f"{self.setting} {self.host}:{self.port}"

    def clashes(self, other: Port) -> bool:
        """Whether both cannot be had."""
        return self.port == other.port != 0 and (self.host == other.host or bool({self.host, other.host} & WILDCARDS))


def ports(config: Config) -> Iterator[Port]:
    """All that this configuration listens on."""
    yield Port("ops.port", config.ops.host, config.ops.port, "ops")
    if config.role != "worker":
        kind = "https" if config.http.tls.cert_file else "http"
        yield Port("http.port", config.http.host, config.http.port, kind)
    if config.embedded.enabled:
        yield Port("embedded.port", config.embedded.host, config.embedded.port, "amqp")
        if config.embedded.tls.cert_file:
            yield Port("embedded.tls.port", config.embedded.host, config.embedded.tls.port, "amqps")
    for name, front in config.fronts.items() if config.role != "worker" else ():
        yield Port(f"fronts.{name}.port", front.host, front.port, "amqps" if front.tls.cert_file else "amqp")
    if config.ledger.url.startswith("postgres"):
        yield Port("cluster.port", config.cluster.host, config.cluster.port, "peers")


def examine(report: Report, config: Config) -> None:
    """Each of them."""
    found = list(ports(config))
    for one, other in combinations(found, 2):
        if one.clashes(other):
            report.fail(
                "listen.port", other.where, f"{one.setting} and {other.setting} are the same port",
                do=f"Give {other.setting} another one.", status=2,
            )  # fmt: skip
    ours = False
    for port in found:
        ours = _examine(report, port, ours=ours) or ours


def _examine(report: Report, port: Port, *, ours: bool) -> bool:
    """Look at one; whether a running gateway has it. ``ours``: it has others of these already."""
    if not port.port:
        report.ok("listen.port", port.where, "any free port will do")
        return False
    error = _bind(port)
    if error is None:
        report.ok("listen.port", port.where, "it is free")
        return False
    if error.errno == errno.EADDRINUSE:
        return _taken(report, port, ours=ours)
    match error.errno:
        case errno.EACCES:
            do = "Use a port from 1024 on, or allow it to the service: AmbientCapabilities=CAP_NET_BIND_SERVICE."
        case errno.EADDRNOTAVAIL:
            do = "Set an address that this machine has; 0.0.0.0 stands for all of them."
        case _:
            do = "Correct host and port."
    report.fail("listen.port", port.where, f"it cannot be had: {error.strerror or error}", do=do)
    return False


def _bind(port: Port) -> OSError | None:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((port.host.strip("[]"), port.port))
        except OSError as error:
            return error
    return None


def _taken(report: Report, port: Port, *, ours: bool) -> bool:
    reasons, holder = _reasons(port), holder_of(port.port)
    holder = f": {holder}" if holder else ""
    if reasons is None and not (ours and port.kind in ("https", "amqp", "amqps", "peers") and _answers(port)):
        report.fail(
            "listen.port", port.where, f"another program has it{holder}",
            why="It does not answer as a gateway does.", do=f"End that program, or set {port.setting} to another port.",
        )  # fmt: skip
        return False
    if reasons:
        report.warn(
            "listen.port", port.where, "a gateway that runs has it, and is not ready: " + "; ".join(reasons),
            do="What stands below says why.",
        )  # fmt: skip
    else:
        report.ok(
            "listen.port", port.where, f"a gateway that runs has it{', ready' if port.kind == 'ops' else ''}{holder}"
        )
    return True


def _reasons(port: Port) -> list[str] | None:
    """Why the gateway that has the port is not ready, as far as it tells; None: it is no gateway."""
    match port.kind:
        case "ops":
            found = _ask(port, "/readyz")
            if isinstance(found, dict) and "reasons" in found:
                reasons = found["reasons"]
                return [str(each) for each in reasons[:REASONS]] if isinstance(reasons, list) else []
        case "http" | "https":
            found = _ask(port, "/v1/brokers")
            if isinstance(found, dict) and ("brokers" in found or ("code" in found and "type" in found)):
                return []
    return None


def near(host: str) -> str:
    """Where a port of that host is reached from here."""
    host = host.strip("[]")
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # what is looked for


def _ask(port: Port, path: str) -> Any:
    """What it answers, as JSON; None: nothing that is. Nothing secret is sent, so its certificate does not matter."""
    try:
        if port.kind == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                near(port.host), port.port, timeout=WITHIN, context=context
            )
        else:
            connection = http.client.HTTPConnection(near(port.host), port.port, timeout=WITHIN)
        with closing(connection):
            connection.request("GET", path, headers={"host": "localhost"})
            return json.loads(connection.getresponse().read(ANSWER_MAX))
    except (OSError, ValueError, http.client.HTTPException):
        return None


def _answers(port: Port) -> bool:
    """Whether somebody there takes a connection, and speaks AMQP where that is expected."""
    try:
        with socket.create_connection((near(port.host), port.port), WITHIN) as sock:
            if port.kind != "amqp":
                return True
            sock.sendall(FALLBACK_HEADER)
            return sock.recv(1) == b"\x01"  # a frame of the type METHOD: connection.start
    except OSError:
        return False


def holder_of(port: int) -> str:
    """Which process listens there, as ``NAME (pid N)``; empty: the system does not tell."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            if any(os.readlink(each) in inodes for each in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return ""
