"""The command line alone: its wheel, built and installed into an empty environment, asks a real gateway."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from gateway import __version__
from gateway.commands import EXIT_STATUS, MISSING, VERBS
from gateway.commands.demo import gateway_of_our_own
from tests.deploy.helm import ROOT, TOOLS

SOURCE: Final = ROOT / "deploy" / "cli"
PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEELS: Final = TOOLS / "cli-wheels"
PAGE = (ROOT / "docs" / "how-to" / "script-the-command-line.md").read_text(encoding="utf-8")

ASKS: Final = (
    "overview",
    "brokers",
    "queues declare local-0-9-1 orders",
    "exchanges declare local-0-9-1 sales --type topic",
    "bindings add local-0-9-1 sales eu.# --queue orders",
    "publish local-0-9-1 sales eu.1 hello",
    "subscriptions put billing billing.json",
    "pull billing --wait 5",
    "messages",
    "search orders",
    "statistics",
    "tail --all --no-follow",
    "scheduled list",
    "bridges list",
    "budgets",
    "taps list",
    "fronts list",
    "endpoints list",
    "replays list",
    "dlq list",
    "keys list",
    "explain --from 0-9-1 --to local-0-8",
    "completion bash",
)
"""What works without the service: each ends with 0."""
REFUSED: Final = {"reload --dry-run": "without a configuration", "why 0": "is no id of a message"}
"""What the gateway refuses, as it does for every command line -> part of its sentence."""
NEEDS_SERVICE: Final = (
    "serve",
    "demo",
    "doctor",
    "migrate",
    "backup ledger.backup",
    "restore ledger.backup",
    "probe amqp://127.0.0.1:1",
    "audit verify",
    "secrets new secrets.key",
    "secrets list",
    "keys create shop --scope admin --offline",
    "pipeline --help",
)
"""What needs the service, or its packages."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the locked hatchling."""
    assert WHEELS.exists(), f"there is no {WHEELS}: run tests/deploy/install.sh"
    folder = tmp_path_factory.mktemp("wheel")
    command = [str(Path(sys.executable).with_name("uv")), "build", "--quiet", "--wheel", "--out-dir", str(folder)]
    command += ["--offline", "--no-index", "--find-links", str(WHEELS), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment in which that wheel was installed, and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-index", "--find-links", str(WHEELS), str(wheel)]
    subprocess.run(pip, check=True, timeout=120)
    return folder / "bin"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where a gateway runs that has the service."""
    with gateway_of_our_own() as found:
        yield found


def run(environment: Path, folder: Path, command: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """One command of the environment, in a folder, with nothing of this one."""
    environ = {"PATH": os.fspath(environment), "HOME": os.fspath(folder), "GATEWAY_URL": url}
    program = [str(environment / "gateway"), *command.split()]
    return subprocess.run(program, env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_it_requires_what_the_whole_requires_and_no_more() -> None:
    project, whole = PROJECT["project"], WHOLE["project"]
    assert set(project["dependencies"]) < set(whole["dependencies"])
    for key in ("requires-python", "license", "authors", "urls", "scripts"):
        assert project[key] == whole[key]


def test_the_wheel_has_no_part_of_the_service(wheel: Path) -> None:
    assert wheel.name == f"amqp_gateway_cli-{__version__}-py3-none-any.whl"
    names = ZipFile(wheel).namelist()
    assert {"gateway/__main__.py", "gateway/commands/client.py", "gateway/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    for part in ("app.py", "api/", "broker/", "ledger/", "webhooks/", "pipeline/", "console/", "_migrations/"):
        assert not [name for name in names if name.startswith(f"gateway/{part}")], part
    assert not [name for name in names if name.endswith(".pyc")]
    assert wheel.stat().st_size < 600_000


def test_the_page_has_every_package(environment: Path) -> None:
    listed = subprocess.run(
        [str(environment / "pip"), "list", "--format", "json"], capture_output=True, text=True, check=True, timeout=60
    )
    installed = {row["name"] for row in json.loads(listed.stdout)} - {"pip", "setuptools"}
    subprocess.run([str(environment / "pip"), "check"], check=True, timeout=60)
    _, _, section = PAGE.partition("\n## The command line alone\n")
    told = {name for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for name in re.findall(r"`(\S+)`", row)}
    if sys.version_info >= (3, 13):
        told -= {"typing_extensions"}
    assert {name.replace("-", "_") for name in installed} == {name.replace("-", "_") for name in told}


def test_it_asks_a_gateway(environment: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "billing.json").write_text('{"broker": "local-0-9-1", "queue": "orders"}')
    for command in ASKS:
        done = run(environment, tmp_path, command, url)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        if command.startswith("pull"):
            assert "hello" in done.stdout
    for command, sentence in REFUSED.items():
        done = run(environment, tmp_path, command, url)
        assert done.returncode in EXIT_STATUS.keys() - {0}
        assert sentence in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", NEEDS_SERVICE)
def test_what_needs_the_service_says_so_and_does_nothing(environment: Path, tmp_path: Path, command: str) -> None:
    done = run(environment, tmp_path, command)
    assert done.returncode == MISSING
    assert done.stdout == ""
    assert done.stderr.startswith("gateway: this command needs the service, and only the command line is installed")
    assert "pip install amqp-gateway" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_every_verb_was_tried() -> None:
    assert {command.split()[0] for command in (*ASKS, *REFUSED, *NEEDS_SERVICE)} == set(VERBS)
