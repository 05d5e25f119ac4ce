"""Check of the names: what may be imported under another name, and how often a class name may be used.

``python -m tests.names`` prints counts of the package, one line each, and fails if a count is over its limit. With a
folder as argument it counts another copy of the package, without limits. ``docs/project/glossary.md`` has the rules.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests import seams

ROOT: Final = Path(__file__).resolve().parent.parent
VERSION_FOLDER: Final = re.compile(r"gateway/v\d+\w*/")
_VERSION_NAME: Final = re.compile(r"""["'][01]-\d+(?:-\d+)?["']|\bgateway\.v\d""")
RENAMES_MAX: Final = 10
"""Imports of the package's own names under other names."""
AMBIGUOUS_MAX: Final = 60
"""Names of public classes, outside the version folders, with more than one meaning."""


@dataclass
class Counts:
    """What was counted in one copy of the package."""

    files: int = 0
    code: int = 0
    """Lines without blank ones, comments and docstrings."""
    renames: list[str] = field(default_factory=list)
    """Imports under another name: file, name, other name."""
    ambiguous: dict[str, list[str]] = field(default_factory=dict)
    """Name of a public class -> files that define it, where there are several."""
    imported_once: int = 0
    """Modules that one other module imports."""
    version_namers: list[str] = field(default_factory=list)
    """Modules outside the version folders and the registry that name a version."""
    seam_breaks: int = 0
    """Reads of time and chance, sleeps and threads outside ``gateway/runtime``."""


def count(sources: Mapping[str, str]) -> Counts:
    """Count modules: path -> source."""
    counts = Counts(files=len(sources))
    classes: defaultdict[str, list[str]] = defaultdict(list)
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for path, source in sorted(sources.items()):
        tree = ast.parse(source)
        counts.code += _code_lines(source, tree)
        counts.renames += [f"{path}: {name} as {alias}" for name, alias in _renames(tree)]
        for module in _imports(tree):
            importers[module].add(path)
        is_version = VERSION_FOLDER.match(path) is not None
        if not is_version:
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].append(path)
        if not is_version and path != "gateway/versions.py" and _VERSION_NAME.search(source):
            counts.version_namers.append(path)
        if not path.startswith(seams.SEAMS):
            counts.seam_breaks += len(list(seams.findings(path, source)))
    counts.ambiguous = {name: paths for name, paths in sorted(classes.items()) if len(paths) > 1}
    modules = {path.removesuffix(".py").replace("/", "."): path for path in sources}
    counts.imported_once = sum(len(importers[module] - {path}) == 1 for module, path in modules.items())
    return counts


def _code_lines(source: str, tree: ast.Module) -> int:
    """Lines that hold code."""
    lines: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _renames(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            own = node.level > 0 or (node.module or "").split(".")[0] == "gateway"
        elif isinstance(node, ast.Import):
            own = any(alias.name.split(".")[0] == "gateway" for alias in node.names)
        else:
            continue
        yield from ((a.name, a.asname) for a in node.names if own and a.asname and a.asname != a.name)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Modules that may be meant: ``from gateway.a import b`` is the module ``gateway.a`` or ``gateway.a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def package(root: Path = ROOT) -> dict[str, str]:
    """Every module of the package: its path and its source."""
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in sorted((root / "gateway").rglob("*.py"))
    }


def rows(counts: Counts) -> list[tuple[str, int]]:
    """What the table says."""
    return [
        ("files", counts.files),
        ("lines of code", counts.code),
        ("imports that rename", len(counts.renames)),
        ("class names with several meanings", len(counts.ambiguous)),
        ("modules with one importer", counts.imported_once),
        ("modules elsewhere that name a version", len(counts.version_namers)),
        ("reads of time and chance outside the seams", counts.seam_breaks),
    ]


def check(counts: Counts) -> list[str]:
    """Return what is over its limit, and what to do."""
    wrong: list[str] = []
    if len(counts.renames) > RENAMES_MAX:
        wrong += [f"{len(counts.renames)} imports rename, at most {RENAMES_MAX} may: choose a name that needs none"]
        wrong += [f"  {each}" for each in counts.renames]
    if len(counts.ambiguous) > AMBIGUOUS_MAX:
        wrong += [f"{len(counts.ambiguous)} class names have several meanings, at most {AMBIGUOUS_MAX} may: rename one"]
        wrong += [f"  {name}: {', '.join(paths)}" for name, paths in counts.ambiguous.items()]
    return wrong


def main(arguments: list[str]) -> int:
    """Print the counts. Return the exit code."""
    root = Path(arguments[0]).resolve() if arguments else ROOT
    counts = count(package(root))
    for what, number in rows(counts):
        print(f"{number:>7,}  {what}")
    wrong = check(counts) if not arguments else []
    if wrong:
        print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
