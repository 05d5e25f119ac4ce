"""The licence of every package that ``uv.lock`` names, and whether it is one that we take.

What a package says comes from its installed metadata: ``License-Expression`` first, then ``License``, then its
classifiers. :data:`SPELLED` turns other words into identifiers of SPDX, :data:`STATED` is for what metadata do not say.
:data:`TAKEN` are the licences that any package may have, :data:`TOGETHER` those that packages have by name, each with
the reason. ``python deploy/supply/licences.py`` prints a table and fails where a licence is neither; with ``--texts``
it also writes the texts of all that the service and its extras run on.
``docs/generate.py`` makes ``docs/project/licences.md`` of the same rows.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "uv.lock"
OURS = "amqp-gateway"
SERVICE, TESTS = "service", "tests"

TAKEN: Mapping[str, str] = {
    "0BSD": "do nothing",
    "Apache-2.0": "keep the notices; it grants patents",
    "BSD-2-Clause": "keep the notice",
    "BSD-3-Clause": "keep the notice, and not to advertise with the authors' names",
    "CC0-1.0": "do nothing",
    "ISC": "keep the notice",
    "MIT": "keep the notice",
    "MIT-0": "do nothing",
    "PSF-2.0": "keep the notice",
    "Zlib": "keep the notice in sources",
}
"""Licence -> what it asks. Any package may have it."""
TOGETHER: Mapping[str, tuple[str, str]] = {
    "certifi": ("MPL-2.0", "a list of authorities, as published; the licence holds for its own files"),
    "hypothesis": ("MPL-2.0", "runs tests, is given to nobody"),
    "pathspec": ("MPL-2.0", "runs tests, is given to nobody"),
    "psycopg": ("LGPL-3.0-only", "imported as published; whoever runs the gateway can put another one in its place"),
    "psycopg-binary": ("LGPL-3.0-only", "as `psycopg`, whose part in C it is"),
}
"""Package -> a licence that only this package may have, and why that is no harm."""
STATED: Mapping[str, str] = {
    "atheris": "Apache-2.0",  # only where fuzzing is asked for
    "axe-playwright-python": "MIT",  # its LICENSE
    "colorama": "BSD-3-Clause",  # only on Windows
    "hatchling": "MIT",  # where the package is built
    "py4j": "BSD-3-Clause",  # its LICENSE.txt; its metadata only say BSD
    "setuptools": "MIT",  # where pyspark is built
    "tomlkit": "MIT",  # as hatchling
    "trove-classifiers": "Apache-2.0",  # as hatchling
    "uv": "MIT OR Apache-2.0",  # installs the rest
    "uvloop": "MIT OR Apache-2.0",  # its two files
    # Only where the documentation is made a site:
    "accessible-pygments": "BSD-3-Clause",
    "alabaster": "BSD-3-Clause",
    "babel": "BSD-3-Clause",
    "beautifulsoup4": "MIT",
    "docutils": "BSD-2-Clause",  # most of it is in the public domain
    "furo": "MIT",
    "imagesize": "MIT",
    "jinja2": "BSD-3-Clause",
    "mdit-py-plugins": "MIT",
    "myst-parser": "MIT",
    "roman-numerals": "0BSD OR CC0-1.0",
    "snowballstemmer": "BSD-3-Clause",
    "soupsieve": "MIT",
    "sphinx": "BSD-2-Clause",
    "sphinx-basic-ng": "MIT",
    "sphinxcontrib-applehelp": "BSD-2-Clause",
    "sphinxcontrib-devhelp": "BSD-2-Clause",
    "sphinxcontrib-htmlhelp": "BSD-2-Clause",
    "sphinxcontrib-jsmath": "BSD-2-Clause",
    "sphinxcontrib-qthelp": "BSD-2-Clause",
    "sphinxcontrib-serializinghtml": "BSD-2-Clause",
}
"""Package -> licence, where metadata do not say it, or where it is not installed everywhere."""
SPELLED: Mapping[str, str] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "MIT License": "MIT",
    "MIT license": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""What metadata say in other words."""
BUNDLED: Mapping[str, tuple[str, ...]] = {
    "axe-playwright-python": ("axe-core (MPL-2.0)",),
    "offapi": (
        "Swagger UI (Apache-2.0)",
        "Scalar (MIT)",
        "ReDoc (MIT)",
        "what these three are built of, each file's head",
    ),
    "playwright": (
        "Node.js (MIT), with its file `LICENSE`",
        "the driver's packages of npm, with `ThirdPartyNotices.txt`",
    ),
    "psycopg-binary": (
        "libpq (PostgreSQL)",
        "OpenSSL (Apache-2.0)",
        "Kerberos (MIT)",
        "OpenLDAP (OLDAP-2.8)",
        "Cyrus SASL (BSD-4-Clause)",
        "keyutils and libcrypt (LGPL-2.1-or-later)",
    ),
    "pyspark": ("the jars of Apache Spark, with its files `LICENSE` and `NOTICE`",),
}
"""Package -> what its wheel carries that is somebody else's."""


class Unknown(Exception):
    """A package does not say its licence."""


@dataclass(frozen=True)
class Row:
    """One package."""

    name: str
    versions: tuple[str, ...]
    licence: str
    """An expression of SPDX."""
    used_by: tuple[str, ...]
    """``service``, or the extras that bring it, or ``tests``."""

    @property
    def given(self) -> bool:
        """Whether users of the gateway get it."""
        return self.used_by != (TESTS,)

    @property
    def taken(self) -> bool:
        """Whether we may use it."""
        return allows(self.licence, {*TAKEN, *TOGETHER.get(self.name, ())[:1]})


def lock() -> Mapping[str, list[dict[str, Any]]]:
    """Name -> its packages in the lock: more than one where Pythons or systems differ."""
    found: dict[str, list[dict[str, Any]]] = {}
    for package in tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]:
        found.setdefault(package["name"], []).append(package)
    return found


def closure(wanted: Iterable[Mapping[str, Any]]) -> set[str]:
    """What dependencies bring along, themselves included, on any system and any Python."""
    packages = lock()
    seen: set[tuple[str, str]] = set()
    waiting = _with_extras(wanted)
    while waiting:
        name, extra = key = waiting.pop()
        if key in seen:
            continue
        seen.add(key)
        for package in packages[name]:
            brought = (
                package.get("optional-dependencies", {}).get(extra, ()) if extra else package.get("dependencies", ())
            )
            waiting += _with_extras(brought)
    return {name for name, _ in seen} - {OURS}


def _with_extras(wanted: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(each["name"], extra) for each in wanted for extra in ("", *each.get("extra", ()))]


def parts() -> Mapping[str, set[str]]:
    """``service``, each extra, each group of tools -> the names of all packages in it."""
    (ours,) = lock()[OURS]
    return {
        SERVICE: closure(ours["dependencies"]),
        **{name: closure(found) for name, found in ours["optional-dependencies"].items()},
        **{f"group {name}": closure(found) for name, found in ours["dev-dependencies"].items()},
    }


def licence_of(name: str) -> str:
    """What a package says of itself, as an expression of SPDX.

    Raises:
        Unknown: nothing, or words that are in no table here; or it is not installed.
    """
    if name in STATED:
        return STATED[name]
    try:
        found = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        raise Unknown(f"{name} is not installed: make test installs it; or say its licence in STATED") from None
    classifiers = [text.rpartition(" :: ")[2] for text in found.get_all("Classifier") or () if "License ::" in text]
    said = found.get("License-Expression") or (found.get("License") or "").strip().partition("\n")[0].strip()
    said = said or (classifiers[0] if len(classifiers) == 1 else "")
    said = SPELLED.get(said, said)
    if not re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR) [A-Za-z0-9.+-]+)*", said):
        raise Unknown(f"{name} says {said or 'nothing'!r}: put it into SPELLED or STATED")
    return said


def allows(expression: str, taken: Iterable[str]) -> bool:
    """Whether licences that are taken are enough for an expression: AND needs all, OR one; AND binds more strongly."""
    ids = set(taken)
    return any(all(name in ids for name in each.split(" AND ")) for each in expression.split(" OR "))


def rows() -> list[Row]:
    """Every package of the lock but ours, in the order of names.

    Raises:
        Unknown: the licence of one is not known.
    """
    found = []
    by_part = parts()
    for name, packages in sorted(lock().items()):
        if name == OURS:
            continue
        used_by = tuple(part for part, names in by_part.items() if name in names)
        extras = tuple(part for part in used_by if not part.startswith("group "))
        used_by = (SERVICE,) if SERVICE in extras else extras or (TESTS,)
        found.append(Row(name, tuple(package["version"] for package in packages), licence_of(name), used_by))
    return found


def texts(found: Iterable[Row]) -> Iterator[str]:
    """The licences' texts and notices of what is given away, as the packages have them."""
    for row in found:
        if not row.given:
            continue
        yield f"{'=' * 100}\n{row.name} {', '.join(row.versions)}: {row.licence}\n{'=' * 100}\n"
        files = metadata.files(row.name) or ()
        for file in files:
            if ".dist-info/" in str(file) and re.search(r"licen[cs]e|notice|copying", file.name, re.IGNORECASE):
                path = Path(str(file.locate()))
                if path.is_file():
                    yield path.read_text(encoding="utf-8", errors="replace").strip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status: 1 where a licence is not taken, 2 where one is not known."""
    parser = argparse.ArgumentParser(description="The licence of every locked package, and whether we take it.")
    parser.add_argument("--texts", metavar="FILE", type=Path, help="write the licences' texts into this file")
    options = parser.parse_args(arguments)
    try:
        found = rows()
    except Unknown as error:
        sys.stderr.write(f"licences.py: {error}\n")
        return 2
    for row in found:
        sys.stdout.write(f"{row.name:<32}{row.licence:<56}{', '.join(row.used_by)}\n")
    refused = [row for row in found if not row.taken]
    for row in refused:
        sys.stderr.write(f"licences.py: {row.name}: {row.licence} is not taken\n")
    if options.texts is not None:
        options.texts.parent.mkdir(parents=True, exist_ok=True)
        options.texts.write_text("\n".join(texts(found)), encoding="utf-8")
    sys.stderr.write(f"licences.py: {len(found)} packages, {len(refused)} refused\n")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
