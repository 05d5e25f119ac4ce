"""``gateway exchanges`` and ``gateway bindings``: what a broker routes by."""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, segment
from gateway.commands.resources import parse_arguments
from gateway.commands.settings import LISTED, arguments_text, confirm, declared, yes_option

arguments_option = click.option(
    "--arguments", default="{}", metavar="JSON", help='Arguments, as in {"x-match": "any"}.'
)


@click.group(short_help="Declare, show and delete a broker's exchanges.")
def exchanges() -> None:
    """Declare, show and delete a broker's exchanges.

    AMQP has no way to list exchanges: `list` shows those that were declared through the gateway.
    """


def exchange_path(broker: str, exchange: str) -> str:
    """Where the API has an exchange."""
    return f"/v1/brokers/{segment(broker)}/exchanges/{segment(exchange)}"


@exchanges.command("list")
@click.argument("broker")
@client_options
def list_exchanges(broker: str, url: str, api_key: str | None, as_json: bool) -> None:
    """List the exchanges of BROKER that were declared through the gateway.

    \b
    Example:
      gateway exchanges list shop
    """
    pages = ApiClient(url, api_key).pages(f"/v1/brokers/{segment(broker)}/exchanges", LISTED)
    found = [row for page in pages for row in page["exchanges"]]
    if as_json:
        print_json({"exchanges": found})
        return
    print_table(
        ("NAME", "TYPE", "DURABLE", "AUTO DELETE", "INTERNAL", "ARGUMENTS"),
        ((row["name"], *declared(row, "type", "durable", "auto_delete", "internal")) for row in found),
    )


@exchanges.command("show")
@click.argument("broker")
@click.argument("exchange")
@client_options
def show_exchange(broker: str, exchange: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Ask BROKER about EXCHANGE; amq.default is the default exchange.

    \b
    Example:
      gateway exchanges show shop events
    """
    print_exchange(ApiClient(url, api_key).ask("GET", exchange_path(broker, exchange)), as_json)


@exchanges.command("declare")
@click.argument("broker")
@click.argument("exchange")
@click.option("--type", "kind", default="direct", show_default=True, help="direct, fanout, topic, headers, or x-….")
@click.option("--durable/--transient", default=True, show_default=True, help="Whether it survives a restart.")
@click.option("--auto-delete", is_flag=True, help="It goes with its last binding.")
@click.option("--internal", is_flag=True, help="Clients cannot publish to it.")
@arguments_option
@client_options
def declare_exchange(
    broker: str,
    exchange: str,
    kind: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: str,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Declare EXCHANGE on BROKER, or check that it exists as specified.

    \b
    Example:
      gateway exchanges declare shop events --type topic
    """
    body: dict[str, Any] = {"type": kind, "durable": durable, "auto_delete": auto_delete, "internal": internal}
    body["arguments"] = parse_arguments(arguments)
    print_exchange(ApiClient(url, api_key).ask("PUT", exchange_path(broker, exchange), body=body), as_json)


@exchanges.command("delete")
@click.argument("broker")
@click.argument("exchange")
@click.option("--if-unused", is_flag=True, help="Only without bindings.")
@yes_option
@client_options
def delete_exchange(
    broker: str, exchange: str, if_unused: bool, yes: bool, url: str, api_key: str | None, as_json: bool
) -> None:
    """Delete EXCHANGE of BROKER, with its bindings.

    \b
    Example:
      gateway exchanges delete shop events
    """
    client = ApiClient(url, api_key)
    confirm(client, exchange_path(broker, exchange), "Delete it?", yes)
    client.ask("DELETE", exchange_path(broker, exchange), query={"if_unused": "true"} if if_unused else None)
    _done("deleted", as_json)


def print_exchange(exchange: dict[str, Any], as_json: bool) -> None:
    """An exchange as the broker describes it."""
    if as_json:
        print_json(exchange)
        return
    print_table(
        ("NAME", "TYPE", "DURABLE", "AUTO-DELETE", "INTERNAL"),
        [
            (
                exchange["name"] or DEFAULT_EXCHANGE,
                exchange["type"],
                exchange["durable"],
                exchange["auto_delete"],
                exchange["internal"],
            )
        ],
    )


# ------------------------------------------------------------------------------------------------- bindings


@click.group(short_help="Show, add and remove a broker's bindings.")
def bindings() -> None:
    """Show, add and remove a broker's bindings.

    AMQP has no way to list bindings: `list` shows those that were made through the gateway.
    """


def place_options(function: Any) -> Any:
    """What names a binding."""
    for option in (
        click.option("--exchange-to", "destination", default="", metavar="EXCHANGE", help="The exchange it ends at."),
        click.option("--queue", default="", help="The queue it ends at."),
        arguments_option,
        click.argument("binding_key", default=""),
        click.argument("exchange"),
        click.argument("broker"),
    ):
        function = option(function)
    return function


def bindings_path(broker: str) -> str:
    """Where the API has the bindings of a broker."""
    return f"/v1/brokers/{segment(broker)}/bindings"


@bindings.command("list")
@click.argument("broker")
@client_options
def list_bindings(broker: str, url: str, api_key: str | None, as_json: bool) -> None:
    """List the bindings of BROKER that were made through the gateway.

    \b
    Example:
      gateway bindings list shop
    """
    found = [row for page in ApiClient(url, api_key).pages(bindings_path(broker), LISTED) for row in page["bindings"]]
    if as_json:
        print_json({"bindings": found})
        return
    print_table(
        ("EXCHANGE", "BINDING KEY", "TO", "ARGUMENTS"),
        (
            (
                row["exchange"] or DEFAULT_EXCHANGE,
                row["binding_key"],
                f"queue {row['queue']}" if row["queue"] is not None else f"exchange {row['destination']}",
                arguments_text(row["arguments"]),
            )
            for row in found
        ),
    )


@bindings.command("add")
@place_options
@client_options
def add_binding(
    broker: str,
    exchange: str,
    binding_key: str,
    arguments: str,
    queue: str,
    destination: str,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Bind a queue, or another exchange, to EXCHANGE of BROKER by BINDING_KEY.

    \b
    Example:
      gateway bindings add shop events 'order.#' --queue orders
    """
    where = _end(queue, destination)
    body = {"exchange": exchange, "binding_key": binding_key, "arguments": parse_arguments(arguments), **where}
    made = ApiClient(url, api_key).ask("POST", bindings_path(broker), body=body)
    if as_json:
        print_json(made)
    else:
        note("bound")


@bindings.command("remove")
@place_options
@client_options
def remove_binding(
    broker: str,
    exchange: str,
    binding_key: str,
    arguments: str,
    queue: str,
    destination: str,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Remove the binding of a queue, or of another exchange, to EXCHANGE of BROKER by BINDING_KEY.

    \b
    Example:
      gateway bindings remove shop events 'order.#' --queue orders
    """
    where = _end(queue, destination)
    query = {"exchange": exchange, "binding_key": binding_key, "arguments": json.dumps(parse_arguments(arguments))}
    ApiClient(url, api_key).ask("DELETE", bindings_path(broker), query={**query, **where})
    _done("removed", as_json)


def _end(queue: str, destination: str) -> dict[str, str]:
    if bool(queue) == bool(destination):
        raise click.UsageError("give one of --queue and --exchange-to")
    return {"queue": queue} if queue else {"destination": destination}


def _done(said: str, as_json: bool) -> None:
    if as_json:
        print_json({})
    else:
        note(said)
