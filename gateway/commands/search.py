"""``gateway search TEXT``: names of everything, and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table
from gateway.commands.messages import PAGES_SAID

KINDS: Final = (
    "broker", "queue", "exchange", "subscription", "endpoint", "bridge", "tap", "front", "replay", "scheduled",
    "message",
)  # fmt: skip
"""What may be searched."""
MAY_NOT: Final = "forbidden"
"""Code of a gap where the credential lacks a scope."""


@click.command(short_help="Find names of everything, and messages.")
@click.argument("text")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind; may be repeated.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Most things of each kind.")
@click.option("--further", is_flag=True, help="Go on where a bounded search stopped, until --limit are found.")
@client_options
def search(
    text: str, kinds: Sequence[str], limit: int, further: bool, url: str, api_key: str | None, as_json: bool
) -> None:
    """Find TEXT in the names of brokers, queues, exchanges, subscriptions, endpoints, bridges, taps, fronts and
    replays, and messages by id, message-id, correlation-id, routing key, or NAME=VALUE of a header.

    Names contain TEXT, in any case; messages have it as a whole. You find what your credential may list. Notes on
    stderr say what was not searched, or only in part, and why.

    \b
    Examples:
      gateway search orders
      gateway search tenant=7 --kind message --further
    """
    client = ApiClient(url, api_key)
    found = _ask(client, text, kinds, limit)
    if further:
        _go_on(client, text, limit, found)
    if as_json:
        print_json(found)
        return
    print_table(
        ("KIND", "NAME", "BROKER", "MATCH", "STATE", "AT"),
        (
            tuple(row[name] or "-" for name in ("kind", "name", "broker", "match", "state", "at"))
            for row in found["found"]
        ),
    )
    for gap in found["gaps"]:
        if gap["code"] != MAY_NOT:
            note(f"{' '.join(filter(None, (gap['kind'], gap['broker'])))}: {gap['reason']}")
    if lacking := [gap["kind"] for gap in found["gaps"] if gap["code"] == MAY_NOT]:
        note(f"Not searched, since the credential may not list them: {', '.join(lacking)}")
    more = [each["kind"] for each in found["kinds"] if each["next"] is not None and each["count"] >= limit]
    if more:
        note(f"There is more: {', '.join(more)}. Give a longer TEXT, or a larger --limit.")


def _ask(client: ApiClient, text: str, kinds: Sequence[str], limit: int, cursor: str = "") -> dict[str, Any]:
    pairs = [("q", text), *(("kind", kind) for kind in kinds), ("limit", str(limit))]
    if cursor:
        pairs.append(("cursor", cursor))
    answer: dict[str, Any] = client.ask("GET", f"/v1/search?{urlencode(pairs, errors='surrogateescape')}")
    return answer


def _go_on(client: ApiClient, text: str, limit: int, found: dict[str, Any]) -> None:
    """Search on those kinds that were not looked at to their end, and put what is found into the answer."""
    for number, each in enumerate(found["kinds"]):
        asked = 0
        while each["count"] < limit and (cursor := _cursor(each)):
            asked += 1
            if asked % PAGES_SAID == 0:
                note(f"{each['kind']}: {each['count']} found so far; looking further")
            more = _ask(client, text, [each["kind"]], limit - each["count"], cursor)
            found["found"] += more["found"]
            found["gaps"] = [gap for gap in found["gaps"] if gap["kind"] != each["kind"]] + more["gaps"]
            (following,) = more["kinds"]
            each = {**following, "count": each["count"] + following["count"]}
            found["kinds"][number] = each


def _cursor(kind: Mapping[str, Any]) -> str:
    """Where a search of a kind goes on; empty: it has reached its end."""
    return parse_qs(urlsplit(kind["next"] or "").query).get("cursor", [""])[0]
