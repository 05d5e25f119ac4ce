"""A private PostgreSQL, for the ledger.

It refuses to run as root, so root runs it as ``postgres`` or, where there is no such user, as ``nobody``.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path
from shutil import which
from urllib.parse import quote
from uuid import uuid4

import psycopg

from tests.canary import CANARY
from tests.servers.process import HOST, Server, ServerUnavailable

_USER = "gateway"


class PostgreSQL(Server):
    """User ``gateway``, any password, a fresh database for whoever asks."""

    kind = "postgresql"
    port_names = ("sql",)
    discard = signal.SIGINT  # killed, it would leave a segment of shared memory behind
    durable = False
    """Whether a commit waits for the disk. What is committed survives :meth:`kill` either way; only a loss of
    power tells the two apart, and for tests the other one is quicker. Set it before the start."""

    @classmethod
    def require(cls) -> None:
        if _bin() is None:
            raise ServerUnavailable(
                "PostgreSQL is not installed: run tests/servers/install.sh, or `apt-get install postgresql`."
            )

    @property
    def _run_as(self) -> tuple[int, int] | None:
        if os.geteuid() != 0:
            return None
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        return entry.pw_uid, entry.pw_gid

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            "PGUSER": _USER,
        }

    def prepare(self) -> None:
        run_as = self._run_as
        if run_as is not None:
            os.chown(self.folder, *run_as)
        initdb: list[str | Path] = [
            _command("initdb"),
            "-D",
            self.folder / "data",
            "-U",
            _USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        done = subprocess.run(
            [*initdb, "--locale=C.UTF-8"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environment,
            user=run_as[0] if run_as else None,
            group=run_as[1] if run_as else None,
            extra_groups=[] if run_as else None,
        )
        if done.returncode:
            raise ServerUnavailable(f"PostgreSQL could not make its data folder: {done.stdout[-1000:]}")

    def launch(self) -> None:
        commit = "on" if self.durable else "off"
        settings = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": commit,
            "full_page_writes": commit,
            "max_connections": "200",
            "shared_buffers": "64MB",
        }
        command: list[str | Path] = [_command("postgres"), "-D", self.folder / "data"]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self.spawn("server", command, self._environment, self._run_as)

    def ready(self) -> bool:
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def halt(self) -> None:
        """Fast shutdown: clients are disconnected, nothing committed is lost."""
        self._must_be_owned()
        self._end([self.main], signal.SIGINT)

    # For the tests -----------------------------------------------------------------------------------

    def url(self, version: str = "auto", virtual_host: str | None = None) -> str:
        """SQLAlchemy URL of the database ``virtual_host`` (default: ``postgres``)."""
        return f"postgresql+psycopg://{_USER}:{quote(CANARY, safe='')}@{HOST}:{self.port}/{virtual_host or 'postgres'}"

    def create_database(self) -> str:
        """A fresh, empty database (about 100 ms). Returns its SQLAlchemy URL."""
        name = f"t{uuid4().hex}"
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(virtual_host=name)

    def drop_database(self, url: str) -> None:
        """Drop a database that :meth:`create_database` made, its connections included."""
        self.execute(f'DROP DATABASE IF EXISTS "{url.rpartition("/")[2]}" WITH (FORCE)')

    def execute(self, statement: str) -> None:
        """One statement, committed, in the database ``postgres``."""
        with psycopg.connect(host=HOST, port=self.port, user=_USER, dbname="postgres", autocommit=True) as connection:
            connection.execute(statement.encode())


def _bin() -> Path | None:
    """The newest installed server's folder of programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    if found:
        return found[-1].parent
    path = which("postgres")
    return Path(path).parent if path else None


def _command(name: str) -> Path:
    folder = _bin()
    assert folder is not None
    return folder / name
