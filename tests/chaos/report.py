"""``RELIABILITY.md``, written from the JSON of runs: nothing in it is written by hand but the words of this module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.chaos import memory
from tests.chaos.figures import Form, Line, shown, table
from tests.chaos.parts import Experiment
from tests.chaos.table import EXPERIMENTS
from tests.servers.process import ROOT

PATH: Final = ROOT / "RELIABILITY.md"

HEAD: Final = """\
# Reliability report

**A message for which the gateway answered 2xx, or which it acknowledged to its source, is not lost while the disks of
the broker and of the ledger survive. Duplicates may happen; they are marked, and counted.** This page says what was
done to gateway, brokers, ledgers and networks to see whether that holds, and what came of it. It is written by
`python -m tests.chaos report` from the results of runs (`tests/chaos/runs`), and by nobody's hand. How a run is judged,
and what the rows do, is in [docs/explanation/reliability.md](docs/explanation/reliability.md).

```
make chaos                                    the quick form of all {count} experiments
make chaos CHAOS="F01 F18" FORM=--full        the full form of two of them
python -m tests.chaos --help                  seeds, brokers, parts, how much and how often
```

*N* counts messages, unless a word behind it says what else. *Acknowledged* is what the gateway, or a broker to which it
was published directly, took with a 2xx or a confirm; *lost* was acknowledged and never came; *unexpected* came and was
never sent, was refused for good, or, where N does not count messages, did not end as it must; *duplicated* came more
often than it was sent; *recovered* came though its outcome was unknown; "–" has no meaning there. A run of which the
drain did not come to its end has failed.

*Full* is the form with the numbers of the experiment; *reduced* is that form with fewer messages or faults, as its
command says; *quick* is the form in which `make test` has it; tests that are run by their names are the same in both.
Each line says which it is. Seconds say little of speed: the machine did other work at the same time (*load* is the load
average when a run began).
"""


def render(lines: Sequence[Line]) -> str:
    """The page."""
    by_id: dict[str, list[Line]] = {each.id: [] for each in EXPERIMENTS}
    for line in lines:
        by_id[line.experiment].append(line)
    parts = [HEAD.format(count=len(EXPERIMENTS)), _summary(by_id), _all(by_id), _tests(), _gaps(by_id)]
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _shown_of(lines: Iterable[Line]) -> list[Line]:
    """Of each part the full form where it was run, else the quick one."""
    found: dict[str, Line] = {}
    for line in lines:
        before = found.get(line.figures.what)
        if before is None or (before.form is Form.QUICK and line.form is Form.FULL):
            found[line.figures.what] = line
    return sorted(found.values(), key=lambda line: line.form is Form.QUICK)


def _summary(by_id: Mapping[str, Sequence[Line]]) -> str:
    """A line for each experiment: the sums over its runs."""
    rows = []
    for experiment in EXPERIMENTS:
        lines = _shown_of(by_id[experiment.id])
        full = sum(line.size == Form.FULL for line in lines)
        failed = sum(not line.figures.passed for line in lines)
        result = "not run" if not lines else "passed" if not failed else f"{failed} FAILED"
        sums = [
            sum(getattr(line.figures, name) or 0 for line in lines if line.figures.unit == "messages")
            for name in ("attempted", "acknowledged", "lost", "unexpected", "duplicated", "recovered")
        ]
        cases = sum(line.figures.attempted for line in lines if line.figures.unit != "messages")
        sums[3] += sum(line.figures.unexpected for line in lines if line.figures.unit != "messages")
        rows.append(
            (
                f"[{experiment.id}](#{experiment.id.lower()})",
                experiment.title,
                f"{full} of {len(lines)}",
                *(f"{number:,}" for number in sums),
                f"{cases:,}",
                result,
            )
        )
    columns = (
        "", "experiment", "full runs", "messages", "acknowledged", "lost", "unexpected", "duplicated", "recovered",
        "cases", "result",
    )  # fmt: skip
    return "## All experiments\n\n" + table(rows, columns, (0, 1, 10)) + "\n"


def _all(by_id: Mapping[str, Sequence[Line]]) -> str:
    """Every experiment with its runs."""
    texts = ["## What was done, and what came of it\n"]
    for experiment in EXPERIMENTS:
        lines = _shown_of(by_id[experiment.id])
        texts.append(f'<a id="{experiment.id.lower()}"></a>\n\n### {experiment.id}: {experiment.title}\n')
        texts.append(f"Besides lost 0 and unexpected 0: {experiment.must}.\n")
        if not lines:
            texts.append("Not run.\n")
            continue
        rows = []
        for line in lines:
            cells = line.cells()
            rows.append((cells[1], line.size, *cells[2:9], cells[10], line.at))
        columns = (
            "what", "form", "N", "acknowledged", "lost", "unexpected", "duplicated", "recovered", "seed", "seconds",
            "date (UTC)",
        )  # fmt: skip
        texts.append(table(rows, columns, (0, 1)) + "\n")
        notes = [
            f"* {line.figures.what}: {_said(line)}" for line in lines if line.figures.extra or not line.figures.passed
        ]
        if notes:
            texts.append("\n".join(notes) + "\n")
        commands = dict.fromkeys(
            f"{line.command}    # {line.machine}{f', commit {line.code}' if line.code else ''}" for line in lines
        )
        texts.append("```\n" + "\n".join(commands) + "\n```\n")
    return "\n".join(texts)


def _said(line: Line) -> str:
    """Figures of the run's own, and why it failed."""
    parts = [] if line.figures.passed else ["**FAILED**"]
    parts += [problem.partition("\n")[0][:300] for problem in line.figures.problems[:3]]
    parts += [shown(line.figures.extra)] if line.figures.extra else []
    return "; ".join(parts)


def _tests() -> str:
    """Which tests are the quick forms."""
    texts = [
        "## Quick forms in `make test`\n",
        "Each experiment's quick form is these tests; nothing runs twice.\n",
    ]
    texts += [f"* {each.id}: " + ", ".join(f"`{name}`" for name in files(each)) for each in EXPERIMENTS]
    return "\n".join(texts) + "\n"


def files(experiment: Experiment) -> list[str]:
    """Where the tests of its quick form are, and how many are named there."""
    found: dict[str, int] = {}
    for test in experiment.tests:
        name = test.partition("::")[0]
        found[name] = found.get(name, 0) + ("::" in test)
    return [f"{name} ({number})" if number else name for name, number in found.items()]


def _gaps(by_id: Mapping[str, Sequence[Line]]) -> str:
    """What was not run, in so many words."""
    quick = [
        experiment.id for experiment in EXPERIMENTS if not any(line.form is Form.FULL for line in by_id[experiment.id])
    ]
    failed = [line for lines in by_id.values() for line in _shown_of(lines) if not line.figures.passed]
    texts = ["## What this does not show\n"]
    if any(not line.code for lines in by_id.values() for line in lines):
        texts.append("* Where no commit stands behind a command, it was not recorded: that was earlier code.")
    if quick:
        texts.append(f"* Run in the quick form only: {', '.join(quick)}.")
    texts += [f"* Failed: {line.experiment} {line.figures.what} ({line.form})." for line in failed]
    for experiment in EXPERIMENTS:
        seen = [line.figures.what for line in by_id[experiment.id]]
        only_full = [part.name for part in experiment.parts if Form.QUICK not in part.forms]
        missing = [name for name in only_full if not any(name in what for what in seen)]
        texts += [f"* {experiment.id}, not run: {name}." for name in missing]
        texts += [f"* {experiment.id}: {experiment.short}."] if experiment.short else []
    minutes = sum(len(life.points) for life in memory.load(memory.LIVES))
    texts.append(f"* F34 asks for 100 minutes of real time; processes of {minutes} minutes were watched.")
    return "\n".join(texts) + "\n"
