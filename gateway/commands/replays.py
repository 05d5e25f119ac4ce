"""``gateway replays``: messages once more, watched until that is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from gateway.access.scopes import DEFAULT_EXCHANGE
from gateway.commands import FAILED, PARTLY_DONE, Failure
from gateway.commands.bridges import moment
from gateway.commands.client import ApiClient, client_options, note, print_json, print_table, printable, segment
from gateway.commands.progress import Estimate, Progress, replay_line
from gateway.runtime.clock import clock
from gateway.terminal import escaped

LOOK_EVERY = 0.5
"""How often it is asked how far it is, in seconds."""
PREVIEW_WAIT = 60.0
"""How long a dry run may take longer than any request, in seconds."""
ENDED = frozenset({"done", "failed", "cancelled"})
F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """Where messages go, and how."""
    for option in (
        click.option("--detach", is_flag=True, help="Begin, and do not wait for the end."),
        click.option("--dry-run", is_flag=True, help="Only say how many there are, and show ten."),
        click.option("--rate", type=click.FloatRange(min=0), default=0.0, help="Most messages a second."),
        click.option("--id", "job_id", default="", metavar="ID", help="Run again with it, nothing is sent twice."),
        click.option("--to-url", default="", metavar="URL", help="To this URL."),
        click.option("--to-endpoint", default="", metavar="NAME", help="To this endpoint."),
        click.option("--to-routing-key", metavar="KEY", help="With this routing key, not its own."),
        click.option("--to-exchange", metavar="NAME", help="To this exchange; amq.default is the default one."),
        click.option("--to-broker", default="", metavar="NAME", help="To this broker."),
    ):  # fmt: skip
        function = option(function)
    return function


def target_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The target that the options name."""
    target = {
        "broker": given["to_broker"],
        "exchange": given["to_exchange"],
        "routing_key": given["to_routing_key"],
        "endpoint": given["to_endpoint"],
        "url": given["to_url"],
    }
    return {name: value for name, value in target.items() if value not in ("", None)}


@click.group(short_help="Send messages once more, and watch it.")
def replays() -> None:
    """Send messages once more: to the place that each came from, or to another one.

    \b
    gateway replays messages --broker shop --since 2h --dry-run
    gateway replays messages --broker shop --since 2h --to-broker test --rate 100
    gateway replays queue shop orders.dead

    What is sent stays sent; running a replay again with the same --id sends only what is missing.
    """


@replays.command("messages")
@click.option("--broker", default="", metavar="NAME", help="Only messages of this broker.")
@click.option("--exchange", metavar="NAME", help="Only of this exchange; amq.default is the default one.")
@click.option("--routing-key", metavar="KEY", help="Only with this routing key.")
@click.option("--state", default="", metavar="STATE", help="Only in this state.")
@click.option("--since", metavar="TIME", help="Only from then on: RFC 3339, or how long ago (90s, 2h, 1d).")
@click.option("--until", metavar="TIME", help="Only before that.")
@click.option("--message", "ids", multiple=True, metavar="ID", help="This message; may be repeated.")
@target_options
@client_options
def replay_messages(url: str, api_key: str | None, as_json: bool, **given: Any) -> None:
    """Send messages that the ledger knows, with the bodies that it keeps ([retention] bodies).

    Those without a body are counted and named.

    \b
    Example:
      gateway replays messages --state returned --since 1h --to-broker shop --dry-run
    """
    filters = {
        "broker": given["broker"],
        "exchange": given["exchange"],
        "routing_key": given["routing_key"],
        "state": given["state"],
        "since": moment(given["since"]),
        "until": moment(given["until"]),
        "ids": list(given["ids"]),
    }
    source = {"messages": {name: value for name, value in filters.items() if value not in ("", None, [])}}
    run(ApiClient(url, api_key), source, given, as_json)


@replays.command("queue")
@click.argument("broker")
@click.argument("queue")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Take N messages at most.")
@target_options
@client_options
def replay_queue(url: str, api_key: str | None, as_json: bool, **given: Any) -> None:
    """Send what is in QUEUE of BROKER now, oldest first, and take it off the queue.

    \b
    Example:
      gateway replays queue shop orders-dead --to-broker shop --to-exchange events
    """
    source: dict[str, Any] = {"broker": given["broker"], "queue": given["queue"]}
    if given["limit"]:
        source["limit"] = given["limit"]
    run(ApiClient(url, api_key), {"queue": source}, given, as_json)


@replays.command("list")
@client_options
def list_replays(url: str, api_key: str | None, as_json: bool) -> None:
    """Show the replays of the last month.

    \b
    Example:
      gateway replays list
    """
    answer = ApiClient(url, api_key).ask("GET", "/v1/replays", query={"limit": "1000"})
    if as_json:
        print_json(answer)
        return
    print_table(
        ("ID", "STATE", "ASKED AT", "FOUND", "SENT", "SKIPPED", "REFUSED", "REASON"),
        (
            (
                job["id"], job["state"], job["asked_at"], job["found"], job["sent"], job["skipped"],
                sum(job["refused"].values()), job["reason"] or "-",
            )
            for job in answer["replays"]
        ),
    )  # fmt: skip


@replays.command("show")
@click.argument("id")
@click.option("--refused", is_flag=True, help="Name the messages that were not sent, and why.")
@client_options
def show_replay(id: str, refused: bool, url: str, api_key: str | None, as_json: bool) -> None:
    """Show the replay ID, or what it did not send.

    \b
    Example:
      gateway replays show nightly
    """
    client = ApiClient(url, api_key)
    if not refused:
        job = client.ask("GET", path_of(id))
        if as_json:
            print_json(job)
        else:
            click.echo(escaped(replay_line(job)))
        return
    found = all_refused(client, id)
    if as_json:
        print_json({"refused": found})
    else:
        print_table(("ID", "CODE", "DETAIL"), ((each["id"], each["code"], each["detail"]) for each in found))


@replays.command("watch")
@click.argument("id")
@client_options
def watch_replay(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Watch the replay ID until it ends.

    \b
    Example:
      gateway replays watch nightly
    """
    watch(ApiClient(url, api_key), id, as_json)


@replays.command("pause")
@click.argument("id")
@client_options
def pause_replay(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the replay ID send nothing more until it is resumed.

    \b
    Example:
      gateway replays pause nightly
    """
    steer(ApiClient(url, api_key), id, "pause", as_json)


@replays.command("resume")
@click.argument("id")
@client_options
def resume_replay(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """Let the replay ID go on.

    \b
    Example:
      gateway replays resume nightly
    """
    steer(ApiClient(url, api_key), id, "resume", as_json)


@replays.command("cancel")
@click.argument("id")
@client_options
def cancel_replay(id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """End the replay ID. What it has sent stays sent.

    \b
    Example:
      gateway replays cancel nightly
    """
    steer(ApiClient(url, api_key), id, "cancel", as_json)


# ---------------------------------------------------------------------------------------------------- pieces


def path_of(job_id: str) -> str:
    """Where the API has a replay."""
    return f"/v1/replays/{segment(job_id)}"


def run(client: ApiClient, source: Mapping[str, Any], given: Mapping[str, Any], as_json: bool) -> None:
    """Begin a replay, and watch it; or only say what it would do."""
    body = {"source": source, "target": target_of(given), "rate": given["rate"], "dry_run": given["dry_run"]}
    if given["job_id"]:
        body["id"] = given["job_id"]
    answer = client.ask("POST", "/v1/replays", body=body, wait=PREVIEW_WAIT)
    if given["dry_run"]:
        print_preview(answer, as_json)
    elif given["detach"]:
        if as_json:
            print_json(answer)
        else:
            click.echo(printable(answer["id"]))
    else:
        watch(client, answer["id"], as_json)


def watch(client: ApiClient, job_id: str, as_json: bool) -> None:
    """Show a replay until it ends; the exit status says how."""
    progress, estimate = Progress(as_json), Estimate()
    ended = False
    try:
        while not ended:
            job = client.ask("GET", path_of(job_id))
            ended = job["state"] in ENDED
            remaining = estimate.text(job["found"], job["total"], clock.monotonic())
            progress.show(job, replay_line(job, "" if ended else remaining))
            if not ended:
                clock.block(LOOK_EVERY)
    except KeyboardInterrupt:
        progress.close()
        note(f"The replay goes on. Watch it again: gateway replays watch {job_id}")
        raise
    finally:
        progress.close()
    if job["state"] != "done":
        raise Failure(f"the replay {job_id} is {job['state']}: {job['reason'] or 'nothing more is sent'}", FAILED)
    if refused := sum(job["refused"].values()):
        raise Failure(f"{refused:,} messages were not sent; gateway replays show {job_id} --refused", PARTLY_DONE)


def steer(client: ApiClient, job_id: str, verb: str, as_json: bool) -> None:
    """Tell a replay what to do."""
    job = client.ask("POST", f"{path_of(job_id)}:{verb}")
    if as_json:
        print_json(job)
    else:
        note(replay_line(job))


def all_refused(client: ApiClient, job_id: str) -> list[Any]:
    """What a replay did not send, page by page."""
    found: list[Any] = []
    page = 0
    while part := client.ask("GET", f"{path_of(job_id)}/refused", query={"cursor": str(page)})["refused"]:
        found += part
        page += 1
    return found


def print_preview(answer: Mapping[str, Any], as_json: bool) -> None:
    """What a replay would do."""
    if as_json:
        print_json(answer)
        return
    print_table(
        ("ID", "CAME FROM", "EXCHANGE", "ROUTING KEY", "OCTETS"),
        (
            (row["id"], row["came_from"] or "-", row["exchange"] or DEFAULT_EXCHANGE, row["routing_key"], row["octets"])
            for row in answer["sample"]
        ),
    )
    for refusal in answer["refused"]:
        note(f"{refusal['id']} cannot be sent: {refusal['detail']}")
    for code, number in sorted(answer.get("refused_count", {}).items()):
        note(f"{number:,} cannot be sent: {code}")
    if answer.get("advice"):
        note(answer["advice"])
    if answer.get("signed") is False:
        note("Requests to the target are not signed. Name an endpoint with signing keys to have them signed.")
    count = answer["count"]
    note(f"{'' if answer['complete'] else 'more than '}{count:,} message{'s' * (count != 1)}; nothing was sent")
