"""``gateway endpoints``: where messages are pushed to, put, tested, steered and deleted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gateway.commands import REFUSED, Failure, Noun
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.settings import confirm, exists, pages, read_settings, yes_option
from gateway.terminal import table_lines

TEST_WAIT = 300.0
"""How long a test may take, in seconds: the longest deadline of an endpoint."""


@click.group(cls=Noun, short_help="Show, put, test, steer and delete webhook endpoints.")
def endpoints() -> None:
    """Show, put, test, steer and delete the endpoints that messages are pushed to.

    A subscription pushes to an endpoint that it names in `push`.
    """


def endpoint_path(name: str) -> str:
    """Where the API has an endpoint."""
    return f"/v1/endpoints/{segment(name)}"


@endpoints.command("list")
@client_options
def list_endpoints(url: str, api_key: str | None, as_json: bool) -> None:
    """List the endpoints and how they stand.

    \b
    Example:
      gateway endpoints list
    """
    found = pages(ApiClient(url, api_key), "/v1/endpoints", "endpoints")
    if as_json:
        print_json({"endpoints": found})
        return
    if not found:
        note("no endpoints yet")
    print_table(
        ("NAME", "STATE", "URL", "FORMAT", "SIGNED", "AUTH", "PENDING", "REASON"),
        (
            (
                row["name"],
                row["state"],
                row["settings"]["url"],
                row["settings"]["format"],
                " ".join(row["settings"]["signing"]) or "-",
                row["settings"]["auth"]["kind"],
                row.get("pending"),
                row["reason"] or "-",
            )
            for row in found
        ),
        first_out=("AUTH", "SIGNED", "FORMAT") if any(row["reason"] for row in found) else (),
    )


@endpoints.command("show")
@click.argument("name")
@client_options
def get_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show everything about the endpoint NAME but its secrets. Its settings are what `put` takes.

    \b
    Example:
      gateway endpoints show shop
    """
    print_endpoint(ApiClient(url, api_key).ask("GET", endpoint_path(name)), as_json)


@endpoints.command("put")
@click.argument("name")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="Replace other settings of an endpoint that is there.")
@client_options
def put_endpoint(name: str, file: Any, replace: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Create the endpoint NAME with the settings in FILE, or leave it as it is if it has them.

    FILE is JSON, or TOML as in the configuration file: the settings themselves, or with [endpoints.NAME] before them.
    `-` is the standard input. Secrets that are empty stay as they are. The keys of new signatures are printed now and
    never again.

    \b
    Example:
      gateway endpoints put shop - <<END
      url = "https://shop.example/hooks"
      signing = ["v1"]
      END
    """
    settings = read_settings(file.read(), name, "endpoints")
    client = ApiClient(url, api_key)
    path = endpoint_path(name)
    headers = {"if-match": "*"} if replace and exists(client, path) else {}
    found = client.ask("PUT", path, body=settings, headers=headers)
    if as_json:
        print_json(found)
    else:
        note(f"{name} is {found['state']}: {printable(found['settings']['url'])}")
        print_secrets(found["signing_keys"])
        if any(not key["public_key"] for key in found["signing_keys"]) and not new_secrets(found):
            note(
                f"{name} was there before, and its key is not shown again. To make another key, which is printed: "
                f"gateway endpoints rotate {name}"
            )


@endpoints.command("delete")
@click.argument("name")
@yes_option
@client_options
def delete_endpoint(name: str, yes: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Delete the endpoint NAME with its keys. Its pending messages wait until there is one of this name again.

    \b
    Example:
      gateway endpoints delete shop
    """
    client = ApiClient(url, api_key)
    confirm(client, endpoint_path(name), "Delete it?", yes)
    client.ask("DELETE", endpoint_path(name))
    if as_json:
        print_json({})
    else:
        note("deleted")


@endpoints.command("test")
@click.argument("name")
@client_options
def try_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Send a message that is marked as a test to the endpoint NAME; the exit status is 4 unless it takes it.

    \b
    Example:
      gateway endpoints test shop
    """
    found = ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":test", wait=TEST_WAIT)
    if as_json:
        print_json(found)
    else:
        rows = [(field.replace("_", " "), value) for field, value in found.items() if field not in ("problem", "body")]
        print_table(("FIELD", "VALUE"), [*rows, ("body", found["body"] or "-")])
    sys.stdout.flush()
    if not found["delivered"]:
        raise Failure(f"the endpoint {name!r} did not take it: {printable(found['reason'])}", REFUSED)


@endpoints.command("attempts")
@click.argument("name")
@click.option("--message", default="", metavar="ID", help="Only attempts of this message.")
@client_options
def list_attempts(name: str, message: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Show the last requests to the endpoint NAME, the newest first. With --json: also what was sent and answered.

    \b
    Example:
      gateway endpoints attempts shop
    """
    query = {"message": message} if message else {}
    found = ApiClient(url, api_key).ask("GET", f"{endpoint_path(name)}/attempts", query=query)
    if as_json:
        print_json(found)
        return
    print_table(
        ("AT", "ATTEMPT", "STATUS", "SECONDS", "SUBSCRIPTION", "MESSAGE", "REASON"),
        (
            (
                row["at"], "test" if row["test"] else row["attempt"], row["status"] or row["code"], row["seconds"],
                row["subscription"] or "-", (row["messages"] or ["-"])[0], row["reason"] or row["response_body"] or "-",
            )
            for row in found["attempts"]
        ),
    )  # fmt: skip


@endpoints.command("pause")
@click.argument("name")
@client_options
def pause_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the endpoint NAME get nothing more, until it is resumed. Its messages wait.

    \b
    Example:
      gateway endpoints pause shop
    """
    print_state(ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":pause"), as_json)


@endpoints.command("resume")
@click.argument("name")
@client_options
def resume_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the endpoint NAME get messages (again).

    \b
    Example:
      gateway endpoints resume shop
    """
    print_state(ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":resume"), as_json)


@endpoints.command("enable")
@click.argument("name")
@client_options
def enable_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Enable the endpoint NAME, which had said that it is gone (410).

    \b
    Example:
      gateway endpoints enable shop
    """
    print_state(ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":enable"), as_json)


@endpoints.command("verify")
@click.argument("name")
@client_options
def verify_endpoint(name: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Ask the endpoint NAME whether the gateway may call it (the handshake of CloudEvents web hooks).

    \b
    Example:
      gateway endpoints verify shop
    """
    print_state(ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":verify", wait=TEST_WAIT), as_json)


@endpoints.command("rotate")
@click.argument("name")
@click.option("--scheme", "schemes", type=click.Choice(["v1", "v1a"]), multiple=True, help="Only keys of this scheme.")
@click.option(
    "--overlap",
    type=click.FloatRange(0, 31_536_000),
    default=86_400.0,
    show_default=True,
    help="How long the old keys sign beside the new ones, in seconds.",
)
@click.option("--until-finish", is_flag=True, help="Let the old keys sign until --finish.")
@click.option("--finish", is_flag=True, help="Make no new keys, and take the old ones away now.")
@client_options
def rotate_endpoint(
    name: str,
    schemes: Sequence[str],
    overlap: float,
    until_finish: bool,
    finish: bool,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Make new signing keys for the endpoint NAME. They are printed now and never again.

    The new secrets alone are on stdout, so that it can go to a file; what else there is to say is on stderr.

    \b
    Examples:
      gateway endpoints rotate shop --overlap 3600
      gateway endpoints rotate shop > key.txt
    """
    body = {"schemes": list(schemes), "overlap_seconds": None if until_finish else overlap, "finish": finish}
    found = ApiClient(url, api_key).ask("POST", endpoint_path(name) + ":rotate", body=body)
    if as_json:
        print_json(found)
    else:
        print_keys(found["signing_keys"], err=bool(new_secrets(found)))
        print_secrets(found["signing_keys"])


# ---------------------------------------------------------------------------------------------------- pieces


def print_endpoint(endpoint: Mapping[str, Any], as_json: bool) -> None:
    """Everything about an endpoint."""
    if as_json:
        print_json(endpoint)
        return
    shown = dict(endpoint)
    settings, keys = shown.pop("settings"), shown.pop("signing_keys")
    shown["secrets"] = ", ".join(shown["secrets"]) or "-"
    print_table(
        ("FIELD", "VALUE"), ((name.replace("_", " "), "-" if value == "" else value) for name, value in shown.items())
    )
    if keys:
        click.echo()
        print_keys(keys)
        click.echo()
    print_json(settings)


def print_keys(keys: Sequence[Mapping[str, Any]], *, err: bool = False) -> None:
    """Signing keys, without what is secret; ``err``: on stderr."""
    heads = ("KEY", "SCHEME", "CREATED", "UNTIL", "OLD", "PUBLIC KEY")
    rows = [
        (key["id"], key["scheme"], key["created_at"], key["until"], key["old"], key["public_key"] or "-")
        for key in keys
    ]
    if err:
        note("\n".join(table_lines(heads, rows)))
    else:
        print_table(heads, rows)


def new_secrets(endpoint: Mapping[str, Any]) -> list[str]:
    """The secrets that this answer shows, and no other will."""
    return [key["secret"] for key in endpoint["signing_keys"] if "secret" in key]


def print_secrets(keys: Sequence[Mapping[str, Any]]) -> None:
    """The keys that are shown this once, for the receiver."""
    for key in keys:
        if "secret" in key:
            click.echo(printable(key["secret"]))
            note(f"the key {key['id']} of {key['scheme']} is shown this once; give it to the receiver")


def print_state(endpoint: Mapping[str, Any], as_json: bool) -> None:
    """How an endpoint stands now."""
    if as_json:
        print_json(endpoint)
    else:
        why = f": {printable(endpoint['reason'])}" if endpoint["reason"] else ""
        note(f"{endpoint['name']} is {endpoint['state']}{why}")
