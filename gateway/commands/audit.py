"""``gateway audit``: the audit log, checked and written out; read from the ledger, beside a gateway that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.commands import Failure
from gateway.commands.client import note, print_json
from gateway.commands.options import config_option, data_dir_option
from gateway.exits import DAMAGED
from gateway.runtime.clock import clock
from gateway.terminal import json_text, output_options

if TYPE_CHECKING:
    import sqlalchemy as sa

    from gateway.config import Config

T = TypeVar("T")


@click.group(short_help="Check the audit log, and write it out.")
def audit() -> None:
    """Check the audit log, and write it out: who changed what, and who was refused.

    Each row is chained to the one before by its hash, and has a MAC with a key that the database does not have. Both
    verbs read the ledger itself: the gateway may run.
    """


def _read(settings: Config, work: Callable[[sa.Connection, bool], T]) -> T:
    """``work`` gets a connection with one snapshot, and whether several processes write to the ledger."""
    from sqlalchemy import exc

    from gateway.app import ledger_url
    from gateway.ledger.db import schema
    from gateway.ledger.db.engine import Database, unavailable

    database = Database(ledger_url(settings))
    engine = database.readers()
    try:
        with engine.connect() as connection:
            if database.shared:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            schema.check(connection)
            return work(connection, database.shared)
    except exc.DBAPIError as error:
        raise unavailable(error) from error
    finally:
        engine.dispose()


def _load(config: str | None, data_dir: str | None) -> Config:
    from gateway.config import load

    return load(config, overrides={"data_dir": data_dir})


class _HeadType(click.ParamType[tuple[int, bytes]]):
    name = "SEQUENCE:HASH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, bytes]:
        sequence, _, digest = str(value).partition(":")
        try:
            found = int(sequence), bytes.fromhex(digest)
        except ValueError:
            found = 0, b""
        if found[0] < 1 or len(found[1]) != 32:
            self.fail("it is not as `verify` prints it", param, ctx)
        return found


class _RowsType(click.ParamType[range]):
    name = "FIRST[-LAST]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        first, _, last = str(value).partition("-")
        try:
            found = range(int(first), int(last or first) + 1)
        except ValueError:
            found = range(0)
        if not found or found.start < 1:
            self.fail(f"{str(value)[:40]!r}: expected the number of a row, or two with a hyphen: 120-140", param, ctx)
        return found


@audit.command("verify")
@click.option("--head", type=_HeadType(), help="A head that was kept elsewhere: it must still be on the chain.")
@click.option(
    "--accept", "accepted", type=_RowsType(), multiple=True,
    help="Rows that you know about: of an earlier release, or a finding that was looked into. May be repeated.",
)  # fmt: skip
@output_options
@config_option
@data_dir_option
def verify_audit(
    head: tuple[int, bytes] | None,
    accepted: tuple[range, ...],
    as_json: bool,
    config: str | None,
    data_dir: str | None,
) -> None:
    """Check the whole log: hashes, MACs, times, and what went for its age. Print its head.

    The keys are those of ledger.secrets_file, and the days those of retention.audit_days: give the gateway's
    configuration. The head that the gateway keeps in audit.head_file must be on the chain, where that file is there,
    and so must --head. Without both, nobody can see that rows at the end were cut off, and the command says so.

    \b
    Exit status: 0 the log is sound; 9 rows are changed, missing, inserted or
    not the gateway's; 2 a wrong setting; 5 the ledger cannot be read.

    \b
    Example:
      gateway audit verify --config gateway.toml
    """

    from gateway.access.heads import head_path, read_head
    from gateway.app import audit_keys
    from gateway.ledger.access.audit import AuditHead, AuditKeys
    from gateway.ledger.access.audit_check import AuditRules, verify

    settings = _load(config, data_dir)
    path = head_path(settings.audit, Path(settings.data_dir))
    kept = read_head(path)  # before the log is read: what the file knows is there
    heads = [AuditHead(*head)] if head else []
    heads += [kept] if kept is not None else []
    rules = AuditRules(
        AuditKeys(audit_keys(settings, make=False)),
        int(clock.now() * 1e6),
        settings.retention.audit_days,
        False,
        accepted,
    )
    found = _read(settings, lambda connection, shared: verify(connection, heads, rules._replace(shared=shared)))
    text = f"{found.head.sequence}:{found.head.hash.hex()}"
    if as_json:
        print_json(
            {
                "rows": found.rows, "first": found.first, "head": text, "mac": found.head.mac.hex(),
                "broken": found.broken or None, "why": found.why, "first_with_mac": found.keyed or None,
                "later_without_mac": found.without, "end_checked": bool(heads),
            }
        )  # fmt: skip
    elif not found.broken:
        since = f" from row {found.first} on" if found.first > 1 else ""
        note(f"{found.rows} rows{since}, sound.")
        if found.keyed > found.first:
            note(f"Rows before {found.keyed} are of an earlier release, and have no MAC of their own.")
        if found.without:
            note(
                f"{found.without} rows behind row {found.keyed} have no MAC: an earlier release wrote beside this one."
            )
        if not heads:
            note(f"The end was not checked: {path} is not there, and no --head. A cut at the end cannot be seen.")
        note("The head:")
        click.echo(text)
    if found.broken:
        raise Failure(
            f"row {found.broken} of the audit log: {found.why}. {found.rows} rows before it are sound.", DAMAGED
        )


@audit.command("export")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Only rows behind this number.")
@config_option
@data_dir_option
def export_audit(after: int, config: str | None, data_dir: str | None) -> None:
    """Print the rows as NDJSON, oldest first. `text` is the entry exactly as the hash is over it.

    \b
    Example:
      gateway audit export --config gateway.toml > audit.ndjson
    """
    from gateway.ledger.access.audit import AuditRow, rows

    def line(row: AuditRow) -> str:
        try:
            entry: Any = row.document()
        except ValueError:
            entry = None
        return json_text(
            {
                "sequence": row.sequence,
                "at": row.at,
                "entry": entry,
                "text": row.entry.decode("utf-8", "backslashreplace"),
                "previous": row.previous.hex(),
                "hash": row.hash.hex(),
                "mac": row.mac.hex() if row.mac is not None else None,
                "mac_key": row.mac_key,
            }
        )

    def work(connection: sa.Connection, _: bool) -> None:
        for row in rows(connection, after):
            click.echo(line(row))

    _read(_load(config, data_dir), work)
