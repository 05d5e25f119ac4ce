"""``gateway publish``: one message, and what became of it."""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable
from typing import Any

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, printable, segment

NUMBERS = frozenset({"delivery_mode", "priority", "timestamp"})
"""The properties that are numbers; all others are text."""


@click.command(short_help="Publish one message, and wait until it is safe.")
@click.argument("broker")
@click.argument("exchange")
@click.argument("routing_key")
@click.argument("payload", default="")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header with a text value; NAME:=JSON gives any other type. May be repeated.",
)
@click.option("--base64", "is_base64", is_flag=True, help="PAYLOAD is base64.")
@click.option("--mandatory/--no-mandatory", default=True, show_default=True, help="Fail if no queue takes it.")
@click.option(
    "--not-before", metavar="TIME", help="Publish at this time: RFC 3339 with an offset, or seconds since 1970."
)
@click.option("--delay", metavar="SECONDS", type=click.FloatRange(min=0), help="Publish this many seconds from now.")
@click.option("--idempotency-key", metavar="KEY", help="A repeat with the same key publishes nothing twice.")
@client_options
def publish(
    broker: str,
    exchange: str,
    routing_key: str,
    payload: str,
    properties: tuple[str, ...],
    headers: tuple[str, ...],
    is_base64: bool,
    mandatory: bool,
    not_before: str | None,
    delay: float | None,
    idempotency_key: str | None,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Publish PAYLOAD to EXCHANGE of BROKER, and wait until the broker has confirmed it.

    EXCHANGE is amq.default for the default exchange, where ROUTING_KEY is the name of a queue.
    PAYLOAD is - for what stands on stdin, and empty if it is not given.

    \b
    Examples:
      gateway publish local-0-9-1 amq.default orders hello
      gateway publish local-0-10 amq.topic eu.orders - --property content_type=text/csv < orders.csv
      gateway publish local-0-8 amq.headers "" hello --header region=eu --header n:=3
      gateway publish local-0-9-1 amq.default orders hello --delay 60

    With --not-before or --delay the command ends as soon as the ledger holds the message.
    """
    if not_before is not None and delay is not None:
        raise click.UsageError("give --not-before or --delay, not both")
    body: dict[str, Any] = {
        "routing_key": routing_key,
        **payload_members(payload, is_base64),
        "mandatory": mandatory,
        "properties": dict(parse_property(text) for text in properties),
        "headers": dict(parse_headers(headers)),
    }
    if not_before is not None:
        body["not_before"] = float(not_before) if not_before.replace(".", "", 1).isdecimal() else not_before
    if delay is not None:
        body["delay_seconds"] = delay
    answer = ApiClient(url, api_key).ask(
        "POST",
        f"/v1/brokers/{segment(broker)}/exchanges/{segment(exchange)}:publish",
        body=body,
        headers={"idempotency-key": idempotency_key} if idempotency_key else None,
    )
    if as_json:
        print_json(answer)
        return
    click.echo(printable(answer["id"]))
    if answer["status"] == "scheduled":
        note(f"scheduled for {answer['not_before']}; the ledger holds it")
    elif not answer["routed"]:
        note("unroutable: no queue took it, and it is gone")
    elif answer["durable"]:
        note("confirmed")
    else:
        note("confirmed; a restart of the broker may lose it")


def payload_members(payload: str, is_base64: bool) -> dict[str, str]:
    """``payload`` and ``payload_encoding``: text where the octets are UTF-8, else base64."""
    octets = sys.stdin.buffer.read() if payload == "-" else payload.encode("utf-8", "surrogateescape")
    if is_base64:
        try:
            octets = b64decode(b"".join(octets.split()), validate=True)
        except Base64Error as error:
            raise click.UsageError(f"PAYLOAD is not base64: {error}") from None
    try:
        return {"payload": octets.decode(), "payload_encoding": "string"}
    except UnicodeDecodeError:
        return {"payload": b64encode(octets).decode(), "payload_encoding": "base64"}


def parse_property(text: str) -> tuple[str, str | int]:
    """``NAME=VALUE``; a number where the property is one."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    if name not in NUMBERS:
        return name, value
    if not value.isdecimal():
        raise click.BadParameter(f"{name} is a number, not {value!r}", param_hint="--property")
    return name, int(value)


def parse_headers(texts: Iterable[str]) -> Iterable[tuple[str, Any]]:
    """``NAME=VALUE`` is text, ``NAME:=JSON`` any value."""
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name in ("", ":"):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
        if not name.endswith(":"):
            yield name, value
            continue
        try:
            yield name[:-1], json.loads(value)
        except ValueError as error:
            what = 'what follows := must be JSON: a number, true, null, "text" in quotes, a list or an object'
            raise click.BadParameter(
                f"{text!r}: {what} ({error}). Text is written NAME=TEXT.", param_hint="--header"
            ) from None
