"""``gateway fronts``: the ports for AMQP clients, and who is connected to them."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, segment
from gateway.commands.settings import pages


@click.group(short_help="Show fronts and their clients, and close clients.")
def fronts() -> None:
    """Show fronts: ports for AMQP clients, which are served from a broker. Each process has its own."""


@fronts.command("list")
@client_options
def list_fronts(url: str, api_key: str | None, as_json: bool) -> None:
    """List the fronts of the gateway at --url.

    \b
    Example:
      gateway fronts list
    """
    found: dict[str, Any] = ApiClient(url, api_key).ask("GET", "/v1/fronts")
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "LISTENS ON", "BROKERS", "LOGIN", "CLIENTS", "CONNECTIONS", "REWRITTEN", "REFUSED"),
        (
            (
                row["name"],
                f"{row['host']}:{row['port']}{' (TLS)' if row['tls'] else ''}",
                ", ".join(sorted(set(row["virtual_hosts"].values()))),
                row["login"],
                row["clients"],
                f"{sum(each['up'] for each in row['connections'])} of {len(row['connections'])} up",
                sum(row["rewrites"].values()),
                sum(each["count"] for each in row["refusals"]),
            )
            for row in found["fronts"]
        ),
    )


@fronts.command("show")
@click.argument("name")
@client_options
def show_front(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show everything about the front NAME: connections, rewritten and refused requests.

    \b
    Example:
      gateway fronts show legacy
    """
    front: dict[str, Any] = ApiClient(url, api_key).ask("GET", _path(name))
    if as_json:
        print_json(front)
        return
    connections, refusals = front.pop("connections"), front.pop("refusals")
    print_table(("FIELD", "VALUE"), ((field.replace("_", " "), _text(value)) for field, value in front.items()))
    print_table(
        ("BROKER", "LOGIN", "STATE", "PRODUCT", "CLIENTS", "CHANNELS", "RESTORES", "RULES"),
        (
            (
                each["broker"],
                each["login"],
                "down" if not each["up"] else f"blocked: {each['blocked']}" if each["blocked"] else "up",
                f"{each['product']} {each['product_version']}".strip() or "-",
                each["clients"],
                each["channels"],
                each["restores"],
                ", ".join(each["rules"]) or "-",
            )
            for each in connections
        ),
    )
    if refusals:
        print_table(
            ("REFUSED", "CODE", "COUNT"), ((each["operation"], each["code"], each["count"]) for each in refusals)
        )


@fronts.command("clients")
@click.argument("name")
@client_options
def list_clients(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """List the clients of the front NAME.

    \b
    Example:
      gateway fronts clients legacy
    """
    found = pages(ApiClient(url, api_key), f"{_path(name)}/clients", "clients")
    if as_json:
        print_json({"clients": found})
        return
    print_table(
        ("CLIENT", "USER", "ADDRESS", "VERSION", "PRODUCT", "BROKER", "SINCE", "CHANNELS", "CONSUMERS", "UNACKED",
         "UNCONFIRMED", "REWRITTEN"),
        (
            (
                row["client"],
                row["user"],
                row["address"],
                row["version"],
                f"{row['product']} {row['product_version']}".strip() or "-",
                row["broker"],
                row["since"],
                row["channels"],
                row["consumers"],
                row["unacknowledged"],
                row["unconfirmed"],
                _text(row["rewrites"]),
            )
            for row in found
        ),
    )  # fmt: skip


@fronts.command("close")
@click.argument("name")
@click.argument("client", type=int)
@client_options
def close_client(name: str, client: int, url: str, api_key: str | None, as_json: bool) -> None:
    """Close the connection of CLIENT, a number that `clients` shows, to the front NAME.

    Most clients connect again. To keep one out, remove its user or its right to log in.

    \b
    Example:
      gateway fronts close legacy 1
    """
    ApiClient(url, api_key).ask("DELETE", f"{_path(name)}/clients/{client}")
    if as_json:
        print_json({})
    else:
        note(f"client {client} is being closed")


def _path(name: str) -> str:
    return f"/v1/fronts/{segment(name)}"


def _text(value: Any) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(str(each) for each in value) or "-"
    return "-" if value == "" else str(value)
