"""``gateway statistics``: counts of events per hour."""

from __future__ import annotations

import click

from gateway.commands.client import ApiClient, client_options, print_json, print_table

BY = ("kind", "broker", "subscription", "endpoint", "bridge")
TIME = "RFC 3339, or how long ago (90s, 2h, 1d)."


@click.command(short_help="Count events per hour.")
@click.option(
    "--by", default="kind,broker", show_default=True, metavar="NAMES", help=f"Count by these: {', '.join(BY)}."
)
@click.option("--since", default="", metavar="TIME", help=f"Only this hour and later ones: {TIME}")
@click.option("--until", default="", metavar="TIME", help=f"Only hours before that: {TIME}")
@click.option("--kind", default="", metavar="KINDS", help="Only these kinds of event, with commas between them.")
@click.option("--broker", default="", help="Only events at this broker.")
@click.option("--subscription", default="", help="Only of this subscription.")
@click.option("--endpoint", default="", help="Only of this endpoint.")
@click.option("--bridge", default="", help="Only of this bridge.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Most counts, the newest first.")
@client_options
def statistics(limit: int, url: str, api_key: str | None, as_json: bool, **given: str) -> None:
    """Count what happened, by hour, the newest first. Counts stay when the events themselves go.

    \b
    Examples:
      gateway statistics --since 1d
      gateway statistics --by subscription,kind --kind acknowledged,dead
    """
    query = {name: value for name, value in given.items() if value} | {"limit": str(min(limit, 1000))}
    found: list[dict[str, object]] = []
    for page in ApiClient(url, api_key).pages("/v1/statistics", query):
        found += page["hours"]
        if len(found) >= limit:
            break
    if as_json:
        print_json({"hours": found[:limit]})
        return
    names = [name for name in BY if name in given["by"].split(",")]
    print_table(
        ("HOUR", *(name.upper() for name in names), "EVENTS", "OCTETS"),
        ((row["hour"], *(row[name] or "-" for name in names), row["events"], row["octets"]) for row in found[:limit]),
    )
