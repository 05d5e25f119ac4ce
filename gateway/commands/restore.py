"""``gateway restore``: a ledger from a backup, made ready for a gateway to go on with.

Everything is checked before anything changes. The backup is unpacked beside the ledger, checked and prepared there, and
takes the ledger's place in one step.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gateway.commands import Failure
from gateway.commands.options import config_option, data_dir_option
from gateway.runtime.clock import clock
from gateway.terminal import note, output_options, print_json

if TYPE_CHECKING:
    import sqlalchemy as sa

    from gateway.config import Config
    from gateway.ledger.access.audit import AuditHead, AuditKeys
    from gateway.ledger.db.engine import Database

STAGED = ".restoring"
"""Ending of the name under which the ledger is prepared."""
POSTGRESQL = (
    "the ledger is on PostgreSQL: put the database back with pg_restore, then run 'gateway restore' without a file. "
    "See docs/how-to/backup.md"
)


class Restored(NamedTuple):
    """What came of it."""

    since: int
    """What only the old ledger held is gone from here on; microseconds since 1970."""
    until: int
    marked: int
    """Messages that may have been delivered after the backup."""
    aside: Path | None
    """Where the ledger is that was replaced."""
    audit: str
    """What is wrong with the audit log; empty: it is sound."""


@click.command(short_help="Put a ledger back from a backup.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Set a ledger aside that is there; without this it is refused.")
@click.option("--dry-run", is_flag=True, help="Only check.")
@output_options
@config_option
@data_dir_option
def restore(
    file: Path | None, replace: bool, dry_run: bool, as_json: bool, config: str | None, data_dir: str | None
) -> None:
    """Put the SQLite ledger back from FILE, a backup. No gateway may run on it.

    Without FILE, prepare a PostgreSQL ledger that pg_restore has put back.

    First put the files of keys back that the ledger had when it was backed up. The backup and the keys are checked
    before anything changes. Messages that may have been delivered after the backup are marked as possible duplicates.
    The command prints from when to when the ledger's own content is gone.

    \b
    Examples:
      gateway restore /backups/ledger.backup --dry-run
      gateway restore /backups/ledger.backup --replace
      gateway restore --config gateway.toml   # PostgreSQL, after pg_restore
    """
    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.ledger.db.engine import Database

    settings = load(config, overrides={"data_dir": data_dir})
    database = Database(ledger_url(settings))
    if database.path is None:
        if file is not None:
            raise Failure(POSTGRESQL)
        _say(_adopt(settings, database, dry_run), dry_run, as_json)
        return
    if file is None:
        raise click.UsageError("Name the FILE of the backup.")
    try:
        _say(_restore(settings, database, database.path, file, replace, dry_run), dry_run, as_json)
    except OSError as error:
        raise Failure(f"{error.filename or file}: {error.strerror}. Nothing was changed") from None


def _restore(settings: Config, database: Database, path: Path, file: Path, replace: bool, dry_run: bool) -> Restored:
    from gateway.access.heads import head_path, read_head, write_head
    from gateway.durable import flush
    from gateway.errors import BackupRefused
    from gateway.ledger.backups import beside, check_version, read_info, unpack
    from gateway.ledger.db.commit_count import forget_commits
    from gateway.ledger.db.engine import Database
    from gateway.ledger.restoring import adopt

    info = read_info(file)
    check_version(file, info)
    was_there = path.exists()
    staged = path.with_name(path.name + STAGED)
    lock = database.lock()
    try:
        is_used = was_there and path.stat().st_size > 0
        until = max(info.at, _written(path) if is_used else int(clock.now() * 1e6))
        if is_used and not replace:
            raise BackupRefused(f"{path} is there. To set it aside: --replace. Nothing was changed")
        _remove(staged)
        unpack(file, info, staged)
        kept = head_path(settings.audit, Path(settings.data_dir))
        head = read_head(kept)
        engine = Database(f"sqlite:///{staged}").writer()
        try:
            with engine.connect() as connection:
                keys, broken = _checked(settings, connection, shared=False)
            now = int(clock.now() * 1e6)
            if dry_run:
                return Restored(info.at, until, 0, None, broken)
            entry = {"backup_at": info.at, "backup_sha256": info.sha256, "release": info.release, "head": _text(head)}
            with engine.begin() as connection:
                new_head, marked = adopt(connection, now, entry, keys)
            with closing(engine.raw_connection()) as raw:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            engine.dispose()
        aside = _set_aside(path, now) if is_used else None
        if head is not None:
            kept.replace(kept.with_name(f"{kept.name}.{_stamp(now)}"))
        forget_commits(path)
        staged.replace(path)
        flush(path.parent)
        if head is not None:
            write_head(kept, new_head, clock.now())
        return Restored(info.at, until, marked, aside, broken)
    finally:
        for name in (staged, *beside(staged)):
            name.unlink(missing_ok=True)
        if not was_there and path.exists() and path.stat().st_size == 0:
            path.unlink()
        if lock is not None:
            lock.close()


def _adopt(settings: Config, database: Database, dry_run: bool) -> Restored:
    """The same for a database that PostgreSQL's tools have put back."""
    import sqlalchemy as sa
    from sqlalchemy import exc

    from gateway.access.heads import head_path, read_head, write_head
    from gateway.ledger import restoring
    from gateway.ledger.db import schema
    from gateway.ledger.db.engine import unavailable

    kept = head_path(settings.audit, Path(settings.data_dir))
    head = read_head(kept)
    engine = database.writer()
    try:
        with engine.connect() as connection, connection.begin():
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema.ADVISORY_LOCK})
            schema.check(connection)
            restoring.check_idle(connection, database)
            keys, broken = _checked(settings, connection, shared=True)
            now = int(clock.now() * 1e6)
            since = restoring.newest(connection) or now
            if dry_run:
                return Restored(since, now, 0, None, broken)
            new_head, marked = restoring.adopt(connection, now, {"head": _text(head)}, keys)
    except exc.DBAPIError as error:
        raise unavailable(error) from error
    finally:
        engine.dispose()
    if head is not None:
        kept.replace(kept.with_name(f"{kept.name}.{_stamp(now)}"))
        write_head(kept, new_head, clock.now())
    return Restored(since, now, marked, None, broken)


def _checked(settings: Config, connection: sa.Connection, *, shared: bool) -> tuple[AuditKeys | None, str]:
    """The keys of the audit log, and what is wrong with that log.

    Raises:
        BackupRefused: a key is missing that something in the ledger is sealed with.
    """
    from gateway.errors import BackupRefused
    from gateway.ledger.access import audit
    from gateway.ledger.access.audit_check import AuditRules, verify
    from gateway.webhooks.settings import resealing
    from gateway.webhooks.settings.secrets import load_seals

    names = {*resealing.used(connection), *audit.keys_used(connection)}
    path = Path(settings.ledger.secrets_file or Path(settings.data_dir) / "secrets.key")
    if not path.exists() and names:
        raise BackupRefused(
            f"{path} is missing: the ledger has secrets that are sealed with the key {', '.join(sorted(names))}. "
            "Put its copy back first. Nothing was changed"
        )
    seals = load_seals(str(path), path) if path.exists() else None
    missing = names - set(seals.names if seals is not None else ())
    if missing:
        raise BackupRefused(
            f"{path} is the wrong file of keys: the ledger has secrets that are sealed with the key "
            f"{', '.join(sorted(missing))}. Put its copy back first. Nothing was changed"
        )
    keys = audit.AuditKeys(seals.derived(audit.PURPOSE)) if seals is not None else None
    found = verify(connection, None, AuditRules(keys, None, settings.retention.audit_days, shared))
    return keys, f"row {found.broken}: {found.why}" if found.broken else ""


def _written(path: Path) -> int:
    """When the ledger that is replaced was written last, in microseconds since 1970."""
    from gateway.ledger.backups import beside

    return max(each.stat().st_mtime_ns for each in (path, *beside(path)) if each.exists()) // 1000


def _set_aside(path: Path, now: int) -> Path:
    """Fence every process that may still write to the ledger, and give its file a second name; return the name."""
    from sqlalchemy import exc

    from gateway.ledger.backups import beside
    from gateway.ledger.restoring import fence

    try:
        with _opened(path) as connection:
            fence(connection)
            connection.commit()
    except (exc.DBAPIError, sqlite3.Error) as error:
        note(f"gateway: {path} cannot be read: {error}")
    aside = path.with_name(f"{path.name}.{_stamp(now)}")
    try:
        aside.hardlink_to(path)
    except OSError:  # a filesystem without links
        path.replace(aside)
    for name in beside(path):
        if name.exists():
            name.replace(name.with_name(name.name.replace(path.name, aside.name, 1)))
    return aside


@contextmanager
def _opened(path: Path) -> Iterator[sa.Connection]:
    from gateway.ledger.db.engine import Database

    engine = Database(f"sqlite:///{path}").writer()
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _remove(staged: Path) -> None:
    """Remove what a restore left that was ended."""
    from gateway.ledger.backups import beside

    for name in (staged, *beside(staged)):
        name.unlink(missing_ok=True)


def _stamp(now: int) -> str:
    from gateway.api.resources.brokers import moment

    return "before-" + moment(now // 1_000_000)[:19].replace("-", "").replace(":", "") + "Z"


def _text(head: AuditHead | None) -> str:
    return f"{head.sequence}:{head.hash.hex()}" if head is not None else ""


def _say(found: Restored, dry_run: bool, as_json: bool) -> None:
    from gateway.api.resources.brokers import moment

    since, until = moment(found.since / 1e6), moment(found.until / 1e6)
    if as_json:
        document: dict[str, Any] = {
            "restored": not dry_run, "gone_since": since, "gone_until": until, "marked": found.marked,
            "set_aside": str(found.aside) if found.aside else None, "audit_log": found.audit or None,
        }  # fmt: skip
        print_json(document)
        return
    if found.audit:
        note(f"The audit log of the backup is not sound: {found.audit}")
    if dry_run:
        click.echo("The backup can be restored. Nothing was changed.")
    else:
        click.echo("The ledger is restored.")
    click.echo(f"Gone is what only the ledger held and was written from {since} to {until}:")
    click.echo("  scheduled publishes, stored messages of subscriptions and endpoints, Idempotency-Keys, history;")
    click.echo(
        "  API keys, and changes of subscriptions, endpoints, bridges and taps. Keys revoked then are valid again."
    )
    click.echo("What a broker holds is delivered.")
    if not dry_run:
        click.echo(f"{found.marked} messages of the ledger may have been delivered since; they are marked.")
        if found.aside is not None:
            note(f"The ledger that was there: {found.aside}")
