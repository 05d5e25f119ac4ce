"""``gateway brokers``: what a running gateway is connected to, shown, put, changed and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from gateway.commands import FAILED, Failure, Noun
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.settings import confirm, exists, read_settings, yes_option
from gateway.runtime.clock import clock

CONNECT_WAIT: Final = 2.0
CONNECT_EVERY: Final = 0.05
"""How long a broker that was put may take to connect, and how often it is asked, in seconds."""
SHOW: Final = "show"
"""The verb that is meant where none is given."""


class Brokers(Noun):
    """The verbs of brokers. Without one it shows the brokers, or the one that is named."""

    def with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with the verb before them, also where it is missing."""
        is_given = bool(args) and (args[0] in ctx.help_option_names or self.get_command(ctx, args[0]) is not None)
        return args if is_given else [SHOW, *args]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        return super().parse_args(ctx, self.with_verb(ctx, args))


@click.group(cls=Brokers, short_help="Show, put, change and delete brokers.")
def brokers() -> None:
    """Show, put, change and delete the brokers of a running gateway.

    `gateway brokers` shows all, `gateway brokers NAME` one. Those of the configuration file are read-only here.
    """


def broker_path(name: str) -> str:
    """Where the API has a broker."""
    return f"/v1/brokers/{segment(name)}"


@brokers.command(SHOW)
@click.argument("name", required=False)
@client_options
def show_brokers(name: str | None, url: str, api_key: str | None, as_json: bool) -> None:
    """Show all brokers and the state of their links, or the broker NAME alone. The verb may be left out.

    \b
    Examples:
      gateway brokers
      gateway brokers shop --json
    """
    client = ApiClient(url, api_key)
    answer = client.ask("GET", broker_path(name)) if name else client.ask("GET", "/v1/brokers")
    if as_json:
        print_json(answer)
    else:
        print_brokers([answer] if name else answer["brokers"])


@brokers.command("put")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace other settings of a broker that is there.")
@client_options
def put_broker(name: str, file: Any, replace: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Create the broker NAME with the settings in FILE, or leave it as it is if it has them.

    It waits a moment for the gateway to connect, and fails if it cannot. The broker stays, and the gateway tries again.

    FILE is JSON, or TOML as in the configuration file: the settings themselves, or with [brokers.NAME] before them.
    `-` is the standard input. Secrets that are not given stay as they are.

    \b
    Example:
      gateway brokers put shop - <<END
      url = "amqp://shop@rabbit.example:5672/"
      password = "secret"
      END
    """
    settings = read_settings(file.read(), name, "brokers")
    client = ApiClient(url, api_key)
    path = broker_path(name)
    headers = {"if-match": "*"} if replace and exists(client, path) else {}
    print_state(connected(client, client.ask("PUT", path, body=settings, headers=headers)), as_json)


@brokers.command("patch")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@client_options
def patch_broker(name: str, file: Any, url: str, api_key: str | None, as_json: bool) -> None:
    """Change those settings of the broker NAME that are in FILE. In JSON, null takes one back to its default.

    FILE is as of `put`. What has begun ends on the links of before.

    \b
    Example:
      gateway brokers patch shop - <<END
      password = "another secret"
      END
    """
    settings = read_settings(file.read(), name, "brokers")
    client = ApiClient(url, api_key)
    found = client.ask("PATCH", broker_path(name), body=settings, headers={"if-match": "*"})
    print_state(connected(client, found), as_json)


@brokers.command("delete")
@click.argument("name")
@yes_option
@client_options
def delete_broker(name: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Delete the broker NAME, unless something works with it. Its queues and messages stay where they are.

    \b
    Example:
      gateway brokers delete shop
    """
    client = ApiClient(url, api_key)
    confirm(client, broker_path(name), "Delete it?", yes)
    client.ask("DELETE", broker_path(name))
    if as_json:
        print_json({})
    else:
        note("deleted")


# ---------------------------------------------------------------------------------------------------- pieces


def print_brokers(rows: Sequence[Mapping[str, Any]]) -> None:
    """Brokers and the state of their links."""
    print_table(
        ("NAME", "STATE", "VERSION", "PRODUCT", "ADDRESS", "REASON"),
        (
            (
                row["name"],
                row["state"],
                row["version"],
                f"{row['product']} {row['product_version']}".strip() or "-",
                f"{row['host']}:{row['port']} {row['virtual_host']}",
                row["reason"] or "-",
            )
            for row in rows
        ),
    )


def connected(client: ApiClient, broker: dict[str, Any]) -> dict[str, Any]:
    """How a broker stands once the gateway has connected, or after :data:`CONNECT_WAIT` seconds."""
    until = clock.monotonic() + CONNECT_WAIT
    while broker["state"] == "connecting" and clock.monotonic() < until:
        clock.block(CONNECT_EVERY)
        broker = client.ask("GET", broker_path(broker["name"]))
    return broker


def print_state(broker: Mapping[str, Any], as_json: bool) -> None:
    """How a broker stands. Raises Failure where the gateway cannot connect."""
    if as_json:
        print_json(broker)
    else:
        note(f"{broker['name']} is {broker['state']}")
    if broker["state"] in ("down", "failed"):
        raise Failure(f"state: {broker['state']}: {printable(broker['reason'])}", FAILED)
