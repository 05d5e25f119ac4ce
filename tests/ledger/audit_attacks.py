"""What somebody may do to the audit log who can write to the database, knows how rows are chained, and has no key."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final

import sqlalchemy as sa

from gateway.ledger.access.audit import BEGIN, TRIMMED, AuditRow, hash_of, rows
from gateway.ledger.db.encoding import document
from gateway.ledger.db.models import audit_log

DAY: Final = 86_400_000_000
Log = list[AuditRow]
Attack = Callable[[Random, Log, Sequence[Log]], Log]
"""The rows as they are, and backups of the table from before -> the rows as they are left."""


def chained(log: Sequence[AuditRow], start: int = 0) -> Log:
    """Hashes made anew from an index on; MACs are left as they are, since nobody can make them."""
    made = list(log[:start])
    for row in log[start:]:
        previous = made[-1].hash if made else row.previous if row.sequence > 1 else BEGIN
        hashed = hash_of(row.sequence, row.at, row.entry, previous)
        made.append(row._replace(previous=previous, hash=hashed))
    return made


def numbered(log: Sequence[AuditRow]) -> Log:
    """Numbers without gaps."""
    return [row._replace(sequence=log[0].sequence + index) for index, row in enumerate(log)]


def bare(row: AuditRow) -> AuditRow:
    return row._replace(mac=None, mac_key=None)


def forged(after: AuditRow, entry: Mapping[str, Any], at: int | None = None) -> AuditRow:
    """A row that is rightly chained to another."""
    at, octets = after.at if at is None else at, document(entry)
    hashed = hash_of(after.sequence + 1, at, octets, after.hash)
    return AuditRow(after.sequence + 1, at, octets, after.hash, hashed)


def edit(random: Random, log: Log, _: Sequence[Log]) -> Log:
    index = random.randrange(len(log))
    row, name = log[index], random.choice(AuditRow._fields)
    value: Any = {
        "sequence": row.sequence + random.choice((-1, 1)) * random.randint(1, 10_000),
        "at": max(0, row.at + random.choice((-1, 1)) * random.randint(1, 3 * DAY)),
        "entry": document({"action": "other", "n": random.random()}),
        "previous": random.randbytes(32),
        "hash": random.randbytes(32),
        "mac": random.choice([random.randbytes(32), b"", log[index - 1].mac if index else b"x", None]),
        "mac_key": random.choice(["00000000", "", None, *{each.mac_key for each in log}]),
    }[name]
    return [*log[:index], row._replace(**{name: value}), *log[index + 1 :]]


def edit_and_chain(random: Random, log: Log, _: Sequence[Log]) -> Log:
    index = random.randrange(len(log))
    row = log[index]
    entry = document({"action": "other", "n": random.random()})
    row = (
        row._replace(entry=entry) if random.random() < 0.5 else row._replace(at=max(0, row.at - random.randint(1, DAY)))
    )
    return chained([*log[:index], row, *log[index + 1 :]], index)


def delete(random: Random, log: Log, _: Sequence[Log]) -> Log:
    gone = set(random.sample(range(len(log) - 1), random.randint(1, 5)))
    return [row for index, row in enumerate(log) if index not in gone]


def delete_and_chain(random: Random, log: Log, backups: Sequence[Log]) -> Log:
    return chained(numbered(delete(random, log, backups)))


def insert(random: Random, log: Log, _: Sequence[Log]) -> Log:
    index = random.randrange(1, len(log))
    new = forged(log[index - 1], {"action": "inserted"})
    if random.random() < 0.5:
        new = new._replace(mac=log[index - 1].mac, mac_key=log[index - 1].mac_key)
    rest = [row._replace(sequence=row.sequence + 1) for row in log[index:]]
    return chained([*log[:index], new, *rest], index)


def add(random: Random, log: Log, _: Sequence[Log]) -> Log:
    made = list(log)
    for _number in range(random.randint(1, 3)):
        new = forged(made[-1], {"action": "added", "n": random.random()})
        copied = random.choice(log)
        kind = random.random()
        if kind < 0.3:
            new = new._replace(mac=random.randbytes(32), mac_key=log[-1].mac_key)
        elif kind < 0.6:
            new = new._replace(mac=copied.mac, mac_key=copied.mac_key)
        made.append(new)
    return made


def swap(random: Random, log: Log, _: Sequence[Log]) -> Log:
    one, other = random.sample(range(len(log)), 2)
    made = list(log)
    made[one] = log[other]._replace(sequence=log[one].sequence)
    made[other] = log[one]._replace(sequence=log[other].sequence)
    return chained(made, min(one, other)) if random.random() < 0.5 else made


def cut_off(random: Random, log: Log, _: Sequence[Log]) -> Log:
    return log[: random.randrange(1, len(log))]


def cut_off_and_add(random: Random, log: Log, backups: Sequence[Log]) -> Log:
    return add(random, cut_off(random, log, backups), backups)


def behead(random: Random, log: Log, _: Sequence[Log]) -> Log:
    return log[random.randrange(1, len(log)) :]


def make_anew(random: Random, log: Log, _: Sequence[Log]) -> Log:
    kept = [row._replace(entry=document({"action": "innocent"})) for row in log if random.random() < 0.9]
    kept = kept or log[:1]
    first = kept[0]._replace(sequence=1, previous=BEGIN)
    kept = numbered([first, *kept[1:]])
    return chained([bare(row) for row in kept] if random.random() < 0.5 else kept)


def replay_backup(random: Random, _: Log, backups: Sequence[Log]) -> Log:
    return list(random.choice(backups))


def replay_rows(random: Random, log: Log, backups: Sequence[Log]) -> Log:
    """Genuine rows of a backup behind the newest row, under new numbers."""
    some = random.choice(backups)
    begin = random.randrange(len(some))
    return chained(numbered([*log, *some[begin : begin + random.randint(1, 5)]]), len(log))


def downgrade(random: Random, log: Log, _: Sequence[Log]) -> Log:
    keyed = [index for index, row in enumerate(log) if row.mac is not None]
    begin = random.choice(keyed)
    end = random.choice([len(log), begin + 1, random.randint(begin + 1, len(log))])
    if random.random() < 0.2:
        begin, end = 0, len(log)
    return [bare(row) if begin <= index < end else row for index, row in enumerate(log)]


def trim_in_the_future(random: Random, log: Log, _: Sequence[Log]) -> Log:
    """Rows go, and a row says that they were old: it comes from the future, so that they are."""
    anchor = random.randrange(1, len(log))
    said = {"action": TRIMMED, "anchor": log[anchor].sequence, "days": 30, "rows": anchor}
    return _trimmed(random, log, anchor, said, log[anchor].at + 31 * DAY)


def trim_too_soon(random: Random, log: Log, _: Sequence[Log]) -> Log:
    """Rows go that are as old as the least setting asks for, and not as old as the one that there is."""
    anchor = random.randrange(1, len(log))
    said = {
        "action": TRIMMED, "anchor": log[anchor].sequence, "days": 30, "rows": anchor, "first": log[0].sequence,
        "last": log[anchor].sequence - 1, "digest": log[anchor].previous.hex(), "newest": log[anchor - 1].at, "mac": "",
    }  # fmt: skip
    return _trimmed(random, log, anchor, said, log[-1].at)


def _trimmed(random: Random, log: Log, anchor: int, said: Mapping[str, Any], at: int) -> Log:
    new = forged(log[-1], said, at)
    if random.random() < 0.5:
        new = new._replace(mac=random.randbytes(32), mac_key=log[-1].mac_key)
    return [*log[anchor:], new]


ATTACKS: Final[tuple[Attack, ...]] = (
    edit, edit_and_chain, delete, delete_and_chain, insert, add, swap, cut_off, cut_off_and_add, behead, make_anew,
    replay_backup, replay_rows, downgrade, trim_in_the_future, trim_too_soon,
)  # fmt: skip
CUTS: Final = (cut_off, replay_backup)
"""What leaves a log as it was once: only a head that was kept elsewhere tells."""


def stored(connection: sa.Connection) -> Log:
    """The rows of the table."""
    return list(rows(connection))


def store(connection: sa.Connection, log: Sequence[AuditRow]) -> None:
    """Have the table hold these rows and no others."""
    connection.execute(sa.delete(audit_log))
    if log:
        connection.execute(sa.insert(audit_log), [row._asdict() for row in log])


def keys(*numbers: int) -> dict[str, bytes]:
    """Keys of MACs, by name."""
    return {f"{number:08x}": bytes([number]) * 32 for number in numbers}


SEED: Final = int(os.environ.get("AUDIT_SEED", "1"))
