"""``gateway tail``: what happens, as it happens.

It remembers how far it has come, by the id of each event. When the connection drops it comes back with that, as often
as it takes, and so misses nothing and shows nothing twice. An event counts when it is there as a whole.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import click

from gateway.commands import UNREACHABLE, Failure
from gateway.commands.bridges import moment
from gateway.commands.client import ApiClient, client_options, note, printable, unreachable
from gateway.commands.messages import TIME_HELP, detail_text
from gateway.runtime.backoff import Backoff
from gateway.terminal import print_json_line

SILENCE = 45.0
"""How long the gateway may say nothing, in seconds; it speaks every 15."""
PAUSE_MIN, PAUSE_MAX = 0.2, 5.0
"""Pause before it is tried to come back, in seconds; doubled each time."""


@click.command(short_help="Follow what happens to all messages.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind of event. May be repeated.")
@click.option("--broker", metavar="NAME", help="Only at this broker.")
@click.option("--subscription", metavar="NAME", help="Only of this subscription.")
@click.option("--endpoint", metavar="NAME", help="Only of this endpoint.")
@click.option("--bridge", metavar="NAME", help="Only of this bridge.")
@click.option("--message", metavar="ID", help="Only of this message.")
@click.option("--since", metavar="TIME", help=f"Begin with what happened then: {TIME_HELP}")
@click.option("--all", "everything", is_flag=True, help="Begin with the oldest event that the ledger has.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Go on with what comes.")
@click.option("--count", type=click.IntRange(1), help="End after so many events.")
@client_options
def tail(
    kinds: tuple[str, ...],
    since: str | None,
    everything: bool,
    follow: bool,
    count: int | None,
    url: str,
    api_key: str | None,
    as_json: bool,
    **filters: str | None,
) -> None:
    """Show what happens to all messages, as it happens: a line for each event, or with --json an object.

    When the connection drops it reconnects, misses nothing and shows nothing twice.

    \b
    Examples:
      gateway tail --kind dead --kind attempt_failed
      gateway tail --bridge east --since 10m --json
    """
    given = {**filters, "kind": ",".join(kinds), "since": moment(since), "follow": str(follow).lower()}
    if everything:
        given["position"] = "{}"
    query = {name: value for name, value in given.items() if value}
    left = count
    with suppress(KeyboardInterrupt):  # how one ends what does not end
        for event in events(ApiClient(url, api_key), query, follow):
            if as_json:
                print_json_line(event)
            else:
                click.echo(line(event))
            sys.stdout.flush()
            if left is not None:
                left -= 1
                if not left:
                    return


class StreamedEvent(NamedTuple):
    """A block of a stream of server-sent events."""

    id: str | None
    data: str


def events(client: ApiClient, query: dict[str, str], follow: bool) -> Iterator[Any]:
    """Events, over as many connections as it takes.

    Raises:
        Failure: nobody was there to begin with, or the gateway answered with a problem.
    """
    import httpx

    reached = ""
    backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
    while True:
        headers = {"accept": "text/event-stream"} | ({"last-event-id": reached} if reached else {})
        try:
            with client.stream("/v1/events", headers, query, SILENCE) as lines:
                for block in blocks(lines):
                    if block.id is not None:
                        reached = block.id
                        backoff.reset()
                    if block.data:
                        yield json.loads(block.data)
            if not follow:
                return
            why = "the gateway ended it"
        except httpx.TransportError as error:
            if not reached:
                raise unreachable(client.url, error) from None
            why = str(error) or type(error).__name__
        except Failure as failure:
            if not reached or failure.exit_code != UNREACHABLE:
                raise
            why = failure.message
        if not reached:
            raise Failure("the gateway ended the stream before it began", UNREACHABLE)
        note(f"connection lost ({why}); coming back")
        backoff.block()


def blocks(lines: Iterable[str]) -> Iterator[StreamedEvent]:
    """The blocks of a stream; one that is cut off does not count."""
    id: str | None = None
    data: list[str] = []
    for text in lines:
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if not text:
            if id is not None or data:
                yield StreamedEvent(id, "\n".join(data))
            id, data = None, []
        elif name == "id":
            id = value
        elif name == "data":
            data.append(value)


def line(event: Any) -> str:
    """An event as a line."""
    when, where = printable(f"{event['at']}  {event['id']}"), printable(event["broker"] or "-")
    kind = click.style(f"{printable(event['kind']):<17}", bold=True)
    return f"{when}  {kind}  {where}  {detail_text(event['detail'])}"
