"""``gateway explain``: what a message becomes in another version, without sending it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table
from gateway.commands.publish import parse_headers, parse_property
from gateway.versions import VERSION_NAMES

CUT = 40
"""How much of a value the table shows, in characters."""
TARGETS: Final = f"{', '.join(VERSION_NAMES)}, or the name of a broker."
"""What ``--to`` takes."""


@click.command(short_help="Say what a message becomes in another version.")
@click.argument("file", required=False)
@click.option("--to", metavar="VERSION|BROKER", required=True, help=TARGETS)
@click.option("--from", "source", metavar="VERSION|BROKER", default="", help="Where the message comes from.")
@click.option("--product", type=click.Choice(["rabbitmq", "qpid"]), help="The broker's product, beside a version.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header with a text value; NAME:=JSON gives any other type. May be repeated.",
)
@click.option("--release", multiple=True, metavar="HEADER", help="A header to pass on though brokers act upon it.")
@click.option("--strip", is_flag=True, help="Leave the reserved header out.")
@client_options
def explain(
    file: str | None,
    to: str,
    source: str,
    product: str | None,
    properties: tuple[str, ...],
    headers: tuple[str, ...],
    release: tuple[str, ...],
    strip: bool,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Say what a message becomes in another version, field by field: the same, mapped, carried in the reserved
    header, or lost; and why. Nothing is sent.

    FILE holds the message as JSON, as it is published over HTTP; - is stdin. --property and --header are added to it.

    \b
    Examples:
      gateway explain --to 0-10 --property message_id=m-1 --header 'n:={"type": "uint16", "value": 7}'
      gateway explain --from 0-10 --to local-0-8 message.json
    """
    message = _read(file) if file is not None else {}
    for member, parsed in (
        ("properties", dict(parse_property(text) for text in properties)),
        ("headers", dict(parse_headers(headers))),
    ):
        if parsed:
            message[member] = {**(message.get(member) or {}), **parsed}
    body: dict[str, Any] = {"message": message, "release_headers": list(release), "strip": strip}
    body["to" if to in VERSION_NAMES else "broker"] = to
    if source:
        body["from"] = source
    if product is not None:
        body["product"] = product
    answer = ApiClient(url, api_key).ask("POST", "/v1/translations:explain", body=body)
    if as_json:
        print_json(answer)
        return
    rows = [
        (
            item["field"],
            item["result"],
            _cell(item["value"]),
            _cell(item["becomes"]) if "becomes" in item else "",
            item.get("why", ""),
        )
        for item in answer["fields"]
    ]
    print_table(("field", "result", "value", "becomes", "why"), rows)
    for loss in answer["losses"]:
        note(f"lost: {loss['field']} ({loss['name']}): {loss['detail']}")
    if "message" not in answer:
        note("it cannot be sent there")
    elif not answer["losses"]:
        note(f"nothing is lost towards {answer['to']} ({answer['product']})")


def _read(file: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        message = json.loads(text)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(f"{file}: not JSON: {error}") from None
    if not isinstance(message, dict):
        raise click.UsageError(f"{file}: not a JSON object")
    return message


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= CUT else f"{text[:CUT]}…"
