"""What is left of a ledger after a loss of power, beside what was promised before it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.config import LedgerSettings
from gateway.core.work.auditor import Auditor
from gateway.errors import BackupRefused, GatewayError
from gateway.ledger import Ledger
from gateway.ledger.backups import check_version, read_info, unpack
from gateway.ledger.db.schema import HEAD
from gateway.observing.telemetry import Metrics
from gateway.runtime import replaced
from gateway.runtime.clock import clock
from tests.powerloss.recording import Step
from tests.powerloss.work import BACKUP, KEY_FILES, LEDGER, Facts, short

NEVER: Final = 1 << 62
SOON: Final = 60_000_000
"""Microseconds: what is due later than that after it came was scheduled."""
KINDS: Final = (
    "outbox", "event", "key", "owed", "delivery", "inbox", "spooled", "cursor", "resource", "branch", "audit",
)  # fmt: skip
"""First words of the facts that are read from the tables."""


@dataclass
class Promises:
    """What was promised up to a step, and what is under way."""

    facts: Facts = field(default_factory=dict)
    under_way: dict[int, tuple[Facts, bool]] = field(default_factory=dict)
    """The number of an operation: what facts may become, and whether they all do at once."""

    def take(self, step: Step) -> None:
        """A mark."""
        said = json.loads(step.data)
        if "begin" in said:
            self.under_way[said["begin"]] = (said["may"], said["whole"])
        else:
            self.facts |= said["facts"]
            self.under_way.pop(said["done"], None)

    def compare(self, found: Facts) -> Iterator[str]:
        """What is not as it was promised. ``found`` has no facts with the value None."""
        may: dict[str, list[Any]] = {}
        for facts, _ in self.under_way.values():
            for name, value in facts.items():
                may.setdefault(name, []).append(value)
        for name in sorted({*self.facts, *may, *found}):
            if name.split()[0] not in KINDS:
                continue
            allowed = [self.facts.get(name), *may.get(name, ())]
            if found.get(name) not in allowed:
                yield f"{name} is {found.get(name)}, and must be one of {allowed}"
        for number, (facts, is_whole) in self.under_way.items():
            known = [name for name in facts if name.split()[0] in KINDS and facts[name] != self.facts.get(name)]
            there = {name for name in known if found.get(name) == facts[name]}
            if is_whole and there and len(there) < len(known):
                yield f"operation {number} is there in part: {sorted(there)}, and not {sorted(set(known) - there)}"


def read(path: Path) -> Facts:
    """The facts of a ledger that is open or closed."""
    facts: Facts = {}
    with closing(sqlite3.connect(path)) as database:
        if (says := database.execute("PRAGMA integrity_check(3)").fetchall()) != [("ok",)]:
            raise sqlite3.DatabaseError(f"integrity_check: {says}")
        for message_id, attempt, due_at, at, payload in database.execute(
            "SELECT message_id, attempt, due_at, at, payload FROM outbox"
        ):
            state = "dead" if due_at == NEVER else "later" if due_at > at + SOON else "due"
            facts[f"outbox {message_id.hex()}"] = [attempt, state, short(payload)]
        count = Counter[str]()
        for message_id, kind in database.execute("SELECT message_id, kind FROM events"):
            count[f"event {message_id.hex()} {kind}"] += 1
        facts |= count
        for key, status, answer, body in database.execute(
            "SELECT key, status, answer_status, answer_body FROM idempotency_keys"
        ):
            facts[f"key {key.decode()}"] = [status, answer, short(body) if status == "done" else ""]
        for message_id, status, payload in database.execute("SELECT message_id, status, payload FROM obligations"):
            facts[f"owed {message_id.hex()}"] = [status, short(payload)]
        for subscription, delivery, message, status, lease, attempt, payload in database.execute(
            "SELECT subscription, id, message_id, status, lease, attempt, payload FROM deliveries LEFT JOIN bodies"
            " USING (message_id, digest)"
        ):
            name = f"delivery {subscription.decode()} {delivery.hex()} {message.hex()}"
            facts[name] = [status, lease, attempt, "no body" if payload is None else short(payload)]
        for (message_id,) in database.execute("SELECT message_id FROM inbox"):
            facts[f"inbox {message_id.hex()}"] = message_id.hex()
        for message_id, body in database.execute("SELECT message_id, body FROM message_log"):
            facts[f"spooled {message_id.hex()}"] = short(body)
        for name, epoch, position in database.execute("SELECT name, epoch, position FROM log_cursors"):
            facts[f"cursor {name}"] = [epoch, json.loads(position)]
        for name, spec in database.execute("SELECT name, spec FROM resources WHERE kind = 'test'"):
            facts[f"resource {name.decode()}"] = short(json.dumps(json.loads(spec), sort_keys=True).encode())
        for branch, status in database.execute("SELECT id, status FROM branches"):
            facts[f"branch {branch.hex()}"] = status
        rows = database.execute("SELECT count(*), coalesce(max(sequence), 0) FROM audit_log").fetchone()
        if rows[0]:
            facts["audit"] = rows[0]
        gaps = database.execute(
            "SELECT shard, count(*), max(sequence) FROM events GROUP BY shard HAVING count(*) <> max(sequence)"
        ).fetchall()
        if gaps:
            raise AssertionError(f"numbers of events are missing: {gaps}")
    return facts


async def problems(folder: Path, promised: Promises) -> list[str]:
    """Start on what is left below ``folder``, as the gateway starts, and say what is wrong with it."""
    path = folder / LEDGER
    found = list[str]()
    settings = LedgerSettings(shard_lease=60.0)
    try:
        ledger = await Ledger.open(f"sqlite:///{path}", settings, owner="judge", migrate=True)
    except GatewayError as error:
        return [f"it does not start: {error}"]
    try:
        facts = await asyncio.to_thread(read, path)
        found += promised.compare(facts)
        if facts.get("schema", HEAD) != HEAD:
            found.append("its tables are not of this release")
        found += [f"lost, by its own audit: {each}" for each in await _audited(ledger)]
    except (GatewayError, sqlite3.Error, AssertionError) as error:
        found.append(f"it is not sound: {error}")
    finally:
        await ledger.close()
    return found + list(_keys(folder, promised)) + list(_backup(folder, promised))


async def _audited(ledger: Ledger) -> list[Any]:
    """What the gateway's own audit of promises finds."""

    async def at_once(_: float) -> None:
        pass

    auditor = Auditor(ledger, Metrics("test"))
    with replaced(clock, sleep=at_once):
        await auditor.through()
    return sorted(auditor.found)


def _keys(folder: Path, promised: Promises) -> Iterator[str]:
    """What is wrong with the files of keys."""
    for name, load in KEY_FILES.items():
        path = (folder / LEDGER).with_name(name)
        try:
            load(path)
        except GatewayError as error:
            yield f"it does not start: {error}"
        else:
            if promised.facts.get(f"file {name}", found := short(path.read_bytes())) != found:
                yield f"{name} is another one"


def _backup(folder: Path, promised: Promises) -> Iterator[str]:
    """What is wrong with the backup."""
    path, unpacked = folder / BACKUP, folder / "unpacked"
    try:
        info = read_info(path)
        check_version(path, info)
        unpack(path, info, unpacked)
    except (FileNotFoundError, NotADirectoryError):
        if promised.facts.get("backup"):
            yield "the backup is gone"
    except BackupRefused as error:
        yield f"the backup: {error}"
    finally:
        with suppress(FileNotFoundError):
            unpacked.unlink()
