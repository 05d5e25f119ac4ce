"""What an examination finds.

:data:`CHECKS` is the table of everything that is looked at. A :class:`Finding` belongs to one row of it and says what
is so, where, why that matters, and what to do. :class:`Report` collects them, and is the one place where texts become
printable: what a broker or a database said may hold anything, and no secret of the configuration goes out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from gateway.exits import DAMAGED, DONE, FAILED, FULL, MISSING, NOT_FOUND, REFUSED, UNREACHABLE, USAGE
from gateway.terminal import printable

FORM: Final = 1
"""Of ``--json``; it grows when a field changes its meaning or goes."""
SECRET_MIN: Final = 4
"""Shortest secret that is looked for in texts, in characters: a shorter one is in every other word."""
HIDDEN: Final = "***"
TEXT_MAX: Final = 600
"""Longest text of a finding, in characters."""


class Severity(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but somebody should know."""
    FAIL = "fail"
    """It does not work, or will not start."""


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    looks_at: str
    exit: int
    """The exit status where it fails."""


CHECKS: Final[Mapping[str, Check]] = {
    "config.file": Check("the file is there, can be read, and is TOML (JSON where its name ends so)", USAGE),
    "config.unknown": Check("every name in it is a setting; else the nearest one is named", USAGE),
    "config.value": Check("every value fits its setting", USAGE),
    "config.variable": Check("variables that begin with `GATEWAY_`: known, with a value that fits", USAGE),
    "config.rule": Check("what only all settings together tell: names that others refer to, roles, selectors", USAGE),
    "config.rights": Check("a file with secrets in it is not for everybody to read", FAILED),
    "access.callers": Check("who may call, and from where: keys, loopback, TLS", USAGE),
    "access.keys": Check("API keys and certificates of callers: their files, digests and scopes", USAGE),
    "access.embedded": Check("who can log in at the embedded broker from another machine", USAGE),
    "access.fronts": Check("fronts: whether passwords and messages travel in clear, and who may do everything", USAGE),
    "access.tokens": Check("the issuer's set of keys (JWKS) can be had, and has keys that we can use", UNREACHABLE),
    "access.budgets": Check("budgets: shares that make sense; how close a gateway that runs is to them", FAILED),
    "files.data_dir": Check("the data folder can be written, and nobody else reads it", REFUSED),
    "files.space": Check("room on the disk of data folder and ledger", FULL),
    "files.secret": Check("files that hold a secret are there, hold one, and are for their owner alone", USAGE),
    "files.certificate": Check("our own certificates and keys: they fit, and have not expired", REFUSED),
    "system.files": Check("how many files and connections the process may have open", FAILED),
    "system.zone": Check("the time zone is one, and the clock is not years off", FAILED),
    "listen.port": Check("each port is free, or a gateway that runs has it", REFUSED),
    "ledger.address": Check("`ledger.url` is one, and its host has an address", UNREACHABLE),
    "ledger.reach": Check("the database answers and lets us in", UNREACHABLE),
    "ledger.schema": Check("its tables are those of this release", DAMAGED),
    "ledger.write": Check("it can be written: rights, read-only servers, filesystem", REFUSED),
    "ledger.content": Check("with `--deep`: every row of a ledger on SQLite is what was written", DAMAGED),
    "ledger.clock": Check("its clock and this machine's agree", FAILED),
    "ledger.processes": Check("which gateways work on it, and whether one more can", FAILED),
    "ledger.partitions": Check("there are partitions for today and tomorrow, and we may make more", REFUSED),
    "ledger.resources": Check("the brokers that its subscriptions, bridges and taps name are configured", FAILED),
    "ledger.waiting": Check("no message of a pushed subscription waits after an attempt that failed", FAILED),
    "ledger.durable": Check("what it commits survives a loss of power", FAILED),
    "broker.settings": Check("URL, password file and mechanisms can be used", USAGE),
    "broker.management": Check("its management API, where one is set, takes the login and lists queues", UNREACHABLE),
    "broker.dns": Check("its host has an address", UNREACHABLE),
    "broker.tcp": Check("somebody listens there", UNREACHABLE),
    "broker.certificate": Check(
        "its certificate: dates, names, authority; and the gateway's, where it wants one", REFUSED
    ),
    "broker.protocol": Check("it speaks the version that the URL says", UNREACHABLE),
    "broker.login": Check("it takes the login", REFUSED),
    "broker.clients": Check("what old clients can no longer do on a broker of its product and version", FAILED),
    "broker.fronts": Check("what a front rewrites for old clients of a broker, by its product and version", FAILED),
    "broker.vhost": Check("the virtual host exists, and the login may use it", REFUSED),
    "broker.publish": Check("the login may publish to each exchange that the configuration names", REFUSED),
    "broker.blocked": Check("it takes publishes now: no alarm for memory or disk", UNREACHABLE),
    "broker.exchange": Check("exchanges that the configuration names are there", NOT_FOUND),
    "broker.queue": Check("queues that the configuration names are there", NOT_FOUND),
    "broker.read": Check("the login may read from them (RabbitMQ, 0-9-1)", REFUSED),
    "outbound.rules": Check("the guard of outbound requests lets nobody into places that nobody means", FAILED),
    "outbound.endpoint": Check("the guard allows each endpoint of the file, and it can be reached", UNREACHABLE),
    "fault": Check("that the doctor itself comes to an end", FAILED),
    "pipeline": Check("with `--pipeline`: what `gateway pipeline doctor` looks at", MISSING),
}
"""Name -> what it looks at; in the order in which what is wrong should be put right."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found."""

    check: str
    severity: Severity
    where: str
    """The setting, file, broker or address."""
    what: str
    why: str = ""
    """Why that matters, or how it is known."""
    do: str = ""
    """What to do about it."""
    exit: int = DONE
    """The exit status that it asks for; DONE unless it is a failure."""

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        return {
            "check": self.check,
            "severity": self.severity.value,
            "where": self.where,
            "what": self.what,
            "why": self.why,
            "do": self.do,
        }


class Report:
    """The findings of a run, in their order."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.findings: list[Finding] = []
        self._secrets: set[str] = set(secrets)

    def hide(self, secrets: Iterable[str], *, public: Iterable[str] = ()) -> None:
        """Never show these. ``public``: names that are shown although a secret is the same."""
        found = {secret for secret in secrets if len(secret) >= SECRET_MIN}
        self._secrets |= found - set(public)

    def ok(self, check: str, where: str, what: str) -> None:
        """All is well."""
        self._add(check, Severity.OK, where, what)

    def warn(self, check: str, where: str, what: str, *, why: str = "", do: str) -> None:
        """It works, but."""
        self._add(check, Severity.WARN, where, what, why, do)

    def fail(self, check: str, where: str, what: str, *, why: str = "", do: str, status: int | None = None) -> None:
        """It does not work. ``status``: the exit status, where it is not the check's."""
        self._add(check, Severity.FAIL, where, what, why, do, CHECKS[check].exit if status is None else status)

    def part(self) -> Report:
        """An empty one that hides the same, for :meth:`take`: for what is looked at beside other things."""
        return Report(self._secrets)

    def take(self, other: Report) -> None:
        """Append what another one found."""
        self._secrets |= other._secrets
        self.findings += [self._cleaned(finding) for finding in other.findings]

    def counts(self) -> Mapping[Severity, int]:
        """How many of each."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity: found[severity] for severity in Severity}

    def exit(self, *, strict: bool = False) -> int:
        """The exit status: that of the first failure; ``strict``: a warning counts as one."""
        for finding in self.findings:
            if finding.severity is Severity.FAIL:
                return finding.exit
        return FAILED if strict and self.counts()[Severity.WARN] else DONE

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` shows it."""
        counts = self.counts()
        worst = next(severity for severity in reversed(Severity) if counts[severity] or severity is Severity.OK)
        return {
            "form": FORM,
            "result": worst.value,
            **{severity.value: counts[severity] for severity in Severity},
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def _add(
        self, check: str, severity: Severity, where: str, what: str, why: str = "", do: str = "", status: int = DONE
    ) -> None:
        assert check in CHECKS, check
        self.findings.append(self._cleaned(Finding(check, severity, where, what, why, do, status)))

    def _cleaned(self, finding: Finding) -> Finding:
        clean = self._clean
        where, what, why, do = clean(finding.where), clean(finding.what), clean(finding.why), clean(finding.do)
        return Finding(finding.check, finding.severity, where, what, why, do, finding.exit)

    def _clean(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = printable(" ".join(text.split()))
        return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
