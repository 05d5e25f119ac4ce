"""``gateway scheduled``: publishes that the ledger holds until they are due, or that a broker refused."""

from __future__ import annotations

from typing import Any

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, segment
from gateway.commands.settings import confirm, yes_option

HEADS = ("ID", "STATE", "DUE", "BROKER", "EXCHANGE", "ROUTING KEY", "REASON")


@click.group(short_help="Show, move, cancel and retry scheduled publishes.")
def scheduled() -> None:
    """Show, move, cancel and retry scheduled publishes, and those that a broker refused.

    They come from `not_before`, `delay_seconds` and `Prefer: respond-async` of a publish.
    """


def scheduled_path(id: str) -> str:
    """Where the API has a scheduled publish."""
    return f"/v1/scheduled/{segment(id)}"


@scheduled.command("list")
@click.option("--broker", default="", help="Only messages for this broker.")
@click.option("--state", type=click.Choice(["scheduled", "refused"]), help="Only those in this state.")
@client_options
def list_scheduled(broker: str, state: str | None, url: str, api_key: str | None, as_json: bool) -> None:
    """List scheduled publishes by when they are due, and refused ones.

    \b
    Example:
      gateway scheduled list
    """
    query = {name: value for name, value in (("broker", broker), ("state", state or "")) if value}
    pages = ApiClient(url, api_key).pages("/v1/scheduled", {**query, "limit": "1000"})
    found = [row for page in pages for row in page["scheduled"]]
    if as_json:
        print_json({"scheduled": found})
    else:
        print_table(HEADS, map(_cells, found))


@scheduled.command("show")
@click.argument("id")
@client_options
def show_scheduled(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show how things stand with the publish ID, or what became of it.

    \b
    Example:
      gateway scheduled show 01a21ac4-4725-7000-9297-5a65c2e275f2
    """
    _print(ApiClient(url, api_key).ask("GET", scheduled_path(id)), as_json)


@scheduled.command("cancel")
@click.argument("id")
@yes_option
@client_options
def cancel_scheduled(id: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Cancel the publish ID: it is not sent.

    Where an earlier attempt has no outcome, it says that the message may have arrived.

    \b
    Example:
      gateway scheduled cancel 01a21ac4-4725-7000-9297-5a65c2e275f2
    """
    client = ApiClient(url, api_key)
    confirm(client, scheduled_path(id), "Cancel it?", yes)
    found = client.ask("DELETE", scheduled_path(id)) or {}
    if as_json:
        print_json(found)
    else:
        note(f"cancelled; {found['reason']}" if found else "cancelled")


@scheduled.command("move")
@click.argument("id")
@click.option("--not-before", metavar="TIME", help="Publish at this time: RFC 3339 with an offset.")
@click.option("--delay", metavar="SECONDS", type=click.FloatRange(min=0), help="Publish this many seconds from now.")
@client_options
def move_scheduled(
    id: str, not_before: str | None, delay: float | None, url: str, api_key: str | None, as_json: bool
) -> None:
    """Give the publish ID another time; with --delay 0 it is sent at once.

    \b
    Examples:
      gateway scheduled move 01a21ac4-4725-7000-9297-5a65c2e275f2 --delay 600
      gateway scheduled move 01a21ac4-4725-7000-9297-5a65c2e275f2 --not-before 2027-01-14T10:00:00Z
    """
    if (not_before is None) == (delay is None):
        raise click.UsageError("give one of --not-before and --delay")
    body = {"delay_seconds": delay} if not_before is None else {"not_before": not_before}
    _print(ApiClient(url, api_key).ask("PATCH", scheduled_path(id), body=body), as_json)


@scheduled.command("retry")
@click.argument("id")
@client_options
def retry_scheduled(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Send the publish ID again, which a broker refused.

    \b
    Example:
      gateway scheduled retry 01a21ac4-4725-7000-9297-5a65c2e275f2
    """
    _print(ApiClient(url, api_key).ask("POST", f"{scheduled_path(id)}:retry"), as_json)


def _print(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_table(HEADS, [_cells(found)])


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    due, exchange = row["not_before"] or "-", row["exchange"] or DEFAULT_EXCHANGE
    return (row["id"], row["state"], due, row["broker"], exchange, row["routing_key"], row["reason"] or "-")
