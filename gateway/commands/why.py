"""``gateway why ID``: what happened to one message, in words, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gateway.commands import NOT_FOUND, Failure
from gateway.commands.client import ApiClient, client_options, dead_letter_text, print_json, printable, segment
from gateway.commands.messages import print_timeline

RELATED_MAX = 20
"""Most other messages that are looked up."""


@click.command(short_help="Say what happened to one message, and what can be done.")
@click.argument("id")
@click.option("--events", is_flag=True, help="Show the events as they are recorded, too.")
@client_options
def why(id: str, events: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Say what happened to the message ID, where it is now and why, and what can be done about it.

    A message keeps its id over bridges and versions, so you see all of its way; replies and copies that carry another
    id have one line each.

    \b
    Example:
      gateway why 01a21ac4-4725-7000-9297-5a65c2e275f2
    """
    client = ApiClient(url, api_key)
    answer = client.ask("GET", f"/v1/messages/{segment(id)}")
    if as_json:
        print_json(answer)
        return
    click.echo(click.style(printable(f"{answer['id']} is {answer['state'] or 'in no state'}."), bold=True))
    click.echo(printable(answer["now"]))
    if answer.get("dead_letter"):
        click.echo(dead_letter_text(answer["dead_letter"]))
    click.echo()
    for event, said in zip(answer["events"], answer["story"], strict=True):
        click.echo(printable(f"{event['at']}  {said}"))
    if events:
        click.echo()
        print_timeline(answer)
    if answer["related"]:
        click.echo()
        for other in answer["related"][:RELATED_MAX]:
            click.echo(_related(client, other))
    if answer["advice"]:
        click.echo()
        click.echo(click.style("What can be done", bold=True))
        for step in answer["advice"]:
            click.echo(f"  {printable(step['what'])}")
            if step["command"]:
                click.echo(f"    {printable(step['command'])}")


def _related(client: ApiClient, other: str) -> str:
    """Another message in a line."""
    try:
        found: Mapping[str, Any] = client.ask("GET", f"/v1/messages/{segment(other)}")
    except Failure as failure:
        if failure.exit_code != NOT_FOUND:
            raise
        return printable(f"{other}: the ledger knows nothing of it (yet, or any more).")
    return printable(f"{other} is {found['state'] or 'in no state'}. {found['now']}")
