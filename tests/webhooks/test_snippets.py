"""The receivers of the documentation verify what we sign, in every language that this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from gateway.webhooks.attempts.signing import SecretKey, SharedSecret, sign

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "webhook-signatures.md"
SNIPPET = re.compile(r"<!-- verify: (\w+) -->\n\n```\w+\n(.*?)```", re.DOTALL)
BODY = b'\x00\xff{"total": "12,50 \xe2\x82\xac"}\r\n\n'

PYTHON_MAIN = """
import os
import sys

headers = {f"webhook-{name}": os.environ[name.upper()] for name in ("id", "timestamp", "signature")}
sys.exit(0 if verify(os.environ["KEY"], headers, sys.stdin.buffer.read()) else 1)
"""
NODE_MAIN = """
const { KEY, ID, TIMESTAMP, SIGNATURE } = process.env;
const headers = { "webhook-id": ID, "webhook-timestamp": TIMESTAMP, "webhook-signature": SIGNATURE };
process.exit(verify(KEY, headers, require("node:fs").readFileSync(0)) ? 0 : 1);
"""
GO_MAIN = """
package main

import (
	"io"
	"os"
)

func main() {
	body, _ := io.ReadAll(os.Stdin)
	if !verify(os.Getenv("KEY"), os.Getenv("ID"), os.Getenv("TIMESTAMP"), os.Getenv("SIGNATURE"), body) {
		os.Exit(1)
	}
}
"""


def python(text: str, folder: Path) -> list[str]:
    (folder / "receiver.py").write_text(text + PYTHON_MAIN, encoding="utf-8")
    return [sys.executable, str(folder / "receiver.py")]


def node(text: str, folder: Path) -> list[str]:
    (folder / "receiver.js").write_text(text + NODE_MAIN, encoding="utf-8")
    return ["node", str(folder / "receiver.js")]


def go(text: str, folder: Path) -> list[str]:
    (folder / "verify.go").write_text(text, encoding="utf-8")
    (folder / "main.go").write_text(GO_MAIN, encoding="utf-8")
    built = folder / "receiver"
    environ = {**os.environ, "GO111MODULE": "off", "GOFLAGS": "", "GOTOOLCHAIN": "local"}
    subprocess.run(
        ["go", "build", "-o", str(built), "verify.go", "main.go"], cwd=folder, env=environ, check=True, timeout=300
    )
    return [str(built)]


def shell(text: str, folder: Path) -> list[str]:
    (folder / "verify.sh").write_text(text, encoding="utf-8")
    return ["sh", str(folder / "verify.sh")]


LANGUAGES: dict[str, tuple[str, Callable[[str, Path], list[str]]]] = {
    "python": (sys.executable, python),
    "node": ("node", node),
    "go": ("go", go),
    "shell": ("openssl", shell),
}
"""Language -> its tool, and what makes a program of the snippet."""
HERE = [language for language, (tool, _) in LANGUAGES.items() if shutil.which(tool)]


@cache
def snippets() -> dict[str, str]:
    return dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))


def test_every_language_has_its_snippet() -> None:
    assert set(snippets()) == set(LANGUAGES)
    assert {"python", "shell"} <= set(HERE)


@pytest.fixture(scope="module", params=HERE)
def receiver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """The command that reads a body and ends with 0 if it verifies."""
    _, make = LANGUAGES[request.param]
    return make(snippets()[request.param], tmp_path_factory.mktemp(request.param))


SHARED, SECRET = SharedSecret(bytes(range(32))), SecretKey(bytes(range(32)))
OTHER_SHARED, OTHER_SECRET = SharedSecret(bytes(32)), SecretKey(bytes(32))


def verifies(receiver: Sequence[str], key: object, body: bytes = BODY, *, age: int = 0, id: str = "m-1") -> bool:
    """What it says of a request of ours, signed with all keys but the others."""
    signed = dict(sign([OTHER_SHARED, SECRET, SHARED], "m-1", int(time.time()) - age, BODY))
    environ = {
        **os.environ,
        "KEY": str(key),
        "ID": id,
        "TIMESTAMP": signed[b"webhook-timestamp"].decode(),
        "SIGNATURE": signed[b"webhook-signature"].decode(),
    }
    done = subprocess.run(receiver, input=body, env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert done.stderr == b""
    return done.returncode == 0


def test_it_verifies_ours_and_nothing_else(receiver: Sequence[str]) -> None:
    assert verifies(receiver, SHARED)
    assert verifies(receiver, SECRET.public)
    assert verifies(receiver, OTHER_SHARED), "during a rotation any of its keys will do"
    assert not verifies(receiver, OTHER_SECRET.public)
    assert not verifies(receiver, SHARED, BODY + b"\n")
    assert not verifies(receiver, SECRET.public, id="m-2")
    assert not verifies(receiver, SHARED, age=400)
    assert not verifies(receiver, SECRET.public, age=-400)
