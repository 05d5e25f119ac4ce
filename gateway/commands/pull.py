"""``gateway pull``: messages on the screen, and then off their queue.

A message is acknowledged after it was printed and flushed, so that a pipe that breaks loses nothing.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands import FAILED, PARTLY_DONE, Failure
from gateway.commands.client import ApiClient, client_options, dead_letter_text, note, print_json, printable, segment
from gateway.commands.follow import follow_stream
from gateway.runtime.ids import ids
from gateway.terminal import escaped, print_json_line

SAID = {"acknowledge": "acknowledged", "release": "given back", "reject": "rejected", "discard": "discarded"}
"""Verb -> what was done."""


@click.command(short_help="Take messages from a subscription or a queue.")
@click.argument("source", nargs=-1, required=True, metavar="SUBSCRIPTION | BROKER QUEUE")
@click.option("--max", "maximum", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many at most.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 60),
    default=0.0,
    show_default=True,
    help="Seconds to wait for the first message.",
)
@click.option("--ack/--no-ack", default=True, show_default=True, help="Acknowledge them, or give them back.")
@click.option("--reject", "reason", metavar="REASON", help="Reject them with this reason: they are dead letters then.")
@click.option("--discard", is_flag=True, help="With --reject: drop them instead. They are gone.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until it is interrupted, or --max is reached.")
@client_options
@click.pass_context
def pull(
    context: click.Context,
    source: tuple[str, ...],
    maximum: int,
    wait: float,
    ack: bool,
    reason: str | None,
    discard: bool,
    follow: bool,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Take messages from SUBSCRIPTION, or from QUEUE of BROKER, and print them.

    They are acknowledged once they are printed; with --no-ack they go back to their queue, with --reject they are dead
    letters. With --follow and --json each message is a line of its own.

    \b
    Examples:
      gateway pull billing --wait 5
      gateway pull billing --follow --json
      gateway pull billing --max 1 --reject "no such customer"
      gateway pull local-0-10 orders --max 100 --json
    """
    if len(source) > 2:
        raise click.UsageError("pull takes the name of a subscription, or a broker and a queue")
    if follow and not ack:
        raise click.UsageError("--no-ack gives messages back: with --follow they would come again and again")
    if reason is not None and (follow or not ack):
        raise click.UsageError("--reject goes with neither --follow nor --no-ack")
    if discard and reason is None:
        raise click.UsageError("--discard drops what --reject gives up: add --reject REASON")
    client = ApiClient(url, api_key)
    with subscription(client, source) as name:
        path = f"/v1/subscriptions/{segment(name)}"
        if follow:
            given = context.get_parameter_source("maximum") is not click.core.ParameterSource.DEFAULT
            show = print_line if as_json else print_message
            follow_stream(
                client, path, show, lambda ack_ids: settle(client, path, "acknowledge", ack_ids, quiet=True),
                maximum if given else None,
            )  # fmt: skip
            return
        answer = client.ask("POST", f"{path}:pull", body={"max_messages": maximum, "wait_seconds": wait}, wait=wait)
        pulled = answer["messages"]
        if as_json:
            print_json(answer)
        else:
            for item in pulled:
                print_message(item)
        sys.stdout.flush()
        if not pulled:
            note("no message came")
            return
        ack_ids = [item["ack_id"] for item in pulled]
        if reason is not None:
            settle(client, path, "reject", ack_ids, reason=reason, **({"discard": True} if discard else {}))
        else:
            settle(client, path, "acknowledge" if ack else "release", ack_ids)


@contextmanager
def subscription(client: ApiClient, source: tuple[str, ...]) -> Iterator[str]:
    """The subscription to pull from: the one that was named, or one that lasts as long as the pull."""
    if len(source) == 1:
        yield source[0]
        return
    broker, queue = source
    name = f"pull-{ids.hex(8)}"
    path = f"/v1/subscriptions/{name}"
    client.ask("PUT", path, body={"broker": broker, "queue": queue})
    try:
        yield name
    finally:
        client.ask("DELETE", path, headers={"if-match": "*"})


def settle(client: ApiClient, path: str, verb: str, ack_ids: list[str], *, quiet: bool = False, **more: Any) -> None:
    """Acknowledge, release or reject; what could not be is a failure. ``quiet``: success is not told. ``more``: for the
    body of the request."""
    answer = client.ask("POST", f"{path}:{verb}", body={"ack_ids": ack_ids, **more})
    failed = [result for result in answer["results"] if result["status"] != "SUCCESS"]
    done = len(ack_ids) - len(failed)
    said = f"{done} {SAID['discard' if more.get('discard') else verb]}"
    if not failed:
        if not quiet:
            note(said)
        return
    reasons = ", ".join(sorted({result["status"] for result in failed}))
    raise Failure(
        f"{said}, {len(failed)} not ({reasons}); the broker delivers those again", PARTLY_DONE if done else FAILED
    )


def print_line(item: Mapping[str, Any]) -> None:
    """One message as a line of JSON."""
    print_json_line(item)


def print_message(item: Mapping[str, Any]) -> None:
    """One message: a line about it, and its payload."""
    message = item["message"]
    again = ", redelivered" if item["redelivered"] else ""
    where = printable(message["exchange"] or DEFAULT_EXCHANGE)
    click.echo(click.style(printable(f"{message['id']}  {where}, {message['routing_key']}{again}"), bold=True))
    if "dead_letter" in message:
        click.echo(dead_letter_text(message["dead_letter"]))
    if message["payload_encoding"] == "string":
        payload = message["payload"]
        click.echo(escaped(payload) if sys.stdout.isatty() else payload)  # a file or a program gets it unchanged
    else:
        click.echo(printable(f"({len(b64decode(message['payload']))} octets, base64) {message['payload']}"))
