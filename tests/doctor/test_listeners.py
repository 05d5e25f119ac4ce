"""Ports: free, ours, or somebody else's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from gateway.commands.doctor.listeners import Port, holder_of
from gateway.exits import REFUSED, USAGE
from tests.doctor.conftest import Look
from tests.servers.process import free_port


def config(http: int, ops: int, more: str = "") -> str:
    return f"[http]\nport = {http}\n[ops]\nport = {ops}\n{more}"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens, and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


def test_ports_that_are_free(look: Look) -> None:
    found = look(config(free_port(), 0), "listeners")
    assert [finding.what for finding in found.report.findings] == ["any free port will do", "it is free"]


def test_a_port_that_another_program_has(look: Look, taken: int) -> None:
    found = look(config(taken, 0), "listeners")
    finding = found.one("listen.port") if len(found.report.findings) == 1 else found.report.findings[-1]
    assert finding.what.startswith("another program has it")
    assert f"(pid {os.getpid()})" in finding.what
    assert found.exit == REFUSED


def test_who_has_a_port(taken: int) -> None:
    assert holder_of(taken).endswith(f"(pid {os.getpid()})")
    assert holder_of(free_port()) == ""


def test_binding_disturbs_nobody(look: Look) -> None:
    """Who is about to listen, with SO_REUSEADDR as the gateway does, finds the port free."""
    port = free_port()
    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        assert look(config(port, 0), "listeners").failed == []
        sock.listen()


def test_an_address_that_this_machine_has_not(look: Look) -> None:
    found = look(config(8080, 0, '[embedded]\nenabled = true\nhost = "192.0.2.7"\nport = 5670'), "listeners")
    finding = found.report.findings[-1]
    assert finding.what.startswith("it cannot be had: ")
    assert finding.do == "Set an address that this machine has; 0.0.0.0 stands for all of them."
    assert found.failed == ["listen.port"]


def test_one_port_for_two(look: Look) -> None:
    port = free_port()
    found = look(config(port, port), "listeners")
    assert found.report.findings[0].what == "ops.port and http.port are the same port"
    assert found.exit == USAGE


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (("127.0.0.1", 80), ("127.0.0.1", 80), True),
        (("0.0.0.0", 80), ("127.0.0.1", 80), True),
        (("127.0.0.1", 80), ("127.0.0.2", 80), False),
        (("127.0.0.1", 80), ("127.0.0.1", 81), False),
        (("127.0.0.1", 0), ("127.0.0.1", 0), False),
    ],
)
def test_clashes(one: tuple[str, int], other: tuple[str, int], clash: bool) -> None:
    assert Port("a", *one, "ops").clashes(Port("b", *other, "ops")) is clash
