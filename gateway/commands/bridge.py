"""``gateway bridges watch NAME``: a bridge at work, as one line.

On a terminal the line is drawn over and over; elsewhere there is one line for each interval. With a condition
(``--until-empty``, ``--count``) it ends when that holds, so that a script can wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gateway.commands import FAILED, Failure
from gateway.commands.bridges import bridge_path, bridges, lag_text
from gateway.commands.client import ApiClient, client_options, note, printable
from gateway.commands.progress import Estimate, Progress, percent
from gateway.runtime.clock import clock


@bridges.command("watch", short_help="Watch a bridge at work.")
@click.argument("name")
@click.option("--once", is_flag=True, help="Show how it stands, and end.")
@click.option(
    "--until-empty",
    is_flag=True,
    help="End when its source is empty and nothing is on its way, or when it has stopped.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    metavar="N",
    help="End when N messages were forwarded since the gateway started.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up after so long: exit status 1.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often it is asked.",
)
@client_options
def watch_bridge(
    name: str,
    once: bool,
    until_empty: bool,
    count: int | None,
    timeout: float | None,
    interval: float,
    url: str,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Watch the bridge NAME: how far it is, what it has done, its rate, its lag, its losses.

    Counts begin when the gateway starts; `gateway bridges compare` counts in the ledger.

    Where it is known how much there is (--count, or what is left at the source), the line has the percentage and an
    estimate of the remaining time.

    It ends with Ctrl-C, when the bridge has stopped, or when what the options ask for holds. With --json each line is a
    JSON object as `GET /v1/bridges/NAME` answers.

    \b
    Examples:
      gateway bridges watch orders
      gateway bridges watch orders --until-empty --timeout 600
      gateway bridges watch orders --json | jq .forwarded
    """
    client = ApiClient(url, api_key)
    if not as_json and Progress.is_terminal(True):
        note("Counts are since the gateway started.")
    progress, estimate = Progress(as_json, is_result=True), Estimate()
    deadline = None if timeout is None else clock.monotonic() + timeout
    empty_at: int | None = None
    try:
        while True:
            found = client.ask("GET", bridge_path(name))
            total = total_of(found, count)
            progress.show(found, line(found, total, estimate.text(found["forwarded"], total, clock.monotonic())))
            if once or (count is not None and found["forwarded"] >= count):
                return
            if found["state"] == "stopped":
                if count is not None:
                    raise Failure(f"{name} has stopped: {found['reason'] or 'the gateway is closing'}", FAILED)
                return
            if until_empty:
                # Twice, with nothing taken in between: what is between broker and gateway is seen by neither.
                empty = is_empty(found)
                if empty and empty_at == found["taken"]:
                    return
                empty_at = found["taken"] if empty else None
            pause = interval if deadline is None else min(interval, deadline - clock.monotonic())
            if pause <= 0:
                raise Failure(f"{name}: what was waited for did not happen in {timeout:g} s", FAILED)
            clock.block(pause)
    except KeyboardInterrupt:
        if until_empty or count is not None:
            raise
    finally:
        progress.close()


def is_empty(found: Mapping[str, Any]) -> bool:
    """Whether its source is empty and nothing is on its way. A mirror never empties its source."""
    return bool(found["source_messages"] == 0 and found["in_flight"] == 0)


def total_of(found: Mapping[str, Any], count: int | None) -> int | None:
    """How many messages there are to forward, those that are done among them; None: nobody knows.

    A mirror leaves at its source what it has copied.
    """
    if count is not None:
        return count
    left = found["source_messages"]
    if left is None or found["settings"]["mode"] == "mirror":
        return None
    return int(found["forwarded"] + left + found["in_flight"])


def line(found: Mapping[str, Any], total: int | None = None, remaining: str = "") -> str:
    """How a bridge stands, in one line, the most important first: a terminal may cut it."""
    left = found["source_messages"]
    parts = [
        f"{printable(found['name'])} {found['state']}",
        percent(found["forwarded"], total),
        remaining,
        f"done {found['forwarded']:,}",
        f"left {'-' if left is None else f'{left:,}'}",
        f"rate {found['rate']:,.0f}/s",
        f"lag {lag_text(found['lag'])}",
        f"losses {sum(found['losses'].values()):,}",
    ]
    parts += [
        f"{name} {found[field]:,}"
        for name, field in (
            ("in flight", "in_flight"),
            ("dead-lettered", "dead_lettered"),
            ("duplicates dropped", "duplicates_dropped"),
            ("filtered", "filtered"),
            ("looped", "looped"),
            ("resent", "resent"),
            ("oversized", "oversized"),
        )
        if found[field]
    ]
    if found["reason"]:
        parts.append(printable(found["reason"]))
    return "  ".join(part for part in parts if part)
