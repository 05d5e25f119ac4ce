"""``gateway bridges``: from broker to broker, put, watched over, compared and ended."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands import DIFFERENT, FAILED, Failure, Noun
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.settings import confirm, pages, put, read_settings, yes_option
from gateway.runtime.clock import clock
from gateway.validation import ago

COMPARE_WAIT = 600.0
"""How long a comparison may take, in seconds."""
START_WAIT, START_EVERY = 1.0, 0.05
"""How long a bridge that was put may take to start, and how often it is asked, in seconds."""
FIRST_OUT = ("LAG", "RATE", "LOSSES", "LEFT", "DONE", "TO")
"""What the list leaves out first, where it has reasons and not enough room."""
DIGITS = 16
"""How much of a digest is shown."""


@click.group(cls=Noun, short_help="Show, put, watch, steer, compare and delete bridges.")
def bridges() -> None:
    """Show, put, steer, compare and delete bridges between brokers.

    `gateway bridges watch NAME` watches one at work.
    """


def bridge_path(name: str) -> str:
    """Where the API has a bridge."""
    return f"/v1/bridges/{segment(name)}"


@bridges.command("list")
@client_options
def list_bridges(url: str, api_key: str | None, as_json: bool) -> None:
    """List the bridges and how they stand.

    \b
    Example:
      gateway bridges list
    """
    client = ApiClient(url, api_key)
    found = pages(client, "/v1/bridges", "bridges")
    if as_json:
        print_json({"bridges": found})
        return
    if not found:
        note("no bridges yet")
    print_table(
        ("NAME", "STATE", "FROM", "TO", "DONE", "RATE", "LAG", "LEFT", "LOSSES", "REASON"),
        (
            (
                row["name"],
                row["state"],
                source_text(row["settings"]["source"]),
                target_text(row["settings"]["target"]),
                row["forwarded"],
                f"{row['rate']:.0f}/s",
                lag_text(row["lag"]),
                row["source_messages"],
                sum(row["losses"].values()),
                row["reason"] or "-",
            )
            for row in found
        ),
        whole=("FROM",),
        first_out=FIRST_OUT if any(row["reason"] for row in found) else ("REASON",),
    )


@bridges.command("show")
@click.argument("name")
@client_options
def get_bridge(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show everything about the bridge NAME. Its settings are what `put` takes.

    \b
    Example:
      gateway bridges show orders
    """
    print_bridge(ApiClient(url, api_key).ask("GET", bridge_path(name)), as_json)


@bridges.command("put")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace other settings of a bridge that is there.")
@client_options
def put_bridge(name: str, file: Any, replace: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Create the bridge NAME with the settings in FILE, or leave it as it is if it has them.

    It waits a moment for the bridge to start, and fails if it cannot. The bridge stays, and tries again.

    FILE is JSON, or TOML as in the configuration file: the settings themselves, or with [bridges.NAME] before them.
    `-` is the standard input.

    \b
    Example:
      gateway bridges put orders - <<END
      source = {broker = "old", queue = "orders"}
      target = {broker = "new", exchange = "shop", routing_key = "orders"}
      END
    """
    settings = read_settings(file.read(), name)
    client = ApiClient(url, api_key)
    found = started(client, put(client, bridge_path(name), settings, replace))
    if as_json:
        print_json(found)
    else:
        settings = found["settings"]
        note(f"{name}: from {source_text(settings['source'])} to {target_text(settings['target'])}")
    if found["state"] == "error":
        raise Failure(f"state: error: {printable(found['reason'] or found['last_error'])}", FAILED)


@bridges.command("delete")
@click.argument("name")
@yes_option
@client_options
def delete_bridge(name: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Delete the bridge NAME. What it has not forwarded stays at its source.

    \b
    Example:
      gateway bridges delete orders
    """
    client = ApiClient(url, api_key)
    confirm(client, bridge_path(name), "Delete it?", yes)
    client.ask("DELETE", bridge_path(name))
    if as_json:
        print_json({})
    else:
        note("deleted")


@bridges.command("pause")
@click.argument("name")
@client_options
def pause_bridge(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the bridge NAME take nothing more, until it is resumed.

    \b
    Example:
      gateway bridges pause orders
    """
    print_state(ApiClient(url, api_key).ask("POST", bridge_path(name) + ":pause"), as_json)


@bridges.command("resume")
@click.argument("name")
@client_options
def resume_bridge(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the bridge NAME run (again).

    \b
    Example:
      gateway bridges resume orders
    """
    print_state(ApiClient(url, api_key).ask("POST", bridge_path(name) + ":resume"), as_json)


@bridges.command("drain")
@click.argument("name")
@client_options
def drain_bridge(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the bridge NAME forward what its source has, and stop.

    \b
    Example:
      gateway bridges drain orders
    """
    print_state(ApiClient(url, api_key).ask("POST", bridge_path(name) + ":drain"), as_json)


@bridges.command("compare")
@click.argument("name")
@click.option(
    "--since", metavar="TIME", help="The ledger's window begins here: RFC 3339, or how long ago (90s, 2h, 1d)."
)
@click.option("--until", metavar="TIME", help="And ends here.")
@click.option("--peek", is_flag=True, help="Look into the queues too.")
@click.option(
    "--limit",
    type=click.IntRange(1, 65_535),
    default=10_000,
    show_default=True,
    help="Most messages of each queue that are looked at.",
)
@click.option("--source-queue", metavar="QUEUE", help="The queue to look into at the source.")
@click.option("--target-queue", metavar="QUEUE", help="The queue to look into at the target.")
@client_options
def compare_bridge(
    name: str,
    since: str | None,
    until: str | None,
    peek: bool,
    limit: int,
    source_queue: str | None,
    target_queue: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Compare both sides of the bridge NAME; the exit status is 7 if they differ.

    From the ledger: what it took, and what it forwarded. With --peek also what the queues hold; a broker that cannot
    show messages has them taken and given back, which marks them as redelivered.

    \b
    Example:
      gateway bridges compare orders --since 1h
    """
    given = {
        "since": moment(since),
        "until": moment(until),
        "source_queue": source_queue,
        "target_queue": target_queue,
    }
    body: dict[str, Any] = {"peek": peek, "limit": limit} | {name: value for name, value in given.items() if value}
    report = ApiClient(url, api_key).ask("POST", bridge_path(name) + ":compare", body=body, wait=COMPARE_WAIT)
    if as_json:
        print_json(report)
    else:
        print_report(report)
    sys.stdout.flush()
    if not report["equal"]:
        raise Failure(f"the sides of the bridge {name!r} differ", DIFFERENT)


# ---------------------------------------------------------------------------------------------------- pieces


def started(client: ApiClient, bridge: dict[str, Any]) -> dict[str, Any]:
    """How a bridge stands once it has started, or after :data:`START_WAIT` seconds."""
    until = clock.monotonic() + START_WAIT
    while bridge["state"] == "starting" and clock.monotonic() < until:
        clock.block(START_EVERY)
        bridge = client.ask("GET", bridge_path(bridge["name"]))
    return bridge


def moment(text: str | None) -> str | None:
    """A time as the API takes it: as it is, or so long ago."""
    at = ago(text or "")
    return text if at is None else at.isoformat()


def source_text(source: Mapping[str, Any]) -> str:
    """Where a bridge takes from."""
    if source["exchange"]:
        key = f" {source['binding_key']}" if source["binding_key"] else ""
        return f"{source['broker']} exchange {source['exchange']}{key}"
    return f"{source['broker']} {source['queue']}"


def target_text(target: Mapping[str, Any]) -> str:
    """Where a bridge publishes to."""
    key = "" if target["routing_key"] is None else f" {target['routing_key']}"
    return f"{target['broker']} {target['exchange'] or DEFAULT_EXCHANGE}{key}"


def lag_text(lag: float | None) -> str:
    """A lag in the unit that reads best."""
    if lag is None:
        return "-"
    return f"{lag * 1000:.1f} ms" if lag < 1 else f"{lag:.1f} s"


def print_bridge(bridge: Mapping[str, Any], as_json: bool) -> None:
    """Everything about a bridge."""
    if as_json:
        print_json(bridge)
        return
    shown = dict(bridge)
    settings = shown.pop("settings")
    shown["lag"] = lag_text(shown["lag"])
    shown["losses"] = ", ".join(f"{name} {count}" for name, count in shown["losses"].items()) or "-"
    shown["counts"] = "since this gateway started"
    print_table(
        ("FIELD", "VALUE"), ((name.replace("_", " "), "-" if value == "" else value) for name, value in shown.items())
    )
    print_json(settings)


def print_state(bridge: Mapping[str, Any], as_json: bool) -> None:
    """What a bridge does now."""
    if as_json:
        print_json(bridge)
    else:
        note(f"{bridge['name']} is {bridge['state']}")


def print_report(report: Mapping[str, Any]) -> None:
    """A comparison as tables."""
    print_sides(report["ledger"])
    for kind in ("reduced", "dead_lettered", "filtered", "looped", "duplicates_dropped"):
        if report[kind]:
            click.echo(f"{kind.replace('_', ' ')}: {report[kind]}")
    if report["queues"] is not None:
        click.echo()
        print_sides(report["queues"])


def print_sides(sides: Mapping[str, Any]) -> None:
    """Two sides beside each other, and what differs."""
    one, other = sides["source"], sides["target"]
    for line in summary(sides):
        click.echo(line)
    print_table(
        ("", side_text(one), side_text(other), "EQUAL"),
        ((row["name"], short(row["source"]), short(row["target"]), row["equal"]) for row in sides["rows"]),
    )
    for side in (one, other):
        if not side["complete"]:
            click.echo(f"{printable(side['what'])} holds more than was looked at (--limit)")
    if sides["differences"]:
        shown, count = len(sides["differences"]), sum(sides[name] for name in ("missing", "extra", "changed"))
        if shown < count:
            click.echo(f"Showing {shown} of {count} messages that differ:")
        print_table(
            ("MESSAGE", "OCTETS", "AT THE SOURCE", "AT THE TARGET"),
            (
                (each["id"] or "(no id)", each["octets"], short(each["source"]), short(each["target"]))
                for each in sides["differences"]
            ),
        )


def summary(sides: Mapping[str, Any]) -> list[str]:
    """What differs, and what that may mean; nothing where nothing does."""
    copies = sides.get("copies", 0)
    target = sides["target"]
    where = "in the ledger" if target["how"] == "ledger" else f"in the queue {printable(target['what'])}"
    lines = []
    if sides["missing"]:
        why = "" if target["how"] == "ledger" else " A consumer there may have acknowledged them already."
        lines.append(f"{sides['missing']} missing: they are not {where}.{why}")
    if copies:
        lines.append(f"{copies} copies: delivered twice, after a restart or a lost connection.")
    if sides["extra"] - copies:
        lines.append(f"{sides['extra'] - copies} extra: they came from elsewhere, or before the window of time.")
    if sides["changed"]:
        lines.append(f"{sides['changed']} changed: they are on both sides, and differ.")
    return lines


def side_text(side: Mapping[str, Any]) -> str:
    """The head of a side's column."""
    return printable(f"{side['what']} ({side['broker']}, {side['how']})")


def short(value: Any) -> Any:
    """A digest's beginning; anything else as it is."""
    return value[:DIGITS] if isinstance(value, str) else value
