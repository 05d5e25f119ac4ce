"""``gateway subscriptions``: queues made available to consumers, shown, put, paused and deleted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gateway.commands import Noun
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.settings import confirm, exists, pages, read_settings, yes_option


@click.group(cls=Noun, short_help="Show, put, pause and delete subscriptions.")
def subscriptions() -> None:
    """Show, put, pause and delete subscriptions: queues made available to consumers.

    `gateway pull NAME` takes messages from one.
    """


def subscription_path(name: str) -> str:
    """Where the API has a subscription."""
    return f"/v1/subscriptions/{segment(name)}"


@subscriptions.command("list")
@client_options
def list_subscriptions(url: str, api_key: str | None, as_json: bool) -> None:
    """List the subscriptions and how they stand.

    \b
    Example:
      gateway subscriptions list
    """
    found = pages(ApiClient(url, api_key), "/v1/subscriptions", "subscriptions")
    if as_json:
        print_json({"subscriptions": found})
        return
    if not found:
        note("no subscriptions yet")
    print_table(
        ("NAME", "STATE", "FROM", "LEASE", "TO", "OUT", "REASON"),
        (
            (
                row["name"],
                row["state"],
                source_text(row),
                row["lease"],
                row["push"] or "pull",
                row["leases"],
                row["reason"] or "-",
            )
            for row in found
        ),
        whole=("FROM",),
        first_out=("OUT", "LEASE", "TO") if any(row["reason"] for row in found) else (),
    )


@subscriptions.command("show")
@click.argument("name")
@client_options
def get_subscription(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show everything about the subscription NAME, and what the ledger owes it.

    \b
    Example:
      gateway subscriptions show billing
    """
    print_subscription(ApiClient(url, api_key).ask("GET", subscription_path(name)), as_json)


@subscriptions.command("put")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace other settings of a subscription that is there.")
@client_options
def put_subscription(name: str, file: Any, replace: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Create the subscription NAME with the settings in FILE, or leave it as it is if it has them.

    FILE is JSON, or TOML as in the configuration file: the settings themselves, or with [subscriptions.NAME] before
    them. `-` is the standard input.

    \b
    Example:
      gateway subscriptions put billing - <<END
      broker = "local-0-10"
      queue = "orders"
      lease = "ledger"
      END
    """
    settings = read_settings(file.read(), name, "subscriptions")
    client = ApiClient(url, api_key)
    path = subscription_path(name)
    headers = {"if-match": "*"} if replace and exists(client, path) else {}
    found = client.ask("PUT", path, body=settings, headers=headers)
    if as_json:
        print_json(found)
    else:
        note(f"{name} is {found['state']}: from {source_text(found)}, leases held by the {found['lease']}")


@subscriptions.command("delete")
@click.argument("name")
@yes_option
@client_options
def delete_subscription(name: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Delete the subscription NAME. What the ledger owes it waits until there is one of this name again.

    \b
    Example:
      gateway subscriptions delete billing
    """
    client = ApiClient(url, api_key)
    confirm(client, subscription_path(name), "Delete it?", yes)
    client.ask("DELETE", subscription_path(name))
    if as_json:
        print_json({})
    else:
        note("deleted")


@subscriptions.command("pause")
@click.argument("name")
@client_options
def pause_subscription(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the subscription NAME take and hand out nothing, until it is resumed.

    \b
    Example:
      gateway subscriptions pause billing
    """
    print_state(ApiClient(url, api_key).ask("POST", subscription_path(name) + ":pause"), as_json)


@subscriptions.command("resume")
@click.argument("name")
@client_options
def resume_subscription(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the subscription NAME go on.

    \b
    Example:
      gateway subscriptions resume billing
    """
    print_state(ApiClient(url, api_key).ask("POST", subscription_path(name) + ":resume"), as_json)


def print_state(found: Mapping[str, Any], as_json: bool) -> None:
    """How it stands now."""
    if as_json:
        print_json(found)
    else:
        note(f"{found['name']} is {found['state']}")


def print_subscription(found: Mapping[str, Any], as_json: bool) -> None:
    """All that there is to say."""
    if as_json:
        print_json(found)
        return
    rows = []
    for field, value in found.items():
        if field == "settings":  # each stands for itself, too
            continue
        if isinstance(value, dict):
            rows += [(f"{field} {name}".replace("_", " "), inner) for name, inner in value.items()]
        else:
            rows.append((field.replace("_", " "), "-" if value in ("", None) else value))
    print_table(("FIELD", "VALUE"), rows)


def source_text(row: Mapping[str, Any]) -> str:
    """Where its messages come from."""
    if row["exchange"]:
        key = f" {printable(row['binding_key'])}" if row["binding_key"] else ""
        return f"{row['broker']} {printable(row['exchange'])}{key}"
    return f"{row['broker']} {printable(row['queue'])}"
