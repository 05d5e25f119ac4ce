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

if TYPE_CHECKING:
    from gateway.ledger import Ledger
    from gateway.webhooks.secrets import Seals

T = TypeVar("T")


@click.group(short_help="Show and renew the keys that seal secrets in the ledger.")
def secrets() -> None:
    """Show and renew the keys that seal secrets in the ledger: those of endpoints, and their signing keys.

    The keys are the lines of ledger.secrets_file: the first one seals, all of them open. Both verbs open the ledger
    itself: with SQLite the gateway must not run meanwhile.
    """


async def _with(config: str | None, data_dir: str | None, work: Callable[[Ledger, Seals], Awaitable[T]]) -> T:
    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.ledger import Ledger
    from gateway.webhooks.secrets import load_seals

    settings = load(config, overrides={"data_dir": data_dir})
    address = await asyncio.to_thread(ledger_url, settings)
    seals = await asyncio.to_thread(load_seals, settings.ledger.secrets_file, Path(settings.data_dir) / "secrets.key")
    ledger = await Ledger.open(address, settings.ledger, owner="gateway secrets")
    try:
        return await work(ledger, seals)
    finally:
        await ledger.close()


@secrets.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@data_dir_option
def list_secrets(as_json: bool, config: str | None, data_dir: str | None) -> None:
    """Show the keys by their names, and how many secrets are sealed with each."""
    from gateway.webhooks import resealing

    async def work(ledger: Ledger, seals: Seals) -> list[dict[str, object]]:
        counts = await resealing.used(ledger)
        names = [*seals.names, *sorted(counts.keys() - set(seals.names))]
        return [
            {"key": name, "secrets": counts[name], "there": name in seals.names, "seals": name == seals.name}
            for name in names
        ]

    found = asyncio.run(_with(config, data_dir, work))
    if as_json:
        print_json({"keys": found})
        return
    print_table(
        ("KEY", "SECRETS", "IN THE FILE", "SEALS"),
        (
            (row["key"], row["secrets"], "yes" if row["there"] else "MISSING", "yes" if row["seals"] else "-")
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
    4. gateway secrets list: the old keys have 0 secrets. Take their lines out.
    """
    from gateway.webhooks import resealing

    done, failed = asyncio.run(_with(config, data_dir, resealing.rotate))
    note(f"{done} secrets are sealed anew")
    if failed:
        raise Failure("not all: " + "; ".join(failed), PARTLY_DONE)
