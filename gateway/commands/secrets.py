"""``gateway secrets``: the keys that seal secrets in the ledger, shown and put to use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from gateway.commands import PARTLY_DONE, Failure
from gateway.commands.client import note, print_json, print_table
from gateway.commands.options import config_option, data_dir_option
from gateway.runtime.threads import threads
from gateway.terminal import output_options

if TYPE_CHECKING:
    from gateway.ledger import Ledger
    from gateway.webhooks.settings.secrets import Seals

T = TypeVar("T")


@click.group(short_help="Make, show and renew the keys that seal secrets in the ledger.")
def secrets() -> None:
    """Make, show and renew the keys that seal secrets in the ledger: those of endpoints, and their signing keys.

    The keys are the lines of ledger.secrets_file: the first one seals, all of them open. list and rotate open the
    ledger: with SQLite the gateway must not run at the same time.
    """


@secrets.command("new")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@config_option
def new_secrets(file: Path | None, config: str | None) -> None:
    """Make FILE with a new key, readable by you only. A file that exists is never changed.

    Without FILE, the path is that of ledger.secrets_file. Gateways that share a ledger need the same file.

    \b
    Examples:
      gateway secrets new /etc/gateway/secrets.key
      gateway secrets new --config gateway.toml
    """
    from gateway.config import load
    from gateway.webhooks.settings.secrets import make_key_file

    if file is None:
        named = load(config).ledger.secrets_file
        if not named:
            raise click.UsageError("Name a FILE, or set ledger.secrets_file.")
        file = Path(named)
    try:
        make_key_file(file)
    except FileExistsError:
        raise Failure(f"{file} exists; it was not changed. To renew its key: gateway secrets rotate --help") from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    note(f"{file} has a new key. Set ledger.secrets_file = {str(file)!r} (GATEWAY_SECRETS_FILE)")


async def _with(config: str | None, data_dir: str | None, work: Callable[[Ledger, Seals], Awaitable[T]]) -> T:
    from gateway.app import key_macs, ledger_url
    from gateway.config import load
    from gateway.ledger import Ledger
    from gateway.webhooks.settings.secrets import load_seals

    settings = load(config, overrides={"data_dir": data_dir})
    address = await threads.run(ledger_url, settings)
    seals = await threads.run(load_seals, settings.ledger.secrets_file, Path(settings.data_dir) / "secrets.key")
    ledger = await Ledger.open(address, settings.ledger, owner="gateway secrets")
    ledger.api_keys.macs = await threads.run(key_macs, settings, seals)
    try:
        return await work(ledger, seals)
    finally:
        await ledger.close()


@secrets.command("list")
@output_options
@config_option
@data_dir_option
def list_secrets(as_json: bool, config: str | None, data_dir: str | None) -> None:
    """Show the keys by their names, how many secrets and API keys are sealed with each, and how many rows of the audit
    log have a MAC of it.

    \b
    Example:
      gateway secrets list --config gateway.toml
    """
    from gateway.ledger.access.audit import keys_used
    from gateway.webhooks.settings import resealing

    async def work(ledger: Ledger, seals: Seals) -> list[dict[str, object]]:
        counts = await ledger.read(resealing.used)
        rows: dict[str, int] = await ledger.read(keys_used)
        names = [*seals.names, *sorted((counts.keys() | rows.keys()) - set(seals.names))]
        return [
            {
                "key": name, "secrets": counts[name], "audit_rows": rows.get(name, 0), "there": name in seals.names,
                "seals": name == seals.name,
            }
            for name in names
        ]  # fmt: skip

    found = asyncio.run(_with(config, data_dir, work))
    if as_json:
        print_json({"keys": found})
        return
    print_table(
        ("KEY", "SECRETS", "AUDIT ROWS", "IN THE FILE", "SEALS"),
        (
            (
                row["key"],
                row["secrets"],
                row["audit_rows"],
                "yes" if row["there"] else "MISSING",
                "yes" if row["seals"] else "-",
            )
            for row in found
        ),
    )


@secrets.command("rotate")
@config_option
@data_dir_option
def rotate_secrets(config: str | None, data_dir: str | None) -> None:
    """Seal everything with the first key of the file that is sealed with another.

    \b
    1. Add a line to ledger.secrets_file, behind the others: 32 random octets in base64.
       Restart every gateway on the ledger: all of them can open what it seals.
    2. Make it the first line, and restart them again: it seals what is new.
    3. gateway secrets rotate
    4. gateway secrets list: the old keys have 0 secrets. A key with 0 audit
       rows, too, is needed no more: take its line out. The others stay, last,
       for gateway audit verify, until retention.audit_days have passed.

    \b
    Example:
      gateway secrets rotate --config gateway.toml
    """
    from gateway.webhooks.settings import resealing

    done, failed = asyncio.run(_with(config, data_dir, resealing.rotate))
    note(f"{done} secrets are sealed again")
    if failed:
        raise Failure("not all: " + "; ".join(failed), PARTLY_DONE)
