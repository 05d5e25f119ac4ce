"""Run the commands of a page of the documentation, and compare what they print with the page.

A block that is marked ``console`` holds commands behind ``$``, continued behind ``>``, and what each of them prints.
They run on a fresh gateway with its embedded broker, in an empty folder in which ``docs`` is the documentation. What
differs from run to run (ids, times, ports) may differ from the page; ids that later commands use are carried over.

``python -m tests.pages PAGE...`` writes the outputs of the pages again. A command of a new page may use ``ID1``,
``ID2`` and ``ACK1``: the first message id, the second, and the first ack id that the page has printed by then.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gateway.commands.demo import gateway_of_our_own

ROOT: Final = Path(__file__).resolve().parent.parent
BLOCK: Final = re.compile(r"```console\n(.*?)```", re.DOTALL)
ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
ACK_ID: Final = re.compile(r"(?<![\w-])(?!whsec_)[\w-]{30,}=+")
"""What differs from run to run, and is used again by later commands."""
KEY: Final = re.compile(r"\bwhsec_\S+")
VARYING: Final = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\blag \S+ m?s\b"), "lag LAG"),
    (re.compile(r"\brate \S+/s\b"), "rate RATE"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "DIGEST"),
    (KEY, "KEY"),
)
"""What differs from run to run, and is only looked at."""
ASKED_AGAIN: Final = re.compile(r"gateway (?:why|messages|statistics|\w+ (?:show|get|list))\b")
"""Commands that change nothing. They run until they print what the page says: a broker and the ledger may be late."""
WITHIN: Final = 30.0
"""For how long they run, in seconds."""


def pages() -> list[Path]:
    """Return the pages that have commands with outputs."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if BLOCK.search(path.read_text(encoding="utf-8"))]


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield every command of a page, and what the page says that it prints."""
    for block in BLOCK.findall(text):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            lines = step.split("\n")
            end = next(number for number, line in enumerate(lines) if number and not line.startswith("> "))
            yield "\n".join([lines[0], *(line[2:] for line in lines[1:end])]), "\n".join(lines[end:])


def masked(text: str) -> list[str]:
    """Return what is the same in every run, word by word: columns are as wide as they need to be."""
    for pattern, word in (*VARYING, (ID, "ID"), (ACK_ID, "ACK-ID")):
        text = pattern.sub(word, text)
    return text.split()


class Terminal:
    """A shell on a fresh gateway, for the commands of one page."""

    def __init__(self, url: str, folder: Path) -> None:
        (folder / "docs").symlink_to(ROOT / "docs")
        self._folder = folder
        self._groups: list[int] = []
        self._environ = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GATEWAY_URL": url,
            "HOME": os.fspath(folder),
        }
        amqp = json.loads(self._bash("gateway brokers local-0-8 --json"))["port"]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.addresses = {
            "http://127.0.0.1:8080": url,
            "127.0.0.1:5670": f"127.0.0.1:{amqp}",
            "127.0.0.1:9000": f"127.0.0.1:{port}",
            '"127.0.0.1", 9000': f'"127.0.0.1", {port}',
            "PORT=9000": f"PORT={port}",
        }
        self.ids: dict[str, str] = {}

    def run(self, command: str, told: str | None = None) -> str:
        """Return what a command prints; with ``told``, once it is that or no longer may become it."""
        for there, now in {**self.addresses, **self.ids}.items():
            command = command.replace(there, now)
        seen = self._bash(command)
        patience = time.monotonic() + WITHIN
        while (
            told is not None
            and ASKED_AGAIN.match(command)
            and masked(seen) != masked(told)
            and time.monotonic() < patience
        ):
            seen = self._bash(command)
        return seen

    def learn(self, told: str, seen: str) -> None:
        """Use the ids of this run in place of those of the page from now on."""
        for pattern in (ID, ACK_ID):
            self.ids |= dict(zip(pattern.findall(_unkeyed(told)), pattern.findall(_unkeyed(seen)), strict=True))

    def _bash(self, command: str) -> str:
        process = subprocess.Popen(
            ["bash", "-c", command],
            env=self._environ,
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._groups.append(process.pid)
        output, _ = process.communicate(timeout=60)
        return output

    def close(self) -> None:
        """End what runs in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """Start a gateway, give a shell for it, and end both."""
    with gateway_of_our_own() as url:
        shell = Terminal(url, folder)
        try:
            yield shell
        finally:
            shell.close()


def _unkeyed(text: str) -> str:
    """Without signing keys: behind a slash of theirs may stand what looks like an ack id."""
    return KEY.sub("", text)


# ------------------------------------------------------------------------------------------------------ writing


def write(path: Path) -> None:
    """Write the outputs of a page again."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="gateway-page-") as folder, terminal(Path(folder)) as shell:
        printed: list[str] = []

        def placed(command: str) -> str:
            for name, pattern in (("ID", ID), ("ACK", ACK_ID)):
                every = list(dict.fromkeys(pattern.findall(_unkeyed("\n".join(printed)))))
                command = re.sub(rf"\b{name}(\d)\b", lambda found, every=every: every[int(found[1]) - 1], command)
            for old, new in shell.ids.items():
                command = command.replace(old, new)
            return command

        def block(found: re.Match[str]) -> str:
            lines = ["```console"]
            for command, told in steps(found[0]):
                command = placed(command)
                if command.startswith(". "):
                    lines.append(f"$ {command}")
                    continue
                if ASKED_AGAIN.match(command):
                    time.sleep(1)  # a person is no faster, and the ledger has everything by then
                seen = shell.run(command)
                for there, now in shell.addresses.items():
                    seen = seen.replace(now, there)
                printed.append(seen)
                with suppress(ValueError):
                    shell.learn(told, seen)
                lines += [f"$ {command}".replace("\n", "\n> "), *seen.rstrip("\n").split("\n")]
                if not seen.strip():
                    lines.pop()
            return "\n".join([*lines, "```"])

        path.write_text(BLOCK.sub(block, text), encoding="utf-8")


def compare(path: Path, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Run a page; yield each command, what the page says that it prints, and what it printed."""
    with terminal(folder) as shell:
        for command, told in steps(path.read_text(encoding="utf-8")):
            if command.startswith(". "):  # activates the environment that this program already runs in
                continue
            seen = shell.run(command, told)
            yield command, told, seen
            shell.learn(told, seen)


def names() -> Mapping[str, Path]:
    """Return name -> page, for tests."""
    return {path.relative_to(ROOT).as_posix(): path for path in pages()}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write(Path(name).resolve())
