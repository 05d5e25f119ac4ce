"""Runs the commands of a model by Alloy, without its window, and reads what it found."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from platform import machine
from shutil import which
from typing import Any, Final, NamedTuple

from tests.servers.process import INSTALLED

FOLDER: Final = Path(__file__).parent
SOLVER: Final = "glucose" if machine() in ("x86_64", "AMD64") else "sat4j"
"""The quickest that Alloy brings along, where it has it for the machine; else the one in Java, which takes longer."""
LIMIT: Final = 300.0
"""How long all commands of a model may take, in seconds."""
_COMMAND: Final = re.compile(
    r"^(check|run) (\w+)\b(?:(?!^(?:check|run)\b).)*?\bexpect ([01])$", re.MULTILINE | re.DOTALL
)
_BEGINS: Final = re.compile(r"^(?:check|run)\b", re.MULTILINE)


class ModelError(Exception):
    """A model that cannot be checked: what is wrong with it, or what is missing."""


class Command(NamedTuple):
    """A command of a model."""

    kind: str
    """``check``: a counterexample is looked for; ``run``: an example."""
    name: str
    is_expected: bool
    """Whether one is to be found."""


class Found(NamedTuple):
    """What became of a command."""

    command: Command
    trace: Sequence[str]
    """The example or counterexample, step by step; empty: there is none within the bounds."""

    @property
    def is_right(self) -> bool:
        """Whether it is what the model expects."""
        return bool(self.trace) == self.command.is_expected


class Checked(NamedTuple):
    """All commands of a model."""

    found: Sequence[Found]
    seconds: float


def models() -> list[Path]:
    """The models."""
    return sorted(FOLDER.glob("*.als"))


def commands(model: Path) -> list[Command]:
    """The commands of a model, in order. Raises ModelError for one that does not say what it expects."""
    text = model.read_text(encoding="utf-8")
    found = [Command(kind, name, expected == "1") for kind, name, expected in _COMMAND.findall(text)]
    if len(found) != len(_BEGINS.findall(text)):
        raise ModelError(f"{model.name}: each command needs a name, and `expect 0` or `expect 1` at its end")
    return found


def one_sigs(model: Path, of: str) -> set[str]:
    """The names that extend a signature of a model, such as its events."""
    text = model.read_text(encoding="utf-8")
    names = re.findall(rf"^one sig ([\w\s,]+?)\s+extends {of} \{{\}}$", text, re.MULTILINE)
    return {name.strip() for each in names for name in each.split(",")}


def check(model: Path) -> Checked:
    """Run all commands of a model.

    Raises:
        ModelError: Java or Alloy is missing, or the model has an error.
    """
    java, jars = which("java"), sorted((INSTALLED / "alloy").glob("org.alloytools.alloy.dist-*.jar"))
    if java is None or not jars:
        raise ModelError("Java or Alloy is not installed: run tests/models/install.sh")
    asked = commands(model)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gateway-model-") as folder:
        line = [java, "-XX:+UseSerialGC", "-Xss64m", "-Xmx2g", f"-Djava.io.tmpdir={folder}", "-jar", str(jars[-1])]
        line += ["exec", "--command", "*", "--solver", SOLVER, "--type", "xml", "--quiet", "--force"]
        try:
            ended = subprocess.run(
                [*line, "--output", folder, str(model)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ModelError(f"{model.name}: not checked within {LIMIT:g} s") from None
        receipt = Path(folder) / "receipt.json"
        if not receipt.exists():
            raise ModelError(f"{model.name}: {ended.stdout.strip()[:2_000]}")
        told: Mapping[str, Any] = json.loads(receipt.read_text(encoding="utf-8"))["commands"]
        traces = {name: list(_trace(Path(folder) / f"{name}-solution-0.xml")) for name in told}
    if told.keys() != {each.name for each in asked}:
        raise ModelError(f"{model.name}: Alloy ran {', '.join(told) or 'nothing'}: {ended.stdout.strip()[:2_000]}")
    return Checked([Found(each, traces[each.name]) for each in asked], time.monotonic() - began)


def _trace(solution: Path) -> Iterator[str]:
    """What changes from state to state of an example; nothing where Alloy has written none."""
    if not solution.exists():
        return
    before: set[str] = set()
    for number, state in enumerate(ElementTree.parse(solution).getroot().iter("instance")):
        facts = set(_facts(state))
        gone, new = sorted(before - facts), sorted(facts - before)
        yield f"{number}: " + " ".join([*(f"+{fact}" for fact in new), *(f"-{fact}" for fact in gone)])
        before = facts


def _facts(state: ElementTree.Element) -> Iterator[str]:
    for sig in state.iter("sig"):
        if sig.get("builtin") != "yes":
            for atom in sig.iter("atom"):
                yield f"{_short(sig)}={_short(atom)}"
    for field in state.iter("field"):
        for row in field.iter("tuple"):
            yield f"{_short(field)}={'->'.join(map(_short, row.iter('atom')))}"


def _short(named: ElementTree.Element) -> str:
    return named.get("label", "").removeprefix("this/").removesuffix("$0")
