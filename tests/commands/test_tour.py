"""The tour of the README is what really happens: every command in it, and what it prints."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gateway.commands.demo import gateway_of_our_own

README = Path(__file__).parent.parent.parent / "README.md"
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
ACK_ID = re.compile(r"(?<![\w-])(?!whsec_)[\w-]{30,}=+")
"""What differs from run to run, and is used again by later commands."""
KEY = re.compile(r"\bwhsec_\S+")
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\blag \S+ m?s\b"), "lag LAG"),
    (re.compile(r"\brate \S+/s\b"), "rate RATE"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "DIGEST"),
    (KEY, "KEY"),
)
"""What differs from run to run, and is only looked at."""

LATER = "gateway why "
"""What is asked again until it says what the README does: a webhook has its answer before the ledger has it."""
WITHIN = 30.0


def steps() -> Iterator[tuple[str, str]]:
    """Every command of the tour, and what the README says that it prints."""
    for block in re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            yield command, output


def masked(text: str) -> list[str]:
    """What of an output is the same in every run, word by word: columns are as wide as they need to be."""
    for pattern, word in (*VARYING, (ID, "ID"), (ACK_ID, "ACK-ID")):
        text = pattern.sub(word, text)
    return text.split()


@pytest.fixture
def fresh() -> Iterator[str]:
    """A gateway on which nothing has happened yet."""
    with gateway_of_our_own() as url:
        yield url


def test_the_tour(fresh: str, tmp_path: Path) -> None:
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GATEWAY_URL": fresh,
        "HOME": os.fspath(tmp_path),
    }

    def bash(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            env=environ,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    amqp = json.loads(bash("gateway brokers local-0-8 --json"))["port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    here: dict[str, str] = {
        "http://127.0.0.1:8080": fresh,
        "127.0.0.1:5670": f"127.0.0.1:{amqp}",
        "127.0.0.1:9000": f"127.0.0.1:{port}",
        '"127.0.0.1", 9000': f'"127.0.0.1", {port}',
    }
    run = 0
    for command, told in steps():
        if command.startswith(". "):  # activates the environment that this test already runs in
            continue
        seen = bash(translated(command, here))
        patience = time.monotonic() + WITHIN
        while command.startswith(LATER) and masked(seen) != masked(told) and time.monotonic() < patience:
            seen = bash(translated(command, here))
        assert masked(seen) == masked(told), command
        for pattern in (ID, ACK_ID):
            here |= dict(zip(pattern.findall(unkeyed(told)), pattern.findall(unkeyed(seen)), strict=True))
        run += 1
    assert run > 8


def unkeyed(text: str) -> str:
    """Without signing keys: behind a slash of theirs may stand what looks like an ack id."""
    return KEY.sub("", text)


def translated(command: str, here: Mapping[str, str]) -> str:
    """A command of the README with the addresses and ids of this run."""
    for there, now in here.items():
        command = command.replace(there, now)
    return command
