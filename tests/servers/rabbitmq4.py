"""Private RabbitMQ 4.0 and 4.3, with management and shovel and upstream's defaults.

``tests/servers/install.sh`` unpacks them from Debian's packages below ``.servers/``. They need no root and no chroot:
each program of Erlang is started by the loader of the unpacked C library, through a script of two lines. One unpacked
folder serves any number of instances.

A variable of the environment can name something else, see :attr:`RabbitMQ4.variable`:

* a folder: another unpacked root, as ``tests/servers/unpack.sh`` makes it;
* ``HOST:PORT`` or ``HOST:PORT,MANAGEMENT``: a server that runs on this machine already, guest/guest, with its
  management plugin at port MANAGEMENT (PORT + 10000 unless given). The tests use it as it is. They cannot start a
  private one then, and cannot call ``rabbitmqctl``: tests that do so fail and say so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import ClassVar

from tests.servers.process import INSTALLED, ServerUnavailable, State, accepts
from tests.servers.rabbitmq import RabbitMQ, RabbitMQWithTls

_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):(\d{1,5})(?:,(\d{1,5}))?")
_LOADED = ("beam.smp", "erl_child_setup", "inet_gethost", "erlexec")
"""What Erlang itself executes."""
_CALLED = ("epmd", "escript")
"""What is executed from the search path, beside ``erl``."""


class RabbitMQ4(RabbitMQ):
    """One of the 4.x line: version 0-9-1 only. Debian's build permits transient queues that are not exclusive;
    upstream's denies them, and so does this one."""

    versions = ("0-9-1",)
    line: ClassVar[str]
    """The line of releases: ``4.0``. What the server states counts, see :attr:`release`."""
    variable: ClassVar[str]
    """The variable of the environment that names a folder or an address."""
    more_configuration = "deprecated_features.permit.transient_nonexcl_queues = false\n"

    @classmethod
    def root(cls) -> Path:
        """The folder that holds the unpacked packages.

        Raises:
            ServerUnavailable: there is none.
        """
        named = os.environ.get(cls.variable)
        if named and _ADDRESS.fullmatch(named):
            raise ServerUnavailable(
                f"{cls.variable} names a running server ({named}), and this test needs a private RabbitMQ {cls.line}: "
                f"set it to an unpacked folder, or unset it and run tests/servers/install.sh."
            )
        root = Path(named).absolute() if named else INSTALLED / f"rabbitmq-{cls.line}"
        if not list(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")):
            raise ServerUnavailable(
                f"{root} has no unpacked RabbitMQ: run tests/servers/install.sh, or let {cls.variable} name a folder "
                f"or the address of a running one (127.0.0.1:5672)."
            )
        return root

    @classmethod
    def require(cls) -> None:
        cls.root()

    @classmethod
    def elsewhere(cls) -> State | None:
        """The running server that the environment names; None where it names none.

        Raises:
            ServerUnavailable: nobody listens there.
        """
        address = _ADDRESS.fullmatch(os.environ.get(cls.variable, ""))
        if address is None:
            return None
        port = int(address[1])
        if port > 65535 or not accepts(port):
            raise ServerUnavailable(
                f"{cls.variable} is {address[0]}, and nothing listens there: start RabbitMQ {cls.line} at that "
                f"address, or unset the variable and run tests/servers/install.sh."
            )
        return State(cls.kind, os.devnull, {"amqp": port, "management": int(address[2] or port + 10_000)})

    @property
    def scripts(self) -> Path:
        (release,) = self.root().glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")
        return release / "sbin"

    @property
    def environment(self) -> dict[str, str]:
        told = super().environment
        # memsup is a program of its own that Erlang would start without the loader. RabbitMQ asks the kernel instead.
        erl = told["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] + " -os_mon start_memsup false"
        path = f"{self.folder / 'bin'}:{told['PATH']}"
        return told | {"PATH": path, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erl}

    def prepare(self) -> None:
        super().prepare()
        root = self.root()
        (loader,) = root.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")
        (programs,) = root.glob("usr/lib/erlang/erts-*/bin")
        folders = {"bin": _CALLED, "erts": _LOADED}
        for folder, names in folders.items():
            (self.folder / folder).mkdir()
            for name in names:
                start = f'exec {loader} --library-path {loader.parent} --argv0 "$0" {programs / name} "$@"'
                self._script(f"{folder}/{name}", start)
        erlang = {"EMU": "beam", "ROOTDIR": root / "usr/lib/erlang", "BINDIR": self.folder / "erts", "PROGNAME": "erl"}
        exported = " ".join(f"{name}={value}" for name, value in erlang.items())
        self._script("bin/erl", f'export {exported}\nexec "$BINDIR/erlexec" "$@"')

    def _script(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def ctl(self, *arguments: str) -> str:
        if not self.state.processes:
            raise ServerUnavailable(
                f"{self.variable} names a running server, and this test needs its rabbitmqctl: set the variable to an "
                f"unpacked folder, or unset it and run tests/servers/install.sh."
            )
        return super().ctl(*arguments)


class RabbitMQ40(RabbitMQ4):
    """4.0, of Debian 13. Its version does not move."""

    kind = "rabbitmq-4.0"
    line = "4.0"
    variable = "GATEWAY_TEST_RABBITMQ_40"


class RabbitMQ43(RabbitMQ4):
    """4.3 or later, of Debian's unstable release. Its version moves: tests go by what the server states."""

    kind = "rabbitmq-4.3"
    line = "4.3"
    variable = "GATEWAY_TEST_RABBITMQ_43"


class RabbitMQ40WithTls(RabbitMQWithTls, RabbitMQ40):
    """4.0 with TLS."""

    kind = "rabbitmq-4.0-tls"


class RabbitMQ43WithTls(RabbitMQWithTls, RabbitMQ43):
    """4.3 with TLS."""

    kind = "rabbitmq-4.3-tls"
