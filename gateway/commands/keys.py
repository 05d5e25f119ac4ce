"""``gateway keys``: keys of callers, made, listed, replaced and revoked; over HTTP, or straight in the ledger."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.options import config_option, data_dir_option
from gateway.commands.settings import PAGE, confirm, yes_option
from gateway.runtime.threads import threads

if TYPE_CHECKING:
    from gateway.access.keys import StoredKeys

T = TypeVar("T")
DAY = 86_400
SHOWN = ("live", "refused")
"""States of keys that are listed without ``--all``."""
environment_option = click.option(
    "--environment", default="live", show_default=True, metavar="NAME", help="Stands in the key."
)
days_option = click.option(
    "--days", type=click.IntRange(0, 36_600), default=365, show_default=True, help="How long it lives; 0: for ever."
)


@click.group(short_help="Make, show, replace and revoke API keys.")
def keys() -> None:
    """Make, show, replace and revoke the API keys that the ledger has.

    A client may have two live keys: the one in use, and the one that replaces it. Those of the configuration file are
    not among them.
    """


@keys.command("create")
@click.argument("client")
@click.option("--scope", "scopes", multiple=True, required=True, metavar="SCOPE", help="What it allows; several times.")
@environment_option
@days_option
@click.option("--offline", is_flag=True, help="Write it straight into the ledger: for the first key of all.")
@config_option
@data_dir_option
@client_options
def create_key(
    client: str,
    scopes: tuple[str, ...],
    environment: str,
    days: int,
    offline: bool,
    config: str | None,
    data_dir: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Make a key for CLIENT, and print it. The key is shown only once. Store it now.

    \b
    Scopes: publish:BROKER/EXCHANGE  route:BROKER/EXCHANGE/PATTERN
            consume:BROKER/QUEUE  subscribe:BROKER/QUEUE  broker:BROKER
            endpoint:NAME  history  admin
    Example: gateway keys create shop --scope publish:orders/* --scope history
             gateway keys create till --scope "route:orders/sales/eu.#"
    """
    body = {"client": client, "scopes": list(scopes), "environment": environment, "expires_seconds": days * DAY}
    if not offline:
        _print_new(ApiClient(url, api_key).ask("POST", "/v1/keys", body=body), as_json)
        return
    by = f"offline:{getpass.getuser()}"

    async def make(stored: StoredKeys, brokers: Collection[str]) -> dict[str, Any]:
        key, secret = await stored.create(
            client, scopes, brokers=brokers, by=by, environment=environment, seconds=days * DAY
        )
        return {"id": key.id, "client": key.client, "scopes": list(key.scopes), "hint": key.hint, "key": secret}

    _print_new(asyncio.run(_in_the_ledger(config, data_dir, make)), as_json)


async def _in_the_ledger(
    config: str | None, data_dir: str | None, work: Callable[[StoredKeys, Collection[str]], Awaitable[T]]
) -> T:
    from gateway.access.keys import StoredKeys
    from gateway.app import audit_keys, key_macs, ledger_url
    from gateway.broker_store import BROKERS_MAX
    from gateway.config import broker_names, load
    from gateway.core.broker_documents import BROKER_RESOURCE
    from gateway.ledger import Ledger
    from gateway.webhooks.settings.secrets import load_seals

    settings = load(config, overrides={"data_dir": data_dir})
    address = ledger_url(settings)
    keys = await threads.run(audit_keys, settings)
    ledger = await Ledger.open(
        address, settings.ledger, owner="gateway keys", migrate=address.startswith("sqlite"),
        audit_keys=keys,
    )  # fmt: skip
    try:
        seals = load_seals(settings.ledger.secrets_file, Path(settings.data_dir) / "secrets.key")
        ledger.api_keys.macs = await threads.run(key_macs, settings, seals)
        stored = StoredKeys(ledger, frozenset(key.name for key in settings.api_keys))
        stored_brokers, _ = await ledger.list_resources(BROKER_RESOURCE, None, 2 * BROKERS_MAX)
        return await work(stored, broker_names(settings).union(row.name for row in stored_brokers))
    finally:
        await ledger.close()


def _print_new(key: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    note(f"{key['id']}: for {key['client']}, {', '.join(key['scopes'])}. The key is shown only once. Store it now:")
    click.echo(printable(key["key"]))


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Also keys that are expired or revoked.")
@client_options
def list_keys(everything: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """List the keys that are live, and those that are refused although they would be.

    A refused key opens nothing: somebody has changed its row in the database, or the configuration file has keys of
    its client. The reason is printed under the table.

    \b
    Example:
      gateway keys list
    """
    client, found, cursor = ApiClient(url, api_key), [], ""
    while True:
        query = {"limit": str(PAGE)} | ({"cursor": cursor} if cursor else {})
        page = client.ask("GET", "/v1/keys", query=query)["keys"]
        found += [key for key in page if everything or key["state"] in SHOWN]
        if len(page) < PAGE:
            break
        cursor = page[-1]["id"]
    if as_json:
        print_json({"keys": found})
        return
    print_table(
        ("ID", "CLIENT", "KEY", "STATE", "EXPIRES", "LAST USED", "SCOPES"),
        (
            (
                key["id"],
                key["client"],
                key["hint"] + "…",
                key["state"],
                key["expires_at"] or "never",
                key["last_used_at"] or "-",
                " ".join(key["scopes"]),
            )
            for key in found
        ),
    )
    for key in found:
        if refusal := key.get("refusal"):
            note(f"{key['id']} opens nothing: {refusal}")


@keys.command("rotate")
@click.argument("key")
@environment_option
@days_option
@click.option("--overlap", type=click.IntRange(0, 720), default=24, show_default=True, help="Hours that both open.")
@client_options
def rotate_key(
    key: str, environment: str, days: int, overlap: int, url: str, api_key: str | None, as_json: bool
) -> None:
    """Replace the key of the id KEY by a new one, with the same client and scopes, and print that.

    \b
    Example:
      gateway keys rotate 3f9a1c20 --overlap 48
    """
    body = {"environment": environment, "expires_seconds": days * DAY, "overlap_seconds": overlap * 3_600}
    _print_new(ApiClient(url, api_key).ask("POST", f"/v1/keys/{segment(key)}:rotate", body=body), as_json)


@keys.command("revoke")
@click.argument("key")
@yes_option
@client_options
def revoke_key(key: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Revoke the key of the id KEY: it opens nothing any more.

    \b
    Example:
      gateway keys revoke 3f9a1c20
    """
    client = ApiClient(url, api_key)
    confirm(client, f"/v1/keys/{segment(key)}", "Revoke it?", yes)
    found = client.ask("POST", f"/v1/keys/{segment(key)}:revoke", body={})
    if as_json:
        print_json(found)
    else:
        note(f"{found['id']} of {found['client']} is revoked")
