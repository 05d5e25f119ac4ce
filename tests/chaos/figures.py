"""What a part of an experiment found: one line of the table, and the JSON that ``RELIABILITY.md`` is written from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tests.servers.process import ROOT

RUNS: Final = Path(__file__).parent / "runs"
"""Where the JSON of kept runs is."""


class Form(StrEnum):
    """How much of an experiment is run."""

    QUICK = "quick"
    FULL = "full"


@dataclass
class Figures:
    """What one part found. Where an experiment is not about messages that somebody promised to keep, ``unit`` says what
    ``attempted`` counts, ``unexpected`` are those that did not end as they must, and what has no meaning is None."""

    what: str
    """The part: a row and its broker, a scenario."""
    attempted: int = 0
    acknowledged: int | None = None
    lost: int | None = None
    unexpected: int = 0
    duplicated: int | None = None
    recovered: int | None = None
    unit: str = "messages"
    extra: dict[str, Any] = field(default_factory=dict)
    """Figures of the experiment's own."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    """Whatever must not be; empty: it passed."""

    def must(self, condition: bool, text: str) -> None:
        """A check: where it does not hold, the part has failed."""
        if not condition:
            self.problems.append(text)

    @property
    def passed(self) -> bool:
        """Nothing was lost, nothing came that nobody sent, and all else held that must."""
        return not (self.problems or self.lost or self.unexpected)


@dataclass
class Line:
    """One line: an experiment, a part, and how it was run."""

    experiment: str
    form: Form
    seed: int
    at: str
    """When it began: UTC, ISO 8601, to the minute."""
    command: str
    machine: str
    figures: Figures
    code: str = ""
    """The commit that was run; empty: it was not recorded."""

    @property
    def size(self) -> str:
        """Its form; or ``reduced``, where that is the full one with numbers of its own."""
        own = "--messages" in self.command or "--times" in self.command
        return "reduced" if self.form is Form.FULL and own else self.form.value

    def cells(self) -> tuple[str, ...]:
        """For :data:`COLUMNS`."""
        found = self.figures
        numbers = (found.acknowledged, found.lost, found.unexpected, found.duplicated, found.recovered)
        unit = "" if found.unit == "messages" else f" {found.unit}"
        said = shown(found.extra)
        if not found.passed:
            said = "; ".join(["FAILED", *(problem.partition("\n")[0][:120] for problem in found.problems), said])
        return (
            self.experiment,
            found.what,
            f"{found.attempted:,}{unit}",
            *("–" if number is None else f"{number:,}" for number in numbers),
            str(self.seed),
            said.strip("; "),
            f"{found.seconds:,.0f}",
        )


COLUMNS: Final = (
    "",
    "what",
    "N",
    "acknowledged",
    "lost",
    "unexpected",
    "duplicated",
    "recovered",
    "seed",
    "figures",
    "seconds",
)
LEFT: Final = (0, 1, 9)
"""Columns of text."""


def shown(extra: Mapping[str, Any]) -> str:
    """Figures of an experiment's own, in one line."""
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in extra.items())


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value).replace("|", "/").replace("\n", " ")


def table(lines: Iterable[Sequence[str]], columns: Sequence[str] = COLUMNS, left: Sequence[int] = LEFT) -> str:
    """Lines under their heads, as a Markdown table that can be read as it is."""
    rows = [columns, *lines]
    widths = [max(3, *(len(row[number]) for row in rows)) for number in range(len(columns))]
    rule = ["-" * width if number in left else "-" * (width - 1) + ":" for number, width in enumerate(widths)]
    padded = [
        [
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])


def now() -> str:
    """The time, as a line has it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M}"


def machine() -> str:
    """What it runs on: processors, how busy they are, system and Python."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores, load {load:.0f}, {platform.system()}, Python {platform.python_version()}"


def code() -> str:
    """The commit that is run, with ``-dirty`` behind it where files differ from it; empty: nobody can tell."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip()


# ------------------------------------------------------------------------------------------------------- JSON


def path_of(folder: Path, experiment: str, form: Form) -> Path:
    """The file of an experiment in one form."""
    return folder / f"{experiment}-{form}.json"


def keep(folder: Path, lines: Sequence[Line]) -> None:
    """Write the lines of runs. A part that was kept before is replaced; other parts of the experiment stay."""
    folder.mkdir(parents=True, exist_ok=True)
    for experiment, form in sorted({(line.experiment, line.form) for line in lines}):
        path = path_of(folder, experiment, form)
        new = [line for line in lines if (line.experiment, line.form) == (experiment, form)]
        names = {line.figures.what for line in new}
        kept = [line for line in load(path) if line.figures.what not in names] if path.exists() else []
        texts = [json.dumps(asdict(line), ensure_ascii=False, default=str) for line in (*kept, *new)]
        path.write_text("[\n" + ",\n".join(texts) + "\n]\n", encoding="utf-8")


def load(path: Path) -> list[Line]:
    """The lines of a file."""
    return [
        Line(**{**entry, "form": Form(entry["form"]), "figures": Figures(**entry["figures"])})
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]


def load_all(folder: Path = RUNS) -> list[Line]:
    """The lines of all files, by experiment, the full form first."""
    return [line for path in sorted(folder.glob("F*.json")) for line in load(path)]
