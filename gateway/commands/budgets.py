"""``gateway budgets``: how much of everything that clients share is held, and by whom."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.client import ApiClient, client_options, print_json, print_table

SHOWN = 3
"""How many clients of a resource are in the table."""


@click.command(short_help="Show budgets, and which clients hold most.")
@client_options
def budgets(url: str, api_key: str | None, as_json: bool) -> None:
    """Show how much of each shared resource is in use at the gateway at --url, and which clients hold most.

    A client at its share gets 429 budget_exceeded. REFUSED counts since the process started.

    \b
    Example:
      gateway budgets
    """
    found: dict[str, Any] = ApiClient(url, api_key).ask("GET", "/v1/budgets")
    if as_json:
        print_json(found)
        return
    print_table(
        ("RESOURCE", "HELD", "TOTAL", "SHARE", "RESERVE", "SCOPE", "REFUSED", "LARGEST"),
        (
            (
                row["resource"],
                f"{row['held']:,}",
                f"{row['total']:,}",
                f"{row['share']:,}",
                f"{row['reserve']:,}",
                row["scope"],
                f"{sum(row['refusals'].values()):,}",
                ", ".join(f"{_name(each)} {each['held']:,}" for each in row["largest"][:SHOWN]) or "-",
            )
            for row in found["budgets"]
        ),
    )


def _name(client: dict[str, Any]) -> str:
    """Return a client as the table names it."""
    name: str = client["client"]
    return name if client["kind"] == "client" else f"{client['kind']} {name}"
