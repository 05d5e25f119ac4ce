"""The layer contract covers every module there is."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from gateway.versions import DRAFTS, PROTOCOLS

ROOT = Path(__file__).parent.parent
VERSION_FOLDERS = {each.client.__module__.split(".")[1] for each in (*PROTOCOLS, *DRAFTS)}
SANS_IO = {"wire", "classic", "amqp.sasl", *VERSION_FOLDERS}


def contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    return found


def test_every_module_has_its_layer() -> None:
    (layers,) = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    named = {name.strip() for layer in layers for name in layer.split("|")}
    cut = {name.split(".")[1] for name in named if name.count(".") == 2}
    there = {name for name in modules(ROOT / "gateway", "gateway") if name.split(".")[1] not in cut}
    for package in cut:
        there |= modules(ROOT / "gateway" / package, f"gateway.{package}")
    assert named == there


def modules(folder: Path, package: str) -> set[str]:
    """The modules and packages in a folder, by their dotted names."""
    return {
        f"{package}.{path.stem}"
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }


def test_protocol_code_is_kept_from_io() -> None:
    (forbidden,) = [
        set(contract["source_modules"]) for contract in contracts() if contract["name"] == "protocol code does no I/O"
    ]
    assert {f"gateway.{name}" for name in SANS_IO} <= forbidden
    broker = {path.stem for path in (ROOT / "gateway/broker").glob("*.py")} - {"__init__", "served", "server"}
    assert {f"gateway.broker.{name}" for name in broker} <= forbidden


LOADED = """
import json, sys
from importlib import import_module
from gateway.commands import VERBS
for place, _ in VERBS.values():
    if not place.startswith("gateway.pipeline"):
        import_module(place.partition(":")[0])
print(json.dumps(sorted(sys.modules)))
"""
"""Imports the module of every verb, as its help does."""


def test_the_command_line_alone_has_what_its_verbs_import() -> None:
    """Its wheel is built and run by tests/deploy/test_cli.py, which needs more than this suite has."""
    project = tomllib.loads((ROOT / "deploy/cli/pyproject.toml").read_text(encoding="utf-8"))
    held = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all(source == f"../../{target}" and (ROOT / target).exists() for source, target in held.items())
    rooms = {target.removesuffix(".py").replace("/", ".") for target in held.values()}
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    ours = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("gateway.")}
    assert ours <= rooms
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"gateway", "__main__"}
    assert {name for name in foreign if not name.startswith("_")} <= {"click", "msgspec", "typing_extensions"}
