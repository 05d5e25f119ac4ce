"""``gateway backup``: a copy of the SQLite ledger while a gateway uses it, once or every few seconds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gateway.commands import Failure
from gateway.commands.options import config_option, data_dir_option
from gateway.runtime.clock import clock
from gateway.terminal import note, output_options, print_json_line

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.ledger.backups import BackupInfo

POSTGRESQL = (
    "the ledger is on PostgreSQL: back it up with PostgreSQL's own tools, such as pg_dump --format=custom. "
    "See docs/how-to/backup.md"
)


@click.command(short_help="Copy the SQLite ledger while a gateway uses it.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--follow",
    type=click.FloatRange(1),
    metavar="SECONDS",
    help="Make the backup again after this many seconds, until the command is ended.",
)
@output_options
@config_option
@data_dir_option
def backup(file: Path, follow: float | None, as_json: bool, config: str | None, data_dir: str | None) -> None:
    """Copy the SQLite ledger to FILE while a gateway uses it.

    The backup holds everything that was committed before it began. FILE is replaced as a whole, so that there is always
    one that is complete. A backup that is there stays if the ledger cannot be read.

    No key is in it. Keep the files of keys that the command names in another place: without them a backup cannot be
    restored.

    \b
    Examples:
      gateway backup /backups/ledger.backup
      gateway backup /mnt/other-machine/ledger.backup --follow 10
    """
    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.errors import LedgerUnavailable
    from gateway.ledger.backups import back_up
    from gateway.ledger.db.engine import Database

    settings = load(config, overrides={"data_dir": data_dir})
    path = Database(ledger_url(settings)).path
    if path is None:
        raise Failure(POSTGRESQL)
    if not path.exists():
        raise Failure(f"{path} is not there: no gateway has run with this data folder yet")
    try:
        _print(back_up(path, file), file, as_json)
    except OSError as error:
        raise Failure(f"{error.filename or file}: {error.strerror}") from None
    for text in key_files(settings):
        note(text)
    with suppress(KeyboardInterrupt):  # how one ends what does not end
        while follow is not None:
            clock.block(follow)
            try:
                _print(back_up(path, file), file, as_json)
            except (LedgerUnavailable, OSError) as error:
                note(f"gateway: {error}; trying again in {follow:g} s")


def key_files(settings: Config) -> list[str]:
    """What to say of each file of keys that belongs to the ledger."""
    data = Path(settings.data_dir)
    sealing = Path(settings.ledger.secrets_file or data / "secrets.key")
    found = (
        [f"Keep a copy in another place: {sealing} (it opens the secrets in the backup)"] if sealing.exists() else []
    )
    ack_ids = data / "ack-ids.key"
    if ack_ids.exists():
        found.append(f"Keep a copy in another place: {ack_ids} (without it, messages that are leased now come again)")
    return found


def _print(info: BackupInfo, file: Path, as_json: bool) -> None:
    from gateway.api.resources.brokers import moment

    at = moment(info.at / 1e6)
    if as_json:
        print_json_line({"file": str(file), "at": at, "octets": info.size, "sha256": info.sha256})
    else:
        click.echo(f"{file}: the ledger as of {at}, {info.size:,} bytes")
