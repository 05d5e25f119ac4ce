"""``gateway dlq``: dead messages, those that the ledger keeps and those in dead-letter queues of brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from gateway.commands.bridges import moment
from gateway.commands.client import (
    ApiClient,
    client_options,
    dead_letter_text,
    note,
    print_json,
    print_table,
    printable,
    segment,
)
from gateway.commands.progress import Estimate, Progress, bar
from gateway.commands.replays import PREVIEW_WAIT, print_preview, run, target_options
from gateway.commands.resources import print_queue, print_removed, queue_path
from gateway.runtime.clock import clock

LEDGER_OPTIONS: Final = ("subscription", "endpoint", "code", "since", "until")
"""The options that a queue of a broker does not have."""
F = TypeVar("F", bound=Callable[..., Any])


def where_options(function: F) -> F:
    """Which dead messages."""
    for option in (
        click.option("--queue", default="", metavar="NAME", help="The dead-letter queue of that broker."),
        click.option("--broker", default="", metavar="NAME", help="Those in a queue of this broker instead."),
        click.option("--until", metavar="TIME", help="Only before that."),
        click.option("--since", metavar="TIME", help="Only from then on: RFC 3339, or how long ago (90s, 2h, 1d)."),
        click.option("--code", default="", metavar="CODE", help="Only those that died with this code."),
        click.option("--endpoint", default="", metavar="NAME", help="Only of subscriptions pushed to this endpoint."),
        click.option("--subscription", default="", metavar="NAME", help="Only of this subscription."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.group(short_help="Show, redrive and purge dead messages.")
def dlq() -> None:
    """Show, redrive and purge dead messages: those that the ledger keeps for subscriptions, or, with --broker and
    --queue, those in a dead-letter queue.

    \b
    gateway dlq list --subscription billing
    gateway dlq redrive --subscription billing
    gateway dlq redrive --broker shop --queue orders.dead --dry-run
    """


@dlq.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many at most.")
@where_options
@client_options
def list_dead(url: str, api_key: str | None, as_json: bool, **given: Any) -> None:
    """Show dead messages, the newest first; of a queue the first ten, which marks them as redelivered.

    \b
    Examples:
      gateway dlq list --subscription billing --since 1d
      gateway dlq list --broker shop --queue orders-dead
    """
    client = ApiClient(url, api_key)
    if in_queue(given):
        body = {"source": {"queue": {"broker": given["broker"], "queue": given["queue"]}}, "dry_run": True}
        print_preview(client.ask("POST", "/v1/replays", body=body, wait=PREVIEW_WAIT), as_json)
        return
    asked = {
        "state": "dead",
        "newest": "true",
        "limit": str(given["limit"]),
        **filters(given),
    }
    answer = client.ask("GET", "/v1/deliveries", query={name: value for name, value in asked.items() if value})
    if as_json:
        print_json(answer)
        return
    print_table(
        ("ID", "AT", "SUBSCRIPTION", "MESSAGE", "ATTEMPTS", "OCTETS", "CODE", "REASON"),
        (
            (
                row["id"], row["at"], row["subscription"], row["message_id"], row["attempts"], row["octets"],
                (row.get("dead_letter") or {}).get("code"), reason_text(row["reason"]),
            )
            for row in answer["deliveries"]
        ),
    )  # fmt: skip


@dlq.command("groups")
@click.option("--subscription", default="", metavar="NAME", help="Only of this subscription.")
@click.option("--endpoint", default="", metavar="NAME", help="Only of subscriptions pushed to this endpoint.")
@click.option("--code", default="", metavar="CODE", help="Only those that died with this code.")
@client_options
def groups(url: str, api_key: str | None, as_json: bool, **given: str) -> None:
    """Count the dead messages that the ledger keeps, by code and subscription.

    \b
    Examples:
      gateway dlq groups
      gateway dlq groups --endpoint billing-hook
    """
    asked = {name: value for name, value in given.items() if value}
    answer = ApiClient(url, api_key).ask("GET", "/v1/dead-letters", query=asked)
    if as_json:
        print_json(answer)
        return
    print_table(
        ("CODE", "SUBSCRIPTION", "ENDPOINT", "MESSAGES", "FIRST AT", "LAST AT", "MEANING"),
        (
            (
                row["code"], row["subscription"], row["endpoint"] or "-", f"{row['count']}{'+' * row['more']}",
                row["first_at"], row["last_at"], row["meaning"],
            )
            for row in answer["groups"]
        ),
    )  # fmt: skip
    if answer["more"]:
        note("There are more groups: name a code, a subscription or an endpoint.")


@dlq.command("show")
@click.argument("id", required=False)
@click.option("--broker", default="", metavar="NAME", help="A queue of this broker instead.")
@click.option("--queue", default="", metavar="NAME", help="The dead-letter queue of that broker.")
@client_options
def show_dead(id: str | None, url: str, api_key: str | None, as_json: bool, **given: Any) -> None:
    """Show the dead message ID, with its body and the reason; or how many there are in a queue.

    \b
    Example:
      gateway dlq show 01a21ac4-4725-7000-9297-5a65c2e275f2
    """
    client = ApiClient(url, api_key)
    if in_queue(given):
        print_queue(client.ask("GET", queue_path(given["broker"], given["queue"])), as_json)
        return
    if id is None:
        raise click.UsageError("ID is missing, or --broker and --queue")
    found = client.ask("GET", f"/v1/deliveries/{segment(id)}")
    if as_json:
        print_json(found)
        return
    message = found.pop("message")
    told = found.pop("dead_letter", None)
    if told:
        found["dead_letter"] = dead_letter_text(told)
    found["reason"] = reason_text(found["reason"])
    print_table(("FIELD", "VALUE"), ((name.replace("_", " "), value) for name, value in found.items()))
    print_json(message)


@dlq.command("redrive")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@where_options
@target_options
@client_options
def redrive(ids: tuple[str, ...], url: str, api_key: str | None, as_json: bool, **given: Any) -> None:
    """Try dead messages again: the IDs, or all that fit.

    Those of the ledger go back to their subscription, those in a queue to the queue that they died in, or wherever
    the options say. Only what is there now is taken.

    \b
    Examples:
      gateway dlq redrive --subscription billing --dry-run
      gateway dlq redrive --broker shop --queue orders-dead
    """
    client = ApiClient(url, api_key)
    source: dict[str, Any]
    if in_queue(given):
        if ids:
            raise click.UsageError("messages in a queue have no ID to be named by")
        source = {"queue": {"broker": given["broker"], "queue": given["queue"]}}
    else:
        source = {"deliveries": {"ids": list(ids)} if ids else filters(given)}
    run(client, source, given, as_json)


@dlq.command("purge")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--dry-run", is_flag=True, help="Only say how many there are, and show ten.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--detach", is_flag=True, help="Begin a job that deletes them, and do not wait for the end.")
@where_options
@client_options
def purge(
    ids: tuple[str, ...], dry_run: bool, yes: bool, url: str, api_key: str | None, as_json: bool, **given: Any
) -> None:
    """Delete dead messages: the IDs, or all that fit. In a queue: everything.

    With --detach the gateway deletes them as a job: see gateway replays watch, pause and cancel.

    \b
    Example:
      gateway dlq purge --subscription billing --until 30d
    """
    client = ApiClient(url, api_key)
    if dry_run and not in_queue(given):
        found = client.ask("POST", "/v1/deliveries:purge", body={"filter": filters(given), "dry_run": True})
        if as_json:
            print_json(found)
        else:
            note(f"{found['count']:,} dead messages; nothing was deleted")
        return
    if dry_run:
        print_queue(client.ask("GET", queue_path(given["broker"], given["queue"])), as_json)
        return
    if not yes:
        click.confirm("Delete them?", abort=True)
    if in_queue(given):
        if given["detach"]:
            raise click.UsageError("--detach is for dead messages in the ledger")
        print_removed(client.ask("POST", queue_path(given["broker"], given["queue"]) + ":purge"), as_json)
        return
    if given["detach"]:
        source = {"deliveries": {"ids": list(ids)} if ids else filters(given)}
        job = client.ask("POST", "/v1/replays", body={"source": source, "target": {"purge": True}})
        if as_json:
            print_json(job)
        else:
            click.echo(printable(job["id"]))
        return
    count = sum(purge_one(client, each) for each in ids) if ids else purge_all(client, filters(given), as_json)
    if as_json:
        print_json({"count": count})
    else:
        note(f"{count:,} deleted")


# ---------------------------------------------------------------------------------------------------- pieces


def in_queue(given: Mapping[str, Any]) -> bool:
    """Whether a dead-letter queue is meant."""
    if bool(given["broker"]) != bool(given["queue"]):
        raise click.UsageError("--broker and --queue go together")
    if given["queue"] and any(given.get(name) for name in LEDGER_OPTIONS):
        options = ", ".join(f"--{name}" for name in LEDGER_OPTIONS)
        raise click.UsageError(f"{options} are for dead messages in the ledger")
    return bool(given["queue"])


def filters(given: Mapping[str, Any]) -> dict[str, Any]:
    """The filter that the options make."""
    found = {
        "subscription": given["subscription"],
        "endpoint": given["endpoint"],
        "code": given["code"],
        "since": moment(given["since"]),
        "until": moment(given["until"]),
    }
    return {name: value for name, value in found.items() if value}


def purge_one(client: ApiClient, delivery: str) -> int:
    """Delete one."""
    client.ask("POST", f"/v1/deliveries/{segment(delivery)}:purge")
    return 1


def purge_all(client: ApiClient, where: Mapping[str, Any], as_json: bool) -> int:
    """Delete all that fit, part by part."""
    progress, estimate = Progress(as_json=False), Estimate()
    count, total = 0, None
    try:
        while True:
            part = client.ask("POST", "/v1/deliveries:purge", body={"filter": where})
            count += int(part["count"])
            if part["more"] and not as_json:
                if total is None:
                    left = client.ask("POST", "/v1/deliveries:purge", body={"filter": where, "dry_run": True})
                    total = count + int(left["count"])
                remaining = estimate.text(count, total, clock.monotonic())
                parts = (bar(count, total), remaining, f"{count:,} of {total:,} deleted")
                progress.show(part, "  ".join(filter(None, parts)))
            if not part["more"] or not part["count"]:
                return count
    finally:
        progress.close()


def reason_text(reason: Any) -> str:
    """Why it is dead, in a line."""
    if not isinstance(reason, Mapping):
        return str(reason)
    return str(reason.get("text") or reason.get("reason") or " ".join(f"{k}={v}" for k, v in reason.items()) or "-")
