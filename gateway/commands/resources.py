"""``gateway queues``: the queues of a broker."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from gateway.commands import NOT_FOUND, Failure
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, segment
from gateway.commands.settings import LISTED, confirm, declared, yes_option

COLUMNS: Final = (
    "broker", "name", "depth", "ready", "unacknowledged", "consumers", "publish_rate", "deliver_rate", "state", "type",
)  # fmt: skip
"""What ``queues find`` shows of a queue."""
HELD: Final = ("kind", "name", "client", "address", "count", "since")
"""What ``queues holders`` shows."""
BODY_SHOWN: Final = 100
"""Most characters of a body in a table."""
_FIGURES: Final = (
    "name", "depth", "ready", "unacknowledged", "consumers", "bytes", "publish_rate", "deliver_rate", "ack_rate",
)  # fmt: skip
SORTS: Final = (*_FIGURES, *(f"-{each}" for each in _FIGURES))
"""What queues may be sorted by."""


@click.group(short_help="Find, declare, show, look into, purge and delete queues.")
def queues() -> None:
    """Find, declare, show, look into, purge and delete queues.

    AMQP has no way to list queues: `list` shows those that were declared through the gateway. `find` shows all queues
    of the brokers whose management API the configuration names.
    """


def queue_path(broker: str, queue: str) -> str:
    """Where the API has a queue."""
    return f"/v1/brokers/{segment(broker)}/queues/{segment(queue)}"


@queues.command("list")
@click.argument("broker")
@client_options
def list_queues(broker: str, url: str, api_key: str | None, as_json: bool) -> None:
    """List the queues of BROKER that were declared through the gateway, and ask the broker what is in each.

    \b
    Example:
      gateway queues list shop
    """
    client = ApiClient(url, api_key)
    found = [row for page in client.pages(f"/v1/brokers/{segment(broker)}/queues", LISTED) for row in page["queues"]]
    if as_json:
        print_json({"queues": found})
        return
    held = contents(client, broker, [row["name"] for row in found])
    print_table(
        ("NAME", "MESSAGES", "CONSUMERS", "DURABLE", "AUTO DELETE", "ARGUMENTS"),
        (
            (row["name"], *counts, *declared(row, "durable", "auto_delete"))
            for row, counts in zip(found, held, strict=True)
        ),
    )


@queues.command("find")
@click.argument("text", default="")
@click.option("--broker", default="", help="Only queues of this broker.")
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    default="name",
    show_default=True,
    metavar="FIGURE",
    help=f"What comes first: {', '.join(SORTS[:9])}. With a - before it, the greatest.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Most queues to show.")
@client_options
def find_queues(text: str, broker: str, sort: str, limit: int, url: str, api_key: str | None, as_json: bool) -> None:
    """Find queues of all brokers whose name contains TEXT.

    Where a list is not complete, or old, a note on stderr says so.

    \b
    Examples:
      gateway queues find ord
      gateway queues find --broker shop --sort=-depth --limit 10
    """
    query = {"search": text, "broker": broker, "sort": sort, "limit": str(limit)}
    found = ApiClient(url, api_key).ask(
        "GET", "/v1/queues", query={name: value for name, value in query.items() if value}
    )
    if as_json:
        print_json(found)
        return
    print_table(
        ("BROKER", "NAME", "DEPTH", "READY", "UNACKED", "CONSUMERS", "IN/S", "OUT/S", "STATE", "TYPE"),
        (tuple("-" if row[name] is None else row[name] for name in COLUMNS) for row in found["queues"]),
    )
    for each in found["brokers"]:
        if each["partial"]:
            note(f"{each['name']}: {each['reason']}")
    if found["total"] > len(found["queues"]):
        note(f"{len(found['queues'])} of {found['total']} queues; give a TEXT, or a larger --limit")


def contents(client: ApiClient, broker: str, names: list[Any]) -> list[tuple[int | None, int | None]]:
    """Messages and consumers of queues, as the broker tells; None: it does not. Once it does not answer, it is not
    asked about the others."""
    found: list[tuple[int | None, int | None]] = []
    answers = True
    for name in names:
        messages = consumers = None
        if answers and isinstance(name, str):
            try:
                queue = client.ask("GET", queue_path(broker, name))
                messages, consumers = queue["messages"], queue["consumers"]
            except Failure as failure:
                answers = failure.exit_code == NOT_FOUND
                note(f"{name}: the broker has no such queue any more" if answers else failure.message)
        found.append((messages, consumers))
    return found


@queues.command("show")
@click.argument("broker")
@click.argument("queue")
@client_options
def show_queue(broker: str, queue: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Ask BROKER about QUEUE: messages, consumers.

    \b
    Example:
      gateway queues show shop orders
    """
    print_queue(ApiClient(url, api_key).ask("GET", queue_path(broker, queue)), as_json)


@queues.command("look")
@click.argument("broker")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="Most messages to show.")
@click.option(
    "--body-max", type=click.IntRange(0, 1 << 20), default=1024, show_default=True, help="Most bytes of each body."
)
@click.option("--take", is_flag=True, help="Take the messages, and give them back: marks them as redelivered.")
@yes_option
@client_options
def look_into_queue(
    broker: str, queue: str, limit: int, body_max: int, take: bool, yes: bool, url: str, api_key: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Show the first messages of QUEUE of BROKER, which stay there as they are.

    RabbitMQ cannot show messages: a note says so. There `--take` shows them where nothing is lost by it.

    \b
    Examples:
      gateway queues look old orders
      gateway queues look shop orders --take --limit 1
    """
    client = ApiClient(url, api_key)
    path = queue_path(broker, queue)
    if take:
        confirm(client, path, f"Take up to {limit} of its messages, and give them back?", yes)
        found = client.ask("POST", f"{path}/messages:takeAndGiveBack", body={"limit": limit, "body_max": body_max})
    else:
        found = client.ask("GET", f"{path}/messages", query={"limit": str(limit), "body_max": str(body_max)})
    if as_json:
        print_json(found)
        return
    if found["how"] == "not_shown":
        note(found["reason"])
        note("--take shows them." if found["can_take"] else found["take_reason"])
        for place in found["ledger"]:
            note(f"the ledger has what was {place['what']}: {place['path']}")
        return
    print_table(
        ("NO", "ID", "ROUTING KEY", "REDELIVERED", "BYTES", "BODY"),
        (
            (
                row["position"],
                row["message"]["id"] or "-",
                row["message"]["routing_key"],
                row["redelivered"],
                row["size"],
                _body(row),
            )
            for row in found["messages"]
        ),
    )
    if not found["complete"]:
        note(f"the first {len(found['messages'])} messages; there are more")


@queues.command("holders")
@click.argument("broker")
@click.argument("queue")
@client_options
def list_holders(broker: str, queue: str, url: str, api_key: str | None, as_json: bool) -> None:
    """List who holds unacknowledged messages of QUEUE of BROKER, and since when.

    \b
    Example:
      gateway queues holders shop orders
    """
    found = ApiClient(url, api_key).ask("GET", f"{queue_path(broker, queue)}/holders")
    if as_json:
        print_json(found)
        return
    print_table(
        ("KIND", "NAME", "CLIENT", "ADDRESS", "MESSAGES", "SINCE"),
        (tuple("-" if row[name] in (None, "") else row[name] for name in HELD) for row in found["holders"]),
    )
    if found["others"]:
        note(f"{found['others']} messages are out that no part of the gateway holds")
    if not found["complete"]:
        note("not all processes of the gateway have answered")
    if found["reason"]:
        note(found["reason"])


def _body(row: dict[str, Any]) -> str:
    """The beginning of a body, in one line."""
    message = row["message"]
    text = message["payload"] if message["payload_encoding"] == "string" else f"base64:{message['payload']}"
    cut = row["cut"] or len(text) > BODY_SHOWN
    return text[:BODY_SHOWN] + ("…" if cut else "")


@queues.command("declare")
@click.argument("broker")
@click.argument("queue")
@click.option("--durable/--transient", default=True, show_default=True, help="Whether it survives a restart.")
@click.option("--auto-delete", is_flag=True, help="It goes with its last consumer.")
@click.option("--arguments", default="{}", metavar="JSON", help='Arguments, as in {"x-max-length": 100}.')
@client_options
def declare_queue(
    broker: str,
    queue: str,
    durable: bool,
    auto_delete: bool,
    arguments: str,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Declare QUEUE on BROKER, or check that it exists as specified.

    \b
    Example:
      gateway queues declare shop orders
    """
    body: dict[str, Any] = {"durable": durable, "auto_delete": auto_delete, "arguments": parse_arguments(arguments)}
    print_queue(ApiClient(url, api_key).ask("PUT", queue_path(broker, queue), body=body), as_json)


@queues.command("purge")
@click.argument("broker")
@click.argument("queue")
@yes_option
@client_options
def purge_queue(broker: str, queue: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Throw away every message that waits in QUEUE of BROKER.

    \b
    Example:
      gateway queues purge shop orders --yes
    """
    client = ApiClient(url, api_key)
    confirm(client, queue_path(broker, queue), "Throw its messages away?", yes)
    print_removed(client.ask("POST", queue_path(broker, queue) + ":purge"), as_json)


@queues.command("delete")
@click.argument("broker")
@click.argument("queue")
@click.option("--if-unused", is_flag=True, help="Only without consumers.")
@click.option("--if-empty", is_flag=True, help="Only without messages.")
@yes_option
@client_options
def delete_queue(
    broker: str, queue: str, if_unused: bool, if_empty: bool, yes: bool, url: str, api_key: str | None, as_json: bool
) -> None:
    """Delete QUEUE of BROKER, with the messages in it.

    \b
    Example:
      gateway queues delete shop orders --if-empty
    """
    query = {name: "true" for name, given in (("if_unused", if_unused), ("if_empty", if_empty)) if given}
    client = ApiClient(url, api_key)
    confirm(client, queue_path(broker, queue), "Delete it, with its messages?", yes)
    print_removed(client.ask("DELETE", queue_path(broker, queue), query=query), as_json)


def parse_arguments(text: str) -> dict[str, Any]:
    """The JSON object of ``--arguments``."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint="--arguments") from None
    if not isinstance(value, dict):
        raise click.BadParameter("not a JSON object", param_hint="--arguments")
    return value


def print_queue(queue: dict[str, Any], as_json: bool) -> None:
    """A queue as the broker describes it."""
    if as_json:
        print_json(queue)
        return
    print_table(
        ("NAME", "MESSAGES", "CONSUMERS", "DURABLE"),
        [(queue["name"], queue["messages"], queue["consumers"], queue["durable"])],
    )


def print_removed(removed: dict[str, Any], as_json: bool) -> None:
    """How many messages went."""
    if as_json:
        print_json(removed)
        return
    number = removed["messages"]
    note("done" if number is None else f"done; {number} message{'s' * (number != 1)} thrown away")
