"""Put a mutation into the code of the gateway as it is imported. No file is changed.

The name of the mutation is in the environment, because the code must be mutated before anything imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from tests.simulation.mutations import MUTATIONS, Mutation

ROOT: Final = Path(__file__).resolve().parent.parent.parent
VARIABLE: Final = "SIMULATION_MUTATION"
"""The environment variable that has the name of the mutation."""


def mutated(mutation: Mutation) -> str:
    """Return the source of the module with the mutation in it.

    Raises:
        ValueError: the text that it replaces is not in the file exactly once.
    """
    source = (ROOT / mutation.path).read_text()
    if (count := source.count(mutation.before)) != 1:
        raise ValueError(
            f"mutation {mutation.name!r}: its text is {count} times in {mutation.path}, expected once. "
            "Write the text as the file has it now."
        )
    return source.replace(mutation.before, mutation.after)


class _Loader(SourceFileLoader):
    """Loader of the module that is mutated."""

    def __init__(self, name: str, path: str, mutation: Mutation) -> None:
        super().__init__(name, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> CodeType:
        """Compile the mutated source, and leave the compiled file of the real one alone."""
        return compile(mutated(self._mutation), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finder of the one module that is mutated; all others are found as always."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the mutated module is, None for any other."""
        if fullname != self._mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None, fullname
        assert spec.origin is not None, fullname
        spec.loader = _Loader(fullname, spec.origin, self._mutation)
        return spec


def install() -> None:
    """Have the mutation that the environment names, if it names one.

    Raises:
        ValueError: no mutation has this name, or its module was imported before.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return
    if name not in MUTATIONS:
        raise ValueError(f"mutation {name!r}: unknown. The names are in tests/simulation/mutations.py.")
    mutation = MUTATIONS[name]
    if mutation.module in sys.modules:
        raise ValueError(f"mutation {name!r}: {mutation.module} was imported before it could be mutated")
    sys.meta_path.insert(0, _Finder(mutation))


def is_in_place(name: str) -> bool:
    """Whether the module of this mutation was imported with the mutation in it."""
    module = sys.modules.get(MUTATIONS[name].module)
    return module is not None and isinstance(module.__loader__, _Loader)
