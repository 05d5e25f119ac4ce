"""``gateway messages`` and ``gateway why ID``: what the ledger knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gateway.commands.client import Client, client_options, print_json, print_table, printable, segment


@click.command(short_help="Show what the ledger knows, newest first.")
@click.option("--broker", metavar="NAME", help="Only messages of this broker.")
@click.option("--state", metavar="STATE", help="Only messages in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@client_options
def messages(broker: str | None, state: str | None, limit: int, url: str, api_key: str | None, as_json: bool) -> None:
    """Show the messages that the ledger knows, the newest first."""
    given = {"broker": broker, "state": state, "limit": str(limit)}
    query = {name: value for name, value in given.items() if value}
    answer = Client(url, api_key).ask("GET", "/v1/messages", query=query)
    if as_json:
        print_json(answer)
        return
    print_table(
        ("ID", "AT", "STATE", "BROKER", "EXCHANGE", "ROUTING KEY", "OCTETS"),
        (
            (
                row["id"],
                row["at"],
                row["state"],
                row["broker"],
                row["exchange"] or "(default)",
                row["routing_key"],
                row["size"],
            )
            for row in answer["messages"]
        ),
    )


@click.command(short_help="Show what happened to one message.")
@click.argument("id")
@client_options
def why(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show the timeline of the message ID: everything that happened to it, and the state it is in."""
    answer = Client(url, api_key).ask("GET", f"/v1/messages/{segment(id)}")
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['id']} is {answer['state']}.")
    print_timeline(answer)


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
        return " ".join(f"{name}={printable(value)}" for name, value in detail.items()) or "-"
    return printable(detail) if detail else "-"
