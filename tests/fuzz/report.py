"""What a run has seen, added up over its processes, and how it is printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz.oracle import Case, Verdict


@dataclass
class Report:
    """The sums of a run."""

    cases: int = 0
    octets: int = 0
    seconds: float = 0.0
    """CPU time inside the cases."""
    by: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(what, which) -> cases: generators, targets, versions and roles, states."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(target, how it ended) -> cases."""
    slowest: tuple[float, int] = (0.0, -1)
    """CPU time and number of the slowest case."""
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    """Number, file and first line of what broke."""
    rss: list[tuple[int, int]] = field(default_factory=list)
    """Resident memory of each process when it began and when it ended, in KiB."""

    def add(self, number: int, generator: str, case: Case, verdict: Verdict) -> None:
        """One case ended as it should."""
        self.note(generator, case)
        self.seconds += verdict.seconds
        self.ended[case.target, verdict.ended] += 1
        self.slowest = max(self.slowest, (verdict.seconds, number))

    def note(self, generator: str, case: Case) -> None:
        """One case was played."""
        self.cases += 1
        self.octets += case.size
        self.by["generator", generator] += 1
        self.by["target", case.target] += 1
        self.by["version and role", f"{case.version.value} {case.role.value}"] += 1

    def merge(self, other: Report) -> None:
        """Add what another process has seen."""
        self.cases += other.cases
        self.octets += other.octets
        self.seconds += other.seconds
        self.by += other.by
        self.ended += other.ended
        self.slowest = max(self.slowest, other.slowest)
        self.failures += other.failures
        self.rss += other.rss

    def __str__(self) -> str:
        lines = [f"{self.cases:,} cases, {self.octets / 1e6:,.1f} MB, {self.seconds:,.0f} s of CPU time in them", ""]
        for what in ("generator", "target", "version and role"):
            counts = sorted((which, count) for (kind, which), count in self.by.items() if kind == what)
            lines.append(f"by {what}: " + ", ".join(f"{which} {count:,}" for which, count in counts))
        lines.append("")
        for target in sorted({target for target, _ in self.ended}):
            counts = sorted(
                ((how, count) for (kind, how), count in self.ended.items() if kind == target),
                key=lambda pair: -pair[1],
            )
            told, rest = counts[:24], counts[24:]
            said = ", ".join(f"{how} {count:,}" for how, count in told)
            more = f", {sum(count for _, count in rest):,} in {len(rest)} other ways" if rest else ""
            lines.append(f"{target} ended: {said}{more}")
        lines.append("")
        seconds, number = self.slowest
        lines.append(f"slowest case: {seconds * 1000:.0f} ms of CPU time (number {number})")
        for begin, end in self.rss:
            lines.append(
                f"resident memory of a process: {begin / 1024:.1f} MiB at the start, {end / 1024:.1f} at the end"
            )
        lines.append(f"failures: {len(self.failures)}")
        for number, path, why in self.failures[:20]:
            lines.append(f"  case {number}: {why}\n    repeat it: python -m tests.fuzz --case {path}")
        return "\n".join(lines)
