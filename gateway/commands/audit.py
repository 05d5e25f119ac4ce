"""``gateway audit``: the audit log, checked and written out; read from the ledger, beside a gateway that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.commands import Failure
from gateway.commands.client import note, print_json
from gateway.commands.options import config_option, data_dir_option
from gateway.exits import DAMAGED
from gateway.terminal import json_text

if TYPE_CHECKING:
    import sqlalchemy as sa

T = TypeVar("T")


@click.group(short_help="Check the audit log, and write it out.")
def audit() -> None:
    """Check the audit log, and write it out: who changed what, and who was refused.

    Each row is chained to the one before by its hash. Both verbs read the ledger itself: the gateway may run.
    """


def _read(config: str | None, data_dir: str | None, work: Callable[[sa.Connection], T]) -> T:
    from sqlalchemy import exc

    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.ledger import schema
    from gateway.ledger.engine import Database, unavailable

    engine = Database(ledger_url(load(config, overrides={"data_dir": data_dir}))).readers()
    try:
        with engine.connect() as connection:
            schema.check(connection)
            return work(connection)
    except exc.DBAPIError as error:
        raise unavailable(error) from error
    finally:
        engine.dispose()


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


@audit.command("verify")
@click.option("--head", type=_HeadType(), help="A head that was kept elsewhere: it must still be on the chain.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@data_dir_option
def verify_audit(head: tuple[int, bytes] | None, as_json: bool, config: str | None, data_dir: str | None) -> None:
    """Walk the whole chain, and print its head.

    Keep the head somewhere else, and give it with --head next time: only so is it seen that the newest rows were cut
    off, or that the whole chain was made anew.
    """
    from gateway.ledger.audit import Head, verify

    found = _read(config, data_dir, lambda connection: verify(connection, Head(*head) if head else None))
    text = f"{found.head.sequence}:{found.head.hash.hex()}"
    if as_json:
        broken = found.broken or None
        print_json({"rows": found.rows, "first": found.first, "head": text, "broken": broken, "why": found.why})
    elif not found.broken:
        since = f" from row {found.first} on" if found.first > 1 else ""
        note(f"{found.rows} rows{since}, sound. The head:")
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
    """Print the rows as NDJSON, oldest first. `text` is the entry exactly as the hash is over it."""
    from gateway.ledger.audit import Row, rows

    def line(row: Row) -> str:
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
            }
        )

    def work(connection: sa.Connection) -> None:
        for row in rows(connection, after):
            click.echo(line(row))

    _read(config, data_dir, work)
