"""The guides for upgrades and rotations: each of their blocks runs, in order, with real servers, and has its effect."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.commands import REFUSED
from gateway.commands.demo import wait_for_ports
from gateway.ledger.db import schema
from gateway.ledger.db.engine import Database
from tests.ledger.test_migrations import REVISIONS
from tests.servers import PostgreSQL, RabbitMQ
from tests.servers.process import free_port, wait_until
from tests.test_doc_examples import blocks

_UP = re.compile(r'"event": "broker.state", "broker": "orders", "state": "up"')
ADMIN = "an-admins-key-of-the-guides-0123456789"


class Receiver(HTTPServer):
    """Takes pushes, and keeps the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ReceiverHandler)
        self.headers: dict[str, str] = {}
        self.body = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def verify(self, key: str) -> None:
        """Raises WebhookVerificationError where the last push has no signature of the key."""
        Webhook(key).verify(self.body, self.headers)


class _ReceiverHandler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Guide:
    """The blocks of a page, and a folder with a configuration in which they run."""

    def __init__(self, page: str, folder: Path, settings: str) -> None:
        self.folder, self.port = folder, free_port()
        self.left = [text.strip().splitlines() for language, text in blocks(page) if not language]
        (folder / "admin.key").write_text(ADMIN)
        (folder / "gateway.toml").write_text(
            f'data_dir = "data"\n{settings}\n[http]\nport = {self.port}\n[ops]\nport = {free_port()}\n'
            '[[api_keys]]\nname = "ops"\nkey_file = "admin.key"\nscopes = ["admin"]\n'
        )
        self.environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": os.fspath(folder),
            "GATEWAY_URL": self.url,
            "GATEWAY_API_KEY": ADMIN,
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def block(self, *expected: str) -> list[str]:
        """Run the next block, whose commands begin as expected; return what each of them prints."""
        lines = self.left.pop(0)
        assert [line[: len(begin)] for line, begin in zip(lines, expected, strict=True)] == list(expected)
        return [self.run(line) for line in lines]

    def run(self, command: str, status: int = 0, answer: str = "", **environ: str) -> str:
        """Run a command as a shell does, and answer what it asks; return what it prints on stdout, and with another
        status on stderr."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env={**self.environ, **environ}, capture_output=True, text=True,
            check=False, timeout=90, input=answer,
        )  # fmt: skip
        assert done.returncode == status, (command, done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    @contextmanager
    def gateway(self) -> Iterator[None]:
        """A process that serves the configuration; it must end with 0."""
        ports = self.folder / "ports.json"
        ports.unlink(missing_ok=True)
        command = [sys.executable, "-m", "gateway", "serve", "--config", "gateway.toml", "--ports-file", str(ports)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=log, stderr=log)
        try:
            wait_for_ports(process, ports)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, (self.folder / "log").read_text()
        finally:
            process.kill()
            process.wait()

    def opens(self, key: str) -> bool:
        """Whether a key opens the gateway's history."""
        status = httpx.get(f"{self.url}/v1/messages", headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        assert status.status_code in (200, 401)
        return status.status_code == 200

    def logs_in_again(self, rabbitmq: RabbitMQ, user: str) -> None:
        """Close all connections of the user; the gateway must open new ones, within 30 s."""
        log = self.folder / "log"
        before = len(_UP.findall(log.read_text()))
        rabbitmq.api("DELETE", f"connections/username/{user}")
        assert wait_until(lambda: len(_UP.findall(log.read_text())) > before, 30), log.read_text()

    def change(self, old: str, new: str) -> None:
        """Put another text into the settings file."""
        path = self.folder / "gateway.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_rotate(tmp_path: Path, rabbitmq: RabbitMQ, unique_name: Callable[[str], str], receiver: Receiver) -> None:
    user = unique_name("user")
    rabbitmq.create_user(user, "first")
    (tmp_path / "password").write_text("first")
    address = rabbitmq.url("0-9-1").rpartition("@")[2]
    guide = Guide(
        "docs/how-to/rotate.md",
        tmp_path,
        '[ledger]\nsecrets_file = "secrets.key"\n[outbound]\nallow = ["127.0.0.1/32"]\n'
        f'[brokers.orders]\nurl = "amqp://{user}@{address}"\npassword_file = "password"\nrequired = true\n',
    )
    guide.run("gateway secrets new secrets.key")
    try:
        with guide.gateway():
            _api_keys(guide)
            signing = _signing_keys(guide, receiver)
            guide.block("gateway secrets new", "cat new.key >>")
        _sealing_keys(guide, receiver, signing)
        with guide.gateway():
            _password(guide, rabbitmq, user)
    finally:
        rabbitmq.delete_user(user)
    assert guide.left == []


def _api_keys(guide: Guide) -> None:
    made = json.loads(guide.run("gateway keys create till --scope history --json"))
    rotate, listing, revoke = guide.left.pop(0)
    new = guide.run(_of(rotate, "gateway keys rotate", made["id"])).strip()
    assert guide.opens(made["key"])
    assert guide.opens(new)
    assert listing == "gateway keys list"
    assert guide.run(listing).count("till") == 2
    guide.run(_of(revoke, "gateway keys revoke", made["id"]), answer="y")
    assert not guide.opens(made["key"])
    assert guide.opens(new)

    # Of the settings file: the second one is added, the first one is taken out.
    (command,) = guide.left.pop(0)
    second = "another-key-of-the-guides-0123456789"
    digest = guide.run(command, KEY=second).split()[0]
    guide.change("[[api_keys]]", f'[[api_keys]]\nname = "ops-2"\nsha256 = "{digest}"\nscopes = ["admin"]\n[[api_keys]]')
    guide.run("gateway reload")
    assert guide.opens(ADMIN)
    assert guide.opens(second)
    guide.change('[[api_keys]]\nname = "ops"\nkey_file = "admin.key"\nscopes = ["admin"]\n', "")
    guide.run("gateway reload")
    assert not guide.opens(ADMIN)
    assert guide.opens(second)
    guide.environ["GATEWAY_API_KEY"] = second


def _of(command: str, begin: str, key: str) -> str:
    """A command of the page, for a key of this run."""
    assert command.startswith(begin)
    changed, count = re.subn(r"\b[0-9a-f]{16}\b", key, command)
    assert count == 1
    return changed


def _signing_keys(guide: Guide, receiver: Receiver) -> str:
    settings = {"url": receiver.url, "signing": ["v1", "v1a"]}
    (guide.folder / "orders.json").write_text(json.dumps(settings))
    first = json.loads(guide.run("gateway endpoints put orders orders.json --json"))
    (old,) = (key["secret"] for key in first["signing_keys"] if key["scheme"] == "v1")
    rotated, shown = guide.block("gateway endpoints rotate orders", "gateway endpoints show orders")
    (new,) = re.findall(r"whsec_\S+", rotated)
    assert new != old
    assert len(set(re.findall(r"whpk_\S+", shown))) == 2, "the old one and the new one"
    guide.run("gateway endpoints test orders")
    receiver.verify(old)
    receiver.verify(new)
    guide.run("gateway endpoints rotate orders --finish")
    guide.run("gateway endpoints test orders")
    receiver.verify(new)
    with pytest.raises(WebhookVerificationError):
        receiver.verify(old)
    return new


def _sealing_keys(guide: Guide, receiver: Receiver, signing: str) -> None:
    file = guide.folder / "secrets.key"
    old, new = file.read_text().splitlines()
    for lines in ([old, new], [new, old]):
        file.write_text("\n".join([*lines, ""]))
        with guide.gateway():
            guide.run("gateway endpoints test orders")
            receiver.verify(signing)
    _, listed = guide.block("gateway secrets rotate", "gateway secrets list")
    head, *rows = (line.split() for line in listed.splitlines())
    assert head[:2] == ["KEY", "SECRETS"]
    assert [row[-2:] for row in rows] == [["yes", "yes"], ["yes", "-"]]
    assert int(rows[0][1]) > 0
    assert rows[1][1] == "0", "the old key seals nothing"
    file.write_text(f"{new}\n")  # it is kept for its rows of the audit log; no secret needs it
    with guide.gateway():
        guide.run("gateway endpoints test orders")
        receiver.verify(signing)
    file.write_text(f"{new}\n{old}\n")


def _password(guide: Guide, rabbitmq: RabbitMQ, user: str) -> None:
    rabbitmq.create_user(user, "second")
    (guide.folder / "password").write_text("second")
    guide.logs_in_again(rabbitmq, user)
    (said,) = guide.block("gateway brokers orders")
    assert re.search(r"\bup\b", said)

    # Of the settings file: one that the broker refuses changes nothing.
    guide.change('password_file = "password"', 'password = "third"')
    refused = guide.run("gateway reload", status=REFUSED)
    assert "orders" in refused
    guide.logs_in_again(rabbitmq, user)
    rabbitmq.create_user(user, "third")
    guide.block("gateway reload --dry-run", "gateway reload")
    guide.logs_in_again(rabbitmq, user)


@pytest.mark.broker
def test_upgrade(tmp_path: Path, postgresql: PostgreSQL) -> None:
    """From the tables of the release before; tests/chaos/upgrade.py runs that release, too."""
    url = postgresql.create_database()
    schema.migrate(Database(url), REVISIONS[-2])
    guide = Guide(
        "docs/how-to/upgrade.md",
        tmp_path,
        f'[ledger]\nurl = "{url}"\nsecrets_file = "secrets.key"\n[embedded]\nenabled = true\nport = 0\n',
    )
    guide.run("gateway secrets new secrets.key")
    (line,) = guide.left.pop(0)
    assert line == "gateway doctor --config gateway.toml"
    done = subprocess.run(line.split(), cwd=tmp_path, env=guide.environ, capture_output=True, text=True, timeout=90)
    assert f"its tables are of revision {REVISIONS[-2]}, this release needs {REVISIONS[-1]}" in done.stdout
    guide.block("gateway migrate")
    with guide.gateway():
        _, doctor, audit = guide.block("gateway brokers", "gateway doctor", "gateway audit verify")
        assert f"revision {REVISIONS[-1]}" in doctor
        assert audit
    assert guide.left == []
