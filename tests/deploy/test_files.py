"""Dockerfiles, compose file and systemd unit: what they say fits the package, its command line and its settings."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from gateway import __version__
from gateway.commands import cli
from gateway.config import load
from tests.deploy.helm import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction of a Dockerfile with what follows it, continued lines joined."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def stages(text: str) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions(text):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def accepted(arguments: list[str], environ: dict[str, str] | None = None) -> dict[str, Any]:
    """What the command line makes of arguments."""
    verb, *rest = arguments
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None, verb
    return command.make_context(verb, list(rest)).params


# ------------------------------------------------------------------------------------------------- Dockerfile


def test_what_is_copied_is_there_and_let_through() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for word, rest in instructions(DOCKERFILE):
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored


def test_the_final_stage_is_not_root_and_holds_no_tools() -> None:
    build, final = stages(DOCKERFILE)
    said = dict(final)
    assert said["USER"] == "65532:65532"
    assert (said["ENTRYPOINT"], said["CMD"]) == ('["gateway"]', '["serve"]')
    runs = " ".join(rest for word, rest in final if word == "RUN")
    assert not re.search(r"\b(uv|apt-get|gcc|curl|wget)\b", runs)
    assert "pip uninstall" in runs
    for text in (runs, " ".join(rest for word, rest in build if word == "RUN")):
        for command in re.findall(r"\bpip install [^&]*", text):
            assert "--require-hashes" in command or "--no-index" in command, command
    assert [rest for word, rest in final if word == "COPY"] == ["--from=build /opt/gateway /opt/gateway"]
    assert any("uv sync --locked" in rest for word, rest in build if word == "RUN")
    assert any("--no-build" in rest for word, rest in build if word == "RUN")


def test_the_image_starts_with_what_the_chart_runs() -> None:
    accepted(["serve"])
    ports = dict(stages(DOCKERFILE)[1])["EXPOSE"].split()
    values = yaml.safe_load((DEPLOY / "helm/amqp-gateway/values.yaml").read_text(encoding="utf-8"))
    chart = [str(values["ports"]["http"]), str(values["ports"]["ops"]), str(values["cluster"]["port"])]
    assert ports == [*chart, str(load(None, {}).embedded.port)]


def test_the_try_out_of_the_documented_command() -> None:
    """The ports that it publishes are those that the gateway opens, and the page says the same as the file."""
    (command,) = re.findall(r"^#   docker run (.*--try-out)$", DOCKERFILE, re.MULTILINE)
    assert command in (ROOT / "docs" / "how-to" / "deployment.md").read_text(encoding="utf-8")
    options, _, arguments = command.partition(" amqp-gateway:0.1.0 ")
    assert accepted(arguments.split())["try_out"] is True
    settings = load(None, {})
    published = re.findall(r"-p 127\.0\.0\.1:(\d+):(\d+)", options)
    assert published == [(str(port), str(port)) for port in (settings.http.port, settings.embedded.port)]


def test_the_base_fits_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (minor,) = re.findall(r"^ARG PYTHON=docker\.io/library/python:3\.(\d+)-slim", DOCKERFILE, re.MULTILINE)
    least = int(project["requires-python"].removeprefix(">=3."))
    assert least <= int(minor) <= 13


# ---------------------------------------------------------------------------------------------------- compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_its_commands_and_settings_are_the_gateways(compose: dict[str, Any]) -> None:
    roles = []
    for name, service in compose["services"].items():
        if not service["image"].startswith("amqp-gateway:"):
            continue
        assert service["image"] == f"amqp-gateway:{__version__}"
        parsed = accepted(service["command"])
        environ = {**service["environment"], "GATEWAY_LEDGER_URL": "postgresql://gateway:x@postgresql/gateway"}
        url_file = environ.pop("GATEWAY_LEDGER_URL_FILE")
        if "role" in parsed:
            config = load(COMPOSE / "gateway.toml", environ, {"role": parsed["role"]})
            roles.append(config.role)
            assert config.cluster.host == service["hostname"] == name
            grace = int(service["stop_grace_period"].removesuffix("s"))
            assert grace >= config.http.drain_delay + config.http.drain_timeout + 25
            named = {config.ledger.secrets_file, config.cluster.secret_file}
            named |= {broker.password_file for broker in config.brokers.values()}
            named |= {key.key_file for key in config.api_keys} | {url_file}
            assert named == {f"/run/secrets/{secret}" for secret in service["secrets"]}
            assert set(service["depends_on"]) <= set(compose["services"])
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert sorted(roles) == ["api", "api", "worker", "worker"]


def test_it_starts_in_order(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"] == {"postgresql": {"condition": "service_healthy"}}
    for name in ("api-1", "api-2", "worker-1", "worker-2"):
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
        assert "/readyz" in services[name]["healthcheck"]["test"][-1]
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_its_secrets_are_made_once(compose: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    shutil.copy(COMPOSE / "secrets.sh", script)
    before: dict[str, str] = {}
    for _ in range(2):
        subprocess.run([str(script)], check=True, timeout=30)
        made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
        assert not before or made == before
        before = made
    for secret in compose["secrets"].values():
        name = Path(secret["file"]).name
        assert len(before[name].strip()) >= 32
    assert len(set(before.values())) == len(before)
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert before["ledger-url"] == f"postgresql://gateway:{before['postgresql']}@postgresql/gateway\n"
    assert re.fullmatch(r"[0-9a-f]{64}", before["postgresql"])
    assert not any(word in str(compose) for word in ("POSTGRES_PASSWORD'", "${")), "no password is a variable"
    ignored = (COMPOSE / ".gitignore").read_text(encoding="utf-8").split()
    assert ignored == ["secrets/"]


def test_broker_j_is_the_one_of_the_tests() -> None:
    def jars(path: Path) -> str:
        return path.read_text(encoding="utf-8").partition("<properties>")[2]

    assert jars(COMPOSE / "broker-j" / "pom.xml") == jars(ROOT / "tests" / "servers" / "brokerj" / "pom.xml")
    copied = [rest for word, rest in instructions((COMPOSE / "broker-j" / "Dockerfile").read_text()) if word == "COPY"]
    for rest in copied:
        if not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (COMPOSE / "broker-j" / source).exists()


# ---------------------------------------------------------------------------------------------------- systemd


def test_the_unit(tmp_path: Path) -> None:
    path = DEPLOY / "systemd" / "amqp-gateway.service"
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(path)
    service = dict(unit["Service"])
    for key in ("ExecStartPre", "ExecStart"):
        program, *arguments = service[key].split()
        assert program == "/opt/amqp-gateway/bin/gateway"
        accepted(arguments)
    config = load(None, {})
    assert int(service["TimeoutStopSec"]) >= config.http.drain_delay + config.http.drain_timeout + 30
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["DynamicUser"] == "yes"
    if (systemd := shutil.which("systemd-analyze")) is not None:  # it looks for the programs: others stand in for them
        copy = tmp_path / path.name
        copy.write_text(path.read_text(encoding="utf-8").replace("/opt/amqp-gateway/bin/gateway", "/bin/true"))
        done = subprocess.run([systemd, "verify", str(copy)], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_scripts_are_executable() -> None:
    for path in (COMPOSE / "secrets.sh", COMPOSE / "broker-j" / "entrypoint.sh", ROOT / "tests/deploy/install.sh"):
        assert os.access(path, os.X_OK)
        subprocess.run(["sh", "-n", str(path)], check=True, timeout=10)


# --------------------------------------------------------------------------------------------------- the package


def test_the_page_of_the_package_index() -> None:
    """It has no links that only work beside the source, and its commands are taken."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / project["readme"]).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all(link.startswith(project["urls"]["Homepage"]) for link in links)
    assert project["urls"].keys() == {"Homepage", "Documentation", "Changelog", "Source", "Issues"}
    for extra in re.findall(r"amqp-gateway\[(\w+)\]", text):
        assert extra in project["optional-dependencies"]
    for line in re.findall(r"^gateway (.+?)(?: +#.*)?$", text, re.MULTILINE):
        verb, *rest = line.split()
        command = cli.get_command(click.Context(cli), verb)
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), rest.pop(0))
        assert command is not None, line
        command.make_context(verb, rest)
    for package in ("gateway", "pyspark_gateway"):
        assert (ROOT / package / "py.typed").exists()
