"""``gateway taps``: from a queue into the message log, put, watched over, paused and ended."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands import Noun
from gateway.commands.bridges import print_state, source_text
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, segment
from gateway.commands.settings import confirm, pages, put, read_settings, yes_option


@click.group(cls=Noun, short_help="Show, put, pause and delete taps into the message log.")
def taps() -> None:
    """Show, put, pause and delete taps: what they take from a queue is in the message log, for any readers."""


def tap_path(name: str) -> str:
    """Where the API has a tap."""
    return f"/v1/taps/{segment(name)}"


@taps.command("list")
@client_options
def list_taps(url: str, api_key: str | None, as_json: bool) -> None:
    """List the taps and how they stand.

    \b
    Example:
      gateway taps list
    """
    found = pages(ApiClient(url, api_key), "/v1/taps", "taps")
    if as_json:
        print_json({"taps": found})
        return
    if not found:
        note("no taps yet")
    print_table(
        ("NAME", "STATE", "FROM", "SPOOLED", "RATE", "LEFT", "DROPPED", "DEAD", "REASON"),
        (
            (
                row["name"],
                row["state"],
                source_text(row["settings"]),
                row["spooled"],
                f"{row['rate']:.0f}/s",
                row["source_messages"] if row["left"] is None else row["left"],
                row["duplicates_dropped"],
                row["dead_lettered"],
                row["reason"] or "-",
            )
            for row in found
        ),
    )


@taps.command("show")
@click.argument("name")
@client_options
def get_tap(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show everything about the tap NAME. Its settings are what `put` takes.

    \b
    Example:
      gateway taps show audit
    """
    tap = ApiClient(url, api_key).ask("GET", tap_path(name))
    if as_json:
        print_json(tap)
        return
    settings = tap.pop("settings")
    print_table(
        ("FIELD", "VALUE"), ((field.replace("_", " "), "-" if value == "" else value) for field, value in tap.items())
    )
    print_json(settings)


@taps.command("put")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace other settings of a tap that is there.")
@client_options
def put_tap(name: str, file: Any, replace: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Create the tap NAME with the settings in FILE, or leave it as it is if it has them.

    FILE is JSON, or TOML as in the configuration file: the settings themselves, or with [taps.NAME] before them.
    `-` is the standard input.

    \b
    Example:
      gateway taps put orders - <<END
      broker = "old"
      queue = "orders"
      END
    """
    settings = read_settings(file.read(), name, "taps")
    found = put(ApiClient(url, api_key), tap_path(name), settings, replace)
    if as_json:
        print_json(found)
    else:
        note(f"{name}: from {source_text(found['settings'])} into the message log")


@taps.command("delete")
@click.argument("name")
@yes_option
@client_options
def delete_tap(name: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Delete the tap NAME. What it has spooled stays in the log, and the rest in its queue.

    \b
    Example:
      gateway taps delete audit
    """
    client = ApiClient(url, api_key)
    confirm(client, tap_path(name), "Delete it?", yes)
    client.ask("DELETE", tap_path(name))
    if as_json:
        print_json({})
    else:
        note("deleted")


@taps.command("pause")
@click.argument("name")
@client_options
def pause_tap(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the tap NAME take nothing more, until it is resumed.

    \b
    Example:
      gateway taps pause audit
    """
    print_state(ApiClient(url, api_key).ask("POST", tap_path(name) + ":pause"), as_json)


@taps.command("resume")
@click.argument("name")
@client_options
def resume_tap(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the tap NAME run (again).

    \b
    Example:
      gateway taps resume audit
    """
    print_state(ApiClient(url, api_key).ask("POST", tap_path(name) + ":resume"), as_json)
