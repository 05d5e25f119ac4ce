"""The scripts of ``deploy/supply``, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "supply"


def script(name: str) -> ModuleType:
    """One of them, by its name without the ending."""
    spec = importlib.util.spec_from_file_location(f"supply_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their own module
    spec.loader.exec_module(module)
    return module


licences = script("licences")
release = script("release")
audit = script("audit")
