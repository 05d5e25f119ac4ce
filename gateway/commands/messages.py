"""``gateway messages``: what the ledger knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands.bridges import moment
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable

PAGES_SAID = 20
"""Pages after which a note says that a search takes long."""
TIME_HELP = "RFC 3339, or how long ago (90s, 2h, 1d)."
FILTERS: Mapping[str, tuple[str, str]] = {
    "broker": ("NAME", "Only messages of this broker."),
    "state": ("STATE", "Only messages in this state."),
    "exchange": ("NAME", "Only of this exchange; `amq.default` is the default one."),
    "routing-key": ("KEY", "Only with this routing key."),
    "subscription": ("NAME", "Only what this subscription had to do with."),
    "endpoint": ("NAME", "Only what this endpoint had to do with."),
    "bridge": ("NAME", "Only what this bridge had to do with."),
    "client": ("NAME", "Only what this API key published."),
    "origin": ("ORIGIN", "Only what came in by http, front, broker, bridge or replay."),
    "message-id": ("ID", "Only with this message-id, the publisher's."),
    "correlation-id": ("ID", "Only with this correlation-id."),
    "type": ("TYPE", "Only with this type."),
    "content-type": ("TYPE", "Only with this content-type."),
    "header": ("NAME=VALUE", "Only with this header, of those that the ledger keeps (ledger.headers)."),
    "since": ("TIME", f"Only messages made then or later: {TIME_HELP}"),
    "until": ("TIME", "Only messages made before that."),
}
"""Option -> what it takes, and what it does."""


def _filter_options(function: Any) -> Any:
    for name, (metavar, text) in reversed(list(FILTERS.items())):
        function = click.option(f"--{name}", metavar=metavar, help=text)(function)
    return function


@click.command(short_help="Show what the ledger knows, newest first.")
@_filter_options
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True, help="How many at most.")
@client_options
def messages(limit: int, url: str, api_key: str | None, as_json: bool, **filters: str | None) -> None:
    """Show the messages that the ledger knows, the newest first.

    \b
    Examples:
      gateway messages --state dead --since 1d
      gateway messages --subscription billing --header tenant=7
    """
    given = {name: moment(value) if name in ("since", "until") else value for name, value in filters.items()}
    query = {name: value for name, value in given.items() if value}
    found: list[dict[str, Any]] = []
    pages = ApiClient(url, api_key).pages("/v1/messages", {**query, "limit": str(min(limit, 1000))})
    for number, page in enumerate(pages, 1):
        found += page["messages"]
        if len(found) >= limit:
            break
        if number % PAGES_SAID == 0:
            note(f"{len(found)} found so far; looking further back (--since bounds that)")
    if as_json:
        print_json({"messages": found[:limit]})
        return
    print_table(
        ("ID", "AT", "STATE", "BROKER", "EXCHANGE", "ROUTING KEY", "OCTETS"),
        (
            (
                row["id"],
                row["at"],
                row["state"],
                row["broker"],
                row["exchange"] or DEFAULT_EXCHANGE,
                row["routing_key"],
                row["size"],
            )
            for row in found[:limit]
        ),
    )


def print_timeline(message: Mapping[str, Any]) -> None:
    """The events of a message, in their order."""
    print_table(
        ("AT", "EVENT", "BROKER", "VERSION", "DETAIL"),
        (
            (event["at"], event["kind"], event["broker"], event["version"], detail_text(event["detail"]))
            for event in message["events"]
        ),
    )


def detail_text(detail: Any) -> str:
    """What else is known of an event, as ``name=value``."""
    if isinstance(detail, Mapping):
        return " ".join(f"{printable(name)}={printable(value)}" for name, value in detail.items()) or "-"
    return printable(detail) if detail else "-"
