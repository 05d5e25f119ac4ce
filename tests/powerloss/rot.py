"""Rot: a bit that flips, or an end that is gone, in a file of a ledger or of a backup; and what the gateway says then.

Everything that the ledger can be asked for is asked, by the gateway's own verbs, once before the damage and once after
it. An answer that is another one now, without an error, was *served*. That must not be of what is sent as a message.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from gateway.config import LedgerSettings
from gateway.core.leasing.ack_ids import load_key
from gateway.errors import BackupRefused, GatewayError
from gateway.ledger import Ledger, Unknown
from gateway.ledger.backups import check_version, read_info, unpack
from gateway.ledger.checking import check
from gateway.logs import Log, columns
from gateway.webhooks.settings.secrets import load_seals
from tests.powerloss.found import Found
from tests.powerloss.losses import recorded, scratch
from tests.powerloss.work import BACKUP, BROKER, LEDGER, SUBSCRIPTIONS, short

OPERATIONS: Final = 120
MESSAGES: Final = ("outbox", "owed", "delivery", "body", "answer", "resource")
"""First words of answers that are sent: to brokers, to consumers, to callers; or that say what the gateway does."""
KEYS: Final = ("secrets.key", "ack-ids.key")

Answers = dict[str, Any]


class Asked:
    """What a ledger answers."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.named: list[str] = []
        """Errors that say so."""
        self.faults: list[str] = []
        """Errors that are defects of the gateway."""

    async def ask(self, what: str, run: Callable[[], Awaitable[Answers]]) -> None:
        """Ask for something."""
        try:
            self.answers |= await run()
        except GatewayError as error:
            self.named.append(f"{what}: {error}")
        except Exception as error:
            self.faults.append(f"{what}: {type(error).__name__}: {error}")


def _plain(value: Any) -> Any:
    """A value that can be compared and kept."""
    return msgspec.to_builtins(asdict(value) if is_dataclass(value) and not isinstance(value, type) else value)


def _content(payload: bytes | None) -> str:
    """What stands for a payload; one that the ledger itself calls damaged has none."""
    return "none" if payload is None else short(payload) if payload else "damaged"


async def ask(folder: Path, keys: Iterable[str]) -> Asked:
    """Open a ledger as the gateway does, and ask for everything."""
    asked = Asked()
    settings = LedgerSettings(shard_lease=60.0)
    try:
        ledger = await Ledger.open(f"sqlite:///{folder / LEDGER}", settings, owner="rot", migrate=True)
    except GatewayError as error:
        asked.named.append(f"start: {error}")
        return asked
    except Exception as error:
        asked.faults.append(f"start: {type(error).__name__}: {error}")
        return asked

    async def outbox() -> Answers:
        rows, _ = await ledger.outbox.page(limit=1_000)
        return {
            f"outbox {row.message_id.hex()}": [
                row.broker,
                row.exchange,
                row.routing_key,
                row.client,
                _content(row.payload),
            ]
            for row in rows
        } | {f"state {row.message_id.hex()}": [row.due_at, row.attempt, row.dead, row.reason] for row in rows}

    async def claimed() -> Answers:
        rows = await ledger.outbox.claim(1_000, [BROKER])
        return {
            f"outbox claimed {row.message_id.hex()}": [row.exchange, row.routing_key, row.client, _content(row.payload)]
            for row in rows
        }

    async def owed() -> Answers:
        found = await ledger.outbox.take_over()
        return {
            f"owed {each.message_id.hex()}": [each.broker, each.exchange, each.routing_key, _content(each.payload)]
            for each in found
        }

    async def deliveries() -> Answers:
        rows, _ = await ledger.deliveries.page(limit=1_000, payload=True)
        return {
            f"delivery {row.id.hex()}": [
                row.subscription,
                row.message_id.hex(),
                row.order_key.hex(),
                _content(row.payload),
            ]
            for row in rows
        } | {f"state {row.id.hex()}": [row.attempt, row.lease, row.dead, row.reason, row.at, row.size] for row in rows}

    async def handed_out() -> Answers:
        found = [row for name in SUBSCRIPTIONS for row in await ledger.deliveries.claim(name, 1_000, 60.0)]
        return {
            f"delivery claimed {row.id.hex()}": [row.subscription, row.message_id.hex(), _content(row.payload)]
            for row in found
        }

    async def messages() -> Answers:
        found, _ = await ledger.messages(limit=1_000)
        bodies = {}
        for each in found:
            bodies[f"body {each.id.hex()}"] = _content(await ledger.deliveries.body(each.id))
        return bodies | {f"message {each.id.hex()}": _plain(each) for each in found}

    async def events() -> Answers:
        found, _ = await ledger.events_after({}, 10_000)
        return {f"event {each.shard} {each.sequence}": _plain(each) for each in found}

    async def spooled() -> Answers:
        answers: Answers = {}
        for each in await ledger.log.extents(Log.MESSAGES):
            rows = await ledger.log.rows(
                Log.MESSAGES, each.shard, each.floor - 1, each.head, columns.FIELDS[Log.MESSAGES], {}
            )
            answers |= {f"spooled {row['sequence']}": repr(sorted(row.items())) for row in rows}
        return answers

    async def answered() -> Answers:
        answers: Answers = {}
        for key in keys:
            found = await ledger.claim_key("shop", key, key.encode().ljust(32, b"-"), [])
            intents = found.intents if isinstance(found, Unknown) else ()
            is_damaged = any(not each.payload for each in intents)
            answers[f"answer {key}"] = "damaged" if is_damaged else [type(found).__name__, _plain(found)]
        return answers

    async def documents() -> Answers:
        found, _ = await ledger.list_resources("test")
        return {f"resource {each.name}": _plain(each) for each in found}

    async def rest() -> Answers:
        cursors, _ = await ledger.log.list_cursors()
        return {
            "cursors": _plain(cursors),
            "branches": _plain(await ledger.branches.of("bridge")),
            "audit": repr(await ledger.audit.read()),
            "backlogs": repr({
                name: (each.waiting, each.out, each.dead) for name, each in (await ledger.deliveries.backlogs()).items()
            }),
        }  # fmt: skip

    try:
        for run in (
            outbox,
            deliveries,
            messages,
            events,
            spooled,
            documents,
            rest,
            owed,
            claimed,
            handed_out,
            answered,
        ):
            await asked.ask(run.__name__, run)
    finally:
        with suppress(GatewayError):
            await ledger.close()
    return asked


def damage(content: bytes, chance: random.Random) -> bytes:
    """One bit flipped, or now and then cut off."""
    if chance.random() < 0.1:
        return content[: chance.randrange(len(content))]
    place = chance.randrange(len(content))
    changed = bytearray(content)
    changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def rot(seed: int, points: int) -> Found:
    """Record a run, damage its files at so many points, one at a time, and ask."""
    found = Found()
    folder = scratch()
    chance = random.Random(f"{seed} rot")
    try:
        for number in range(100):
            shutil.rmtree(folder)
            folder.mkdir()
            recorded(seed * 1_000 + number, OPERATIONS, folder)
            root = folder / "root"
            if (root / f"{LEDGER}-wal").exists():
                break
        with suppress(FileNotFoundError):
            (root / f"{LEDGER}-shm").unlink()
        state = msgspec.json.decode((folder / "state.json").read_bytes())
        keys = [name.split()[1] for name, value in state["facts"].items() if name.startswith("key ")]
        paths = [f"{LEDGER}-wal", *["data/" + name for name in KEYS], BACKUP]
        before = _asked(root, keys)
        if before.named or before.faults:
            raise AssertionError(f"not sound before any damage: {before.named} {before.faults}")
        for _ in range(points):
            path = chance.choices([LEDGER, *paths], [60, 20, 2, 2, 16])[0]
            content = (root / path).read_bytes()
            changed = damage(content, chance)
            place = scratch()
            try:
                shutil.copytree(root, place / "root")
                (place / "root" / path).write_bytes(changed)
                kind = f"{Path(path).name} {'cut' if len(changed) < len(content) else 'flipped'}"
                what, problems = _judge(place / "root", path, before, keys)
            finally:
                shutil.rmtree(place)
            found.points[f"{kind}: {what}"] += 1
            where = next(
                (at for at, (one, other) in enumerate(zip(content, changed, strict=False)) if one != other),
                len(changed),
            )
            found.problems += [f"seed {seed}, {path} at {where}: {each}" for each in problems]
    finally:
        shutil.rmtree(folder)
    return found


def _asked(root: Path, keys: Iterable[str]) -> Asked:
    """Ask a copy."""
    place = scratch()
    try:
        shutil.copytree(root, place / "root")
        return asyncio.run(ask(place / "root", keys))
    finally:
        shutil.rmtree(place)


def _judge(root: Path, path: str, before: Asked, keys: Iterable[str]) -> tuple[str, list[str]]:
    """What came of a damage, in a word; and what must not be."""
    name = Path(path).name
    if path == BACKUP:
        try:
            info = read_info(root / path)
            check_version(root / path, info)
            unpack(root / path, info, root / "unpacked")
        except BackupRefused:
            return "named", []
        good = sha256((root / "unpacked").read_bytes()).hexdigest() == info.sha256
        return "harmless", [] if good else ["a damaged backup is restored"]
    if name in KEYS:
        try:
            (load_key if name == "ack-ids.key" else lambda path: load_seals("", path))(root / path)
        except GatewayError:
            return "named at start", []
        return "another key", []  # nothing that it sealed opens with it: that is an error
    checked = check(root / LEDGER)
    after = asyncio.run(ask(root, keys))
    problems = [f"a defect: {fault}" for fault in after.faults]
    changed, missing, is_damaged = Counter[str](), Counter[str](), False
    for name, answer in before.answers.items():
        now = after.answers.get(name, "damaged" if after.named else None)
        if now == answer:
            continue
        if now is None:
            missing[name.split()[0]] += 1
        elif "damaged" in (now, *(now if isinstance(now, list) else ())):
            is_damaged = True
        elif now != "none":
            changed[name.split()[0]] += 1
        else:
            missing[name.split()[0]] += 1
    changed.update(name.split()[0] for name in after.answers.keys() - before.answers.keys())
    if served := [kind for kind in changed if kind in MESSAGES]:
        problems.append(f"served as truth: {', '.join(served)}; named: {checked or after.named}")
    if after.named and after.named[0].startswith("start"):
        return "named at start", problems
    if changed:
        kinds = "messages" if served else "history"
        return f"{kinds} served as truth, {'and named by the check' if checked else 'not named'}", problems
    if after.named or is_damaged:
        return "named on read", problems
    if missing:
        if not checked:
            problems.append(f"missing, and not named: {dict(missing)}")
        return "missing, and named by the check" if checked else "missing, and not named", problems
    return "harmless, and named by the check" if checked else "harmless", problems
