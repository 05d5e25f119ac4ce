"""``gateway reload``: have a running gateway read its configuration file again."""

from __future__ import annotations

from typing import Any

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table
from gateway.exits import PARTLY_DONE

WAIT = 60.0
"""How long it may take: new links to brokers are made first, in seconds."""
SAID = {
    "applied": "The new configuration counts.",
    "unchanged": "The configuration is as it was.",
    "checked": "The new configuration could count; nothing was changed.",
}


@click.command(short_help="Have a running gateway read its configuration file again.")
@click.option("--dry-run", is_flag=True, help="Only check it, brokers' logins included.")
@client_options
@click.pass_context
def reload(ctx: click.Context, dry_run: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Have the gateway at --url read its configuration file again, as SIGHUP does.

    The new file takes effect as a whole, or not at all: a file that is wrong, or changes what takes a restart, changes
    nothing, and the exit status is 4.

    \b
    Examples:
      gateway reload --dry-run
      gateway reload
    """
    query = {"dry_run": "1"} if dry_run else None
    found: dict[str, Any] = ApiClient(url, api_key).ask("POST", "/v1/admin:reload", query=query, wait=WAIT)
    if as_json:
        print_json(found)
    else:
        note(SAID[found["status"]])
        if found["changes"]:
            rows = ((row["setting"], row["change"], row["when"]) for row in found["changes"])
            print_table(("SETTING", "CHANGE", "COUNTS"), rows)
        for row in found["brokers"]:
            if row["state"] not in ("up", "blocked"):
                note(f"broker {row['name']}: {row['state']} {row['reason']}".rstrip())
        if not found["complete"]:
            note("Some parts still start over in the background.")
    if not found["complete"]:
        ctx.exit(PARTLY_DONE)
