"""Which test files name what a mutant is in: the tests of a run without a map.

A map says which tests run a function, and it takes an hour to measure. What a test file names takes no time. A mutant
that a file kills is killed; one that survives may only have had the wrong files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

SECONDS: Final = 10.0
"""How long a file is taken to run."""
SHORTEST: Final = 5
"""A name of a function that is shorter than this says nothing."""


class NamedTests:
    """Test files by what they name."""

    def __init__(self, root: Path, folders: Sequence[str]) -> None:
        """``folders``: those below ``tests`` whose files are looked at."""
        paths = [path for folder in folders for path in (root / "tests" / folder).rglob("test_*.py")]
        self._texts = {str(path.relative_to(root)): path.read_text() for path in paths}
        self.seconds = dict.fromkeys(self._texts, SECONDS)

    def tests_of(self, path: str, function: str) -> list[str]:
        """Return the files of the package and all files that name the module, class or function. A file that names more
        comes first."""
        module = path.removesuffix(".py").replace("/", ".")
        stem, package = Path(path).stem, path.split("/")[1]
        names = [name for name in function.split(".") if len(name.strip("_")) >= SHORTEST]
        ranked = []
        for file, text in self._texts.items():
            rank = 4 * (Path(file).stem.removeprefix("test_").rstrip("s") == stem.rstrip("s"))
            rank += 3 * (module in text or f"import {stem}" in text)
            rank += sum(2 for name in names if name.strip("_") in text)
            rank += 3 * file.startswith(f"tests/{package}/")
            if rank:
                ranked.append((-rank, len(text), file))
        return [file for _, _, file in sorted(ranked)]
