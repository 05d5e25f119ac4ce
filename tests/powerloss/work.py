"""Real work on a ledger, which says what it was promised.

::

    python -m tests.powerloss.work FOLDER STATE SEED OPERATIONS [DEFECT]

A *fact* is something that a reader of the ledger can see, by a name: what the outbox has of a message, an event, a
delivery, the answer under a key. Before an operation a mark says what each fact may become, and behind it what it is.
So after a loss of power each fact must be what its last acknowledged operation made it, or what one that was under
way makes it.

``FOLDER`` is recorded. ``STATE`` keeps the facts for the next process, which goes on where this one was ended: without
closing the ledger, unless the seed says so.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from gateway.config import LedgerSettings, RetentionSettings
from gateway.core.leasing.ack_ids import load_key
from gateway.durable import flush
from gateway.ledger import (
    BacklogSettlement,
    Ending,
    EventKind,
    InboxRow,
    Ledger,
    LogEntry,
    MessageIds,
    NewMessage,
    OutboxEntry,
    Owed,
)
from gateway.ledger.backups import back_up
from gateway.ledger.db import commit_count, engine, schema
from gateway.ledger.db.engine import Database
from gateway.ledger.logs.logged import Spooled
from gateway.logs import Log
from gateway.runtime.clock import wall_time
from gateway.webhooks.settings.secrets import load_seals
from tests.powerloss.recording import mark

BROKER = "rabbit"
SUBSCRIPTIONS = ("billing", "audit", "mail")
LEASE = 36_000.0
"""Seconds of a lease: none ends while the work goes on."""
LEDGER = "data/ledger.db"
BACKUP = "backup/ledger.backup"
FIRST_SCHEMA = 5
"""The first process makes tables of this revision, and brings them up to date one by one."""

SAYS = {
    Ending.DONE: EventKind.ACKNOWLEDGED, Ending.PURGE: EventKind.PURGED, Ending.DISCARD: EventKind.DISCARDED,
    Ending.DEAD: EventKind.DEAD, Ending.REVIVE: EventKind.REVIVED,
}  # fmt: skip
"""The event of each ending."""

KEY_FILES: dict[str, Callable[[Path], Any]] = {
    "secrets.key": lambda path: load_seals("", path), "ack-ids.key": load_key
}  # fmt: skip
"""Files of keys, and what makes one where it is missing."""

Facts = dict[str, Any]


def short(octets: bytes) -> str:
    """What stands for octets in a fact."""
    return sha256(octets).hexdigest()[:12]


class Work:
    """The operations, and the facts so far."""

    def __init__(self, folder: Path, chance: random.Random, state: dict[str, Any]) -> None:
        self.path = folder / LEDGER
        self.backup = folder / BACKUP
        self.url = f"sqlite:///{self.path}"
        self.chance = chance
        self.facts: Facts = state.get("facts", {})
        self.number: int = state.get("number", 0)
        self.keys: int = state.get("keys", 0)
        self.ledger: Ledger
        self.new_id = MessageIds(clock=wall_time)
        self.mine: set[str] = set()
        """Outbox entries and keys that this process holds."""

    async def step(self, run: Callable[[], Awaitable[Any]], may: Facts, *, is_whole: bool = True) -> None:
        """One operation: ``may`` is what each fact becomes. Where it is not ``is_whole``, it may become that, and
        ``run`` returns what facts are."""
        self.number += 1
        number = self.number
        mark(begin=number, may=may, whole=is_whole)
        found = await run()
        facts = may if is_whole else found
        self.facts |= facts
        mark(done=number, facts=facts)

    def body(self) -> bytes:
        """A body; now and then a large one."""
        return self.chance.randbytes(self.chance.choice((30, 300, 1_500, 3_000, 40_000)))

    def named(self, begin: str, wanted: Callable[[Any], bool] = bool) -> list[str]:
        """Names of facts that begin so, whose value is as wanted."""
        return [name for name, value in self.facts.items() if name.startswith(begin) and wanted(value)]

    # --------------------------------------------------------------------------------------------- the outbox

    def entry(self, message_id: bytes, kind: EventKind, body: bytes = b"", detail: dict[str, Any] | None = None) -> Any:
        """An event, and what it is as a fact."""
        message = None
        if body:
            message = NewMessage(
                broker=BROKER, version="0-9-1", exchange="orders", routing_key="eu", size=len(body),
                sha256=sha256(body).digest(), origin="http", client="shop", properties={"message_id": "m"},
            )  # fmt: skip
        at = int(wall_time() * 1e6)
        return LogEntry(message_id, kind, at, BROKER, "0-9-1", detail, message)

    async def put(self) -> None:
        """Promise publishes, now or later."""
        rows, entries, facts = [], [], Facts()
        for _ in range(self.chance.randint(1, 3)):
            message_id, body = self.new_id(), self.body()
            at = int(wall_time() * 1e6)
            due = at + 3_600_000_000 if self.chance.random() < 0.3 else 0
            rows.append(OutboxEntry(
                message_id=message_id, broker=BROKER, exchange="orders", routing_key="eu", payload=body, at=at,
                due_at=due, client="shop",
            ))  # fmt: skip
            entries.append(self.entry(message_id, EventKind.SCHEDULED, body))
            facts[f"outbox {message_id.hex()}"] = [0, "later" if due else "due", short(body)]
            facts[f"event {message_id.hex()} scheduled"] = 1
        await self.step(lambda: self.ledger.outbox.put(rows, entries), facts)

    async def claim(self) -> None:
        """Take what is due."""
        due = self.named("outbox ", lambda value: value is not None and value[1] == "due")
        may = {name: [self.facts[name][0] + 1, *self.facts[name][1:]] for name in due if name not in self.mine}

        async def run() -> Facts:
            found = await self.ledger.outbox.claim(self.chance.randint(1, 4), [BROKER])
            names = [f"outbox {row.message_id.hex()}" for row in found]
            self.mine.update(names)
            return {name: may[name] for name in names}

        await self.step(run, may, is_whole=False)

    async def settle(self) -> None:
        """End or postpone what was taken."""
        names = sorted(self.mine & set(self.named("outbox ")))[:3]
        done, retry, kept, facts = [], [], [], Facts()
        for name in names:
            message_id = bytes.fromhex(name.split()[1])
            attempt, _, payload = self.facts[name]
            ending = self.chance.choice(("done", "done", "retry", "kept"))
            if ending == "done":
                done.append((message_id, [self.entry(message_id, EventKind.CONFIRMED)]))
                facts |= {name: None, f"event {message_id.hex()} confirmed": 1}
            elif ending == "retry":
                retry.append((message_id, 0.0, {"code": "later"}))
                facts[name] = [attempt, "due", payload]
            else:
                kept.append((message_id, [self.entry(message_id, EventKind.REFUSED)], {"code": "refused"}))
                facts |= {name: [attempt, "dead", payload], f"event {message_id.hex()} refused": 1}
            self.mine.discard(name)
        await self.step(lambda: self.ledger.outbox.settle(done, retry, kept), facts)

    async def cancel(self) -> None:
        """Take back what is not due yet."""
        for name in self.named("outbox ", lambda value: value is not None and value[1] == "later")[:1]:
            message_id = bytes.fromhex(name.split()[1])
            entry = self.entry(message_id, EventKind.CANCELLED)
            facts = {name: None, f"event {message_id.hex()} cancelled": 1}
            await self.step(lambda: self.ledger.outbox.cancel(message_id, entry), facts)  # noqa: B023

    # --------------------------------------------------------------------------------------------------- keys

    async def keyed(self) -> None:
        """A publish under a key, from the claim to the answer or to something else."""
        self.keys += 1
        key, intents, facts = f"k{self.keys}", [], Facts()
        name = f"key {key}"
        for _ in range(self.chance.randint(1, 2)):
            message_id, body = self.new_id(), self.body()
            message = self.entry(message_id, EventKind.ACCEPTED, body).message
            at = int(wall_time() * 1e6)
            intents.append(OutboxEntry(
                message_id=message_id, broker=BROKER, exchange="orders", routing_key="eu", payload=body, at=at,
                message=message,
            ))  # fmt: skip
            facts |= {f"owed {message_id.hex()}": ["pending", short(body)], f"event {message_id.hex()} accepted": 1}
        fingerprint = key.encode().ljust(32, b"-")
        claimed = facts | {name: ["running", 0, ""]}
        await self.step(lambda: self.ledger.claim_key("shop", key, fingerprint, intents), claimed)
        ending = self.chance.choice(("answered", "answered", "answered", "free", "unknown", "left"))
        gone: Facts = {fact: None for fact in facts if fact.startswith("owed")}
        ids = [intent.message_id for intent in intents]
        if ending == "answered":
            entries = [self.entry(each, EventKind.CONFIRMED) for each in ids]
            body = self.body()
            facts = gone | {name: ["done", 200, short(body)]} | {f"event {each.hex()} confirmed": 1 for each in ids}
            await self.step(lambda: self.ledger.finish_key("shop", key, 200, body, entries), facts)
        elif ending == "free":
            entries = [self.entry(each, EventKind.NOT_SENT) for each in ids]
            facts = gone | {name: None} | {f"event {each.hex()} not_sent": 1 for each in ids}
            await self.step(lambda: self.ledger.free_key("shop", key, entries), facts)
        elif ending == "unknown":
            facts = {fact: ["parked", self.facts[fact][1]] for fact in gone} | {name: ["unknown", 0, ""]}
            await self.step(lambda: self.ledger.unknown_key("shop", key), facts)

    async def keyed_later(self) -> None:
        """A scheduled publish under a key."""
        self.keys += 1
        key, message_id, body, answer = f"k{self.keys}", self.new_id(), self.body(), self.body()
        at = int(wall_time() * 1e6)
        row = OutboxEntry(
            message_id=message_id, broker=BROKER, exchange="orders", routing_key="eu", payload=body, at=at,
            due_at=at + 3_600_000_000, client="shop",
        )  # fmt: skip
        facts = {
            f"key {key}": ["done", 202, short(answer)],
            f"outbox {message_id.hex()}": [0, "later", short(body)],
            f"event {message_id.hex()} scheduled": 1,
        }
        entries = [self.entry(message_id, EventKind.SCHEDULED, body)]
        fingerprint = key.encode().ljust(32, b"-")
        put = self.ledger.outbox.put_keyed
        await self.step(
            lambda: put("shop", key, fingerprint, [row], entries, status=202, headers={}, body=answer),
            facts,
        )

    # --------------------------------------------------------------------------------------------- deliveries

    async def store(self) -> None:
        """A message for some subscriptions, and sometimes what a bridge remembers of it."""
        message_id, body, rows, entries, facts = self.new_id(), self.body(), [], [], Facts()
        for name in self.chance.sample(SUBSCRIPTIONS, self.chance.randint(1, 3)):
            delivery = self.new_id()
            at = int(wall_time() * 1e6)
            rows.append(Owed(
                id=delivery, subscription=name, message_id=message_id, at=at, payload=body, size=len(body),
                order_key=self.chance.choice((b"", b"", b"a")),
            ))  # fmt: skip
            entries.append(self.entry(message_id, EventKind.STORED, body, {"subscription": name}))
            facts[f"delivery {name} {delivery.hex()} {message_id.hex()}"] = [0, 0, 0, short(body)]
        facts[f"event {message_id.hex()} stored"] = len(rows)
        inbox = []
        if self.chance.random() < 0.5:
            key = message_id.hex()
            inbox.append(InboxRow("bridge", key, sha256(body).digest(), message_id, at + 10**12))
            facts[f"inbox {key}"] = message_id.hex()
        await self.step(lambda: self.ledger.deliveries.store(rows, entries, inbox), facts)

    async def hand_out(self) -> None:
        """Lease deliveries."""
        subscription = self.chance.choice(SUBSCRIPTIONS)
        names = self.named(f"delivery {subscription} ", lambda value: value is not None and value[0] == 0)
        may = {name: [1, self.facts[name][1] + 1, self.facts[name][2] + 1, self.facts[name][3]] for name in names}

        async def run() -> Facts:
            most, ordered = self.chance.randint(1, 5), self.chance.random() < 0.3
            found = await self.ledger.deliveries.claim(subscription, most, LEASE, ordered=ordered)
            names = (f"delivery {subscription} {each.id.hex()} {each.message_id.hex()}" for each in found)
            return {name: may[name] for name in names}

        await self.step(run, may, is_whole=False)

    async def acknowledge(self) -> None:
        """Settle deliveries in all ways."""
        is_settled: dict[int, tuple[Ending, ...]] = {
            0: (Ending.PURGE, Ending.DEAD),
            1: (Ending.DONE, Ending.DONE, Ending.DONE, Ending.RETRY, Ending.DEAD, Ending.EXTEND),
            2: (Ending.REVIVE, Ending.DISCARD),
        }
        names = self.named("delivery ")
        settlements, facts = [], Facts()
        for name in self.chance.sample(names, min(len(names), 4)):
            status, lease, attempt, body = self.facts[name]
            if status == 0 and self.chance.random() < 0.8:
                continue
            ending = self.chance.choice(is_settled[status])
            after = {Ending.RETRY: 0, Ending.EXTEND: 1, Ending.DEAD: 2, Ending.REVIVE: 0}.get(ending)
            facts[name] = None if after is None else [after, lease, attempt, body]
            due_in = LEASE if ending is Ending.EXTEND else 0.0
            reason = {"code": "rejected"} if ending is Ending.DEAD else {}
            _, subscription, delivery, message = name.split()
            entries = []
            if kind := SAYS.get(ending):
                entries.append(self.entry(bytes.fromhex(message), kind, b"", {"subscription": subscription}))
                fact = f"event {message} {kind}"
                facts[fact] = (facts.get(fact) or self.facts.get(fact) or 0) + 1
            settlements.append(BacklogSettlement(
                bytes.fromhex(delivery), ending, lease if status == 1 else None, due_in, reason=reason,
                entries=tuple(entries),
            ))  # fmt: skip
        if settlements:
            await self.step(lambda: self.ledger.deliveries.settle(settlements), facts)

    # -------------------------------------------------------------------------------------- logs and documents

    async def spool(self) -> None:
        """What a tap does."""
        found = []
        for _ in range(self.chance.randint(1, 4)):
            body = self.body()
            found.append(Spooled(
                message_id=self.new_id(), tap="tap", at=int(wall_time() * 1e6), broker=BROKER, version="0-9-1",
                queue="q", exchange="", routing_key="q", redelivered=False, properties=b"{}", body=body,
                sha256=sha256(body).digest(),
            ))  # fmt: skip
        facts = {f"spooled {each.message_id.hex()}": short(each.body) for each in found}
        await self.step(lambda: self.ledger.log.spool(found), facts)

    async def read(self) -> None:
        """Claim a cursor, move it, and let go what it has read."""
        fact = "cursor reader"
        extents = await self.ledger.log.extents(Log.MESSAGES)
        position = {str(each.shard): each.head for each in extents}
        if not position:
            return
        before = self.facts.get(fact)
        epoch = 1 if before is None else before[0] + 1
        kept = {} if before is None else before[1]
        claim = self.ledger.log.claim_cursor
        at_first = [epoch, kept or {key: each.floor - 1 for key, each in zip(position, extents, strict=True)}]

        async def claimed() -> Facts:
            found = await claim("reader", Log.MESSAGES, "me", take_over=True)
            return {fact: [found.epoch, found.position]}

        await self.step(claimed, {fact: at_first}, is_whole=False)
        epoch = self.facts[fact][0]
        await self.step(
            lambda: self.ledger.log.move_cursor("reader", "me", epoch, position),
            {fact: [epoch, position]},
        )
        gone: Facts = dict.fromkeys(self.named("spooled "))
        if self.chance.random() < 0.5:

            async def trimmed() -> Facts:
                await self.ledger.history.keeper.trim()
                query = sa.text("SELECT hex(message_id) FROM message_log")
                left = await self.ledger.read(lambda connection: set(connection.execute(query).scalars()))
                return {name: None for name in gone if name.split()[1].upper() not in left}

            await self.step(trimmed, gone, is_whole=False)

    async def record(self) -> None:
        """A publish without a key, and its outcome in one commit."""
        message_id, body = self.new_id(), self.body()
        kinds = (EventKind.ACCEPTED, EventKind.CONFIRMED)
        entries = [self.entry(message_id, kind, body) for kind in kinds]
        facts = {f"event {message_id.hex()} {kind}": 1 for kind in kinds}
        await self.step(lambda: self.ledger.record(entries), facts)

    async def resource(self) -> None:
        """Put or delete a document."""
        name = self.chance.choice("abcdef")
        fact = f"resource {name}"
        if self.facts.get(fact) and self.chance.random() < 0.3:
            await self.step(lambda: self.ledger.delete_resource("test", name), {fact: None})
            return
        spec = {"n": self.number, "text": self.body().hex()}
        await self.step(
            lambda: self.ledger.put_resource("test", name, spec),
            {fact: short(json.dumps(spec, sort_keys=True).encode())},
        )

    async def branch(self) -> None:
        """A branch of a distributed transaction, from its beginning to its end or to something before that."""
        branch, message_id, body = os.urandom(16), self.new_id(), self.body()
        fact, store = f"branch {branch.hex()}", self.ledger.branches
        await self.step(lambda: store.begin(branch, "bridge", BROKER), {fact: "begun"})
        if self.chance.random() < 0.2:
            return
        entries = [self.entry(message_id, EventKind.PREPARED, body, {"bridge": "bridge"})]
        facts = {fact: "decided", f"event {message_id.hex()} prepared": 1}
        await self.step(lambda: store.decide(branch, {}, entries), facts)
        if self.chance.random() < 0.2:
            return
        entries = [self.entry(message_id, EventKind.FORWARDED, b"", {"bridge": "bridge"})]
        facts = {fact: None, f"event {message_id.hex()} forwarded": 1}
        await self.step(lambda: store.finish(branch, entries), facts)

    async def audit(self) -> None:
        """A row of the audit log."""
        self.facts.setdefault("audit", 0)
        entry = {"action": "test", "number": self.number}
        facts = {"audit": (self.facts["audit"] or 0) + 1}
        await self.step(lambda: self.ledger.audit.append([(int(wall_time() * 1e6), entry)]), facts)

    async def count(self) -> None:
        """What the keeper does."""
        await self.ledger.history.keeper.count()
        await self.ledger.history.keeper.retain()

    async def together(self) -> None:
        """Several at once, which share commits."""
        await asyncio.gather(self.put(), self.store(), self.record(), self.keyed(), self.spool(), self.store())

    async def copy(self) -> None:
        """A backup."""
        if not self.backup.parent.exists():  # the operator's own folder
            self.backup.parent.mkdir()
            flush(self.backup.parent.parent)

        async def run() -> None:
            await asyncio.to_thread(back_up, self.path, self.backup)

        await self.step(run, {"backup": (self.facts.get("backup") or 0) + 1})

    # -------------------------------------------------------------------------------------------------- a life

    async def migrate(self) -> None:
        """Make the tables, from an early revision to the newest, step by step."""

        def to(revision: int) -> None:
            database = Database(self.url)
            with database.locked():
                schema.migrate(database, f"{revision:04}")

        for revision in range(FIRST_SCHEMA, schema.HEAD + 1):

            async def run(revision: int = revision) -> None:
                await asyncio.to_thread(to, revision)

            await self.step(run, {"schema": revision})

    async def open(self) -> None:
        """Open the ledger."""
        settings = LedgerSettings(shard_lease=60.0)
        retention = RetentionSettings(bodies="until-settled")
        self.ledger = await Ledger.open(self.url, settings, owner="test", migrate=True, retention=retention)
        for name, load in KEY_FILES.items():
            path = self.path.with_name(name)

            async def run(load: Callable[[Path], Any] = load, path: Path = path) -> Facts:
                load(path)
                return {f"file {path.name}": short(path.read_bytes())}

            if f"file {name}" not in self.facts:
                await self.step(run, {}, is_whole=False)
        self.mine.clear()  # what an earlier process held is free again

    async def run(self, operations: int) -> None:
        """Work."""
        if "schema" not in self.facts:
            await self.migrate()
        await self.open()
        common = [
            self.put,
            self.claim,
            self.settle,
            self.store,
            self.store,
            self.hand_out,
            self.acknowledge,
            self.keyed,
        ]
        common += [self.acknowledge, self.spool, self.record]
        rare = [
            self.cancel,
            self.keyed_later,
            self.read,
            self.resource,
            self.branch,
            self.audit,
            self.count,
            self.together,
        ]
        for number in range(operations):
            await self.chance.choice(common if self.chance.random() < 0.75 else rare)()
            if number == operations // 2:
                await self.copy()
            if number == operations * 2 // 3 and self.chance.random() < 0.5:
                await self.ledger.close()
                await self.open()
        if self.chance.random() < 0.5:
            await self.ledger.close()


def _not_synced() -> None:
    """SQLite syncs its journal at checkpoints only."""
    tuned = engine._tune_sqlite

    def tune(connection: Any, cache: int) -> None:
        tuned(connection, cache)
        connection.execute("PRAGMA synchronous=NORMAL")

    engine._tune_sqlite = tune


def _folder_not_synced() -> None:
    """The name of a new folder is not synced."""
    engine.make_folder = lambda path: path.mkdir(exist_ok=True)  # type: ignore[attr-defined, assignment, misc]


DEFECTS: dict[str, Callable[[], None]] = {"not synced": _not_synced, "folder not synced": _folder_not_synced}
"""What the losses of power must find."""


def main(folder: str, state: str, seed: str, operations: str, defect: str = "") -> None:
    """See the module."""
    if defect:
        DEFECTS[defect]()
    commit_count.PAUSE = 0.0  # type: ignore[misc]  # the steps of a run are the same each time
    kept = Path(state)
    found = json.loads(kept.read_text()) if kept.exists() else {}
    work = Work(Path(folder), random.Random(seed), found)

    async def run() -> None:
        await work.run(int(operations))
        kept.write_text(json.dumps({"facts": work.facts, "number": work.number, "keys": work.keys}))
        os._exit(0)

    asyncio.run(run())


if __name__ == "__main__":
    main(*sys.argv[1:])
