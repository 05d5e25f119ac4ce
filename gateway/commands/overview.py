"""``gateway overview``: what is wrong, at a glance."""

from __future__ import annotations

import click

from gateway.commands.client import ApiClient, client_options, note, print_json, print_table


@click.command(short_help="Show what is wrong, at a glance.")
@client_options
def overview(url: str, api_key: str | None, as_json: bool) -> None:
    """Show how many things there are, and of each that is not well its state, code and reason.

    \b
    Example:
      gateway overview
    """
    found = ApiClient(url, api_key).ask("GET", "/v1/overview")
    if as_json:
        print_json(found)
        return
    print_table(
        ("KIND", "COUNT", "WELL"),
        ((each["kind"], f"{each['count']}{'+' * each['more']}", each["well"]) for each in found["kinds"]),
    )
    if backlog := found["backlog"]:
        waiting, out, dead = (backlog[name] for name in ("waiting", "out", "dead"))
        note(f"{waiting:,} messages wait, {out:,} are out, {dead:,} are dead")
    if not found["troubles"]:
        note("Everything that you may see is well.")
        return
    click.echo()
    print_table(
        ("SEVERITY", "KIND", "NAME", "STATE", "CODE", "REASON"),
        (
            tuple(each[name] for name in ("severity", "kind", "name", "state", "code", "reason"))
            for each in found["troubles"]
        ),
    )
    if found["more"]:
        note("There is more than is shown here.")
