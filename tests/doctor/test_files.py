"""What lies on the disk."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from gateway.commands.doctor import files
from gateway.config import load
from gateway.exits import FULL, REFUSED, USAGE
from tests.doctor.conftest import Look


def test_a_data_folder_is_not_made(look: Look, tmp_path: Path) -> None:
    found = look("", "files")
    assert found.failed == []
    assert found.one("files.data_dir").what == "it is not there yet, and can be made"
    assert not (tmp_path / "data").exists()


def test_a_data_folder_that_is_a_file(look: Look, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    found = look("", "files")
    assert found.one("files.data_dir").what.endswith("data is no folder")
    assert found.exit == REFUSED


def test_a_data_folder_that_others_may_look_into(look: Look, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    found = look("", "files")
    assert "mode 0755" in found.one("files.data_dir").what
    assert found.failed == []


def unprivileged() -> list[str]:
    """What makes root obey the rights of files, as everybody else does."""
    if os.geteuid() != 0:
        return []
    assert shutil.which("setpriv"), "util-linux is needed"
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_cannot_be_written(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o500)
    path = tmp_path / "gateway.toml"
    path.write_text(f'data_dir = "{folder if there else folder / "deeper"}"\n')
    arguments = ["-m", "gateway", "doctor", "--config", str(path), "--only", "files", "--only", "ledger", "--json"]
    done = subprocess.run([*unprivileged(), sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    found = {each["check"]: each for each in json.loads(done.stdout)["findings"] if each["severity"] == "fail"}
    assert done.returncode == REFUSED, done.stderr
    assert sorted(found) == ["files.data_dir", "ledger.write"]
    assert ("cannot be written" if there else "cannot be made") in found["files.data_dir"]["what"]
    assert "chown" in found["files.data_dir"]["do"]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free", "status"), [(1 << 20, FULL), (100 << 20, FULL), (300 << 20, 0)])
def test_a_disk_that_is_full(look: Look, monkeypatch: pytest.MonkeyPatch, free: int, status: int) -> None:
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: Usage(1 << 40, 1 << 40, free))
    found = look("", "files")
    assert found.one("files.space").what == f"{free >> 20} MiB free"
    assert found.exit == status


@pytest.mark.parametrize(
    ("octets", "what"),
    [
        (None, "No such file"),
        (b"not base64", "it is not keys in base64"),
        (b"c2hvcnQ=", "1 to 16 are needed, each of 32 octets"),
        (b"\xff", "it is not keys in base64"),
    ],
)
def test_a_file_of_keys_that_is_none(look: Look, tmp_path: Path, octets: bytes | None, what: str) -> None:
    path = tmp_path / "keys"
    if octets is not None:
        path.write_bytes(octets)
    found = look(f'[ledger]\nsecrets_file = "{path}"', "files")
    assert what in found.one("files.secret").what
    assert found.exit == USAGE


def test_secrets_that_everybody_may_read(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 64)
    path.chmod(0o644)
    found = look(f'[cluster]\nsecret_file = "{path}"', "files")
    assert "everybody on this machine can read it" in found.one("files.secret").what
    path.write_bytes(b"short")
    assert "holds 5 octets, not at least 32" in look(f'[cluster]\nsecret_file = "{path}"', "files").text


def test_gateways_that_share_a_ledger_share_the_key(look: Look) -> None:
    found = look('[ledger]\nurl = "postgresql://a@127.0.0.1/b"', "files")
    assert found.one("files.secret").where == "ledger.secrets_file"
    assert found.failed == []


# ---------------------------------------------------------------------------------------------- certificates

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    authority = trustme.CA()

    def write(name: str, **options: Any) -> str:
        made = authority.issue_cert("localhost", **options)
        made.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.pem"))
        made.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
        return str(tmp_path / name)

    return write


def http_tls(cert: str, key: str) -> str:
    return f'[http.tls]\ncert_file = "{cert}"\nkey_file = "{key}"\n'


def days(number: int) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=number)


def test_our_own_certificate(look: Look, write: Write) -> None:
    fine, other = write("fine"), write("other")
    assert "is valid until" in look(http_tls(f"{fine}.pem", f"{fine}.key"), "files").one("files.certificate").what
    found = look(http_tls(f"{fine}.pem", f"{other}.key"), "files")
    assert found.one("files.certificate").what == "the key is not that of the certificate"
    assert found.exit == REFUSED
    assert "No such file" in look(http_tls(f"{fine}.none", ""), "files").one("files.certificate").what


@pytest.mark.parametrize(
    ("since", "until", "what", "status"),
    [
        (-9, -1, "our certificate expired at", REFUSED),
        (1, 9, "our certificate is valid from", REFUSED),
        (-9, 3, "our certificate expires soon", 0),
    ],
)
def test_dates(look: Look, write: Write, since: int, until: int, what: str, status: int) -> None:
    name = write("dated", not_before=days(since), not_after=days(until))
    found = look(http_tls(f"{name}.pem", f"{name}.key"), "files")
    assert found.one("files.certificate").what.startswith(what)
    assert found.exit == status


def test_certificates_that_we_show_others(look: Look, write: Write) -> None:
    old = write("old", not_before=days(-9), not_after=days(-1))
    tls = f'{{cert_file = "{old}.pem", key_file = "{old}.key"}}'
    found = look(f'[brokers.a]\nurl = "amqps://h"\ntls = {tls}\n[endpoints.e]\nurl = "https://h"\ntls = {tls}', "files")
    assert found.failed == ["files.certificate"] * 2
    pem, key = Path(f"{old}.pem").read_text(), Path(f"{old}.key").read_text()
    text = f"[endpoints.e]\nurl = 'https://h'\n[endpoints.e.tls]\ncert = '''{pem}'''\nkey = '''{key}'''"
    found = look(text, "files")
    assert found.one("files.certificate").where == "endpoints.e.tls"
    assert "PRIVATE" not in found.text


# ---------------------------------------------------------------------------------------------------- system


def test_open_files() -> None:
    def needed(text: dict[str, Any]) -> int:
        return files.files_needed(load(None, {}, text))

    least = needed({"role": "worker", "outbound.requests": 1})
    assert least == 1 + files.SPARE_FILES
    assert needed({"outbound.requests": 1, "http.connections": 50}) == least + 50
    broker = {"a": {"url": "amqp://h", "consume_connections": 3}}
    assert needed({"role": "worker", "outbound.requests": 1, "brokers": broker}) == least + 2 + 3


def test_too_few_open_files(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 256))
    finding = look("", "files").one("system.files")
    assert finding.what.startswith("the limit is 256, and the settings allow for")
    assert "LimitNOFILE=65536" in finding.do


@pytest.mark.parametrize(("zone", "known"), [("Europe/Berlin", True), ("Mars/Olympus", False), ("UTC", True)])
def test_the_time_zone(look: Look, monkeypatch: pytest.MonkeyPatch, zone: str, known: bool) -> None:
    monkeypatch.setenv("TZ", zone)
    found = look("", "files")
    assert ("system.zone" in found.warned) is not known
    if not known:
        assert found.one("system.zone").what == "there is no such time zone"
