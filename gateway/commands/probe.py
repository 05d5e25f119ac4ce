"""``gateway probe URL``: which AMQP versions does the far end really speak?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from gateway.commands import DONE, REFUSED, UNREACHABLE

if TYPE_CHECKING:
    from gateway.upstreams import Probe
    from gateway.upstreams.client_limits import ClientLimit


@click.command(short_help="Say which AMQP versions a broker speaks.")
@click.argument("url")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds for each version.")
@click.option("--ca-file", default="", help="Authorities that may sign the broker's certificate (PEM).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def probe(ctx: click.Context, url: str, timeout: float, ca_file: str, as_json: bool) -> None:
    """Try each AMQP version on the broker at URL, and say what it speaks.

    URL is amqp[s]://user:password@host:port/vhost. Nothing is declared or published.

    \b
    Example: gateway probe amqp://guest:guest@127.0.0.1:5672
    """
    from gateway.config import BrokerSettings, TlsSettings
    from gateway.upstreams import probe as ask

    settings = BrokerSettings(url=url, connect_timeout=timeout, tls=TlsSettings(ca_file=ca_file))
    found = asyncio.run(ask(settings))
    if as_json:
        from gateway.commands.client import print_json

        print_json(as_document(found))
    else:
        show(found)
    ctx.exit(exit_status(found))


def exit_status(found: Probe) -> int:
    """Done if it speaks any version; refused if it is a broker that would not have us."""
    if found.versions:
        return DONE
    return REFUSED if any(attempt.product or attempt.supported for attempt in found.attempts) else UNREACHABLE


def as_document(found: Probe) -> dict[str, object]:
    """What was found, for ``--json``."""
    return {
        "host": found.host,
        "port": found.port,
        "versions": [version.value for version in found.versions],
        "client_limits": [{"what": row.what, "instead": row.instead} for row in limits_of(found)],
        "attempts": [
            {
                "version": attempt.version.value,
                "speaks": attempt.speaks,
                "product": attempt.product,
                "product_version": attempt.product_version,
                "mechanisms": list(attempt.mechanisms),
                "reason": attempt.reason,
                "seconds": round(attempt.seconds, 3),
            }
            for attempt in found.attempts
        ],
    }


def limits_of(found: Probe) -> tuple[ClientLimit, ...]:
    """Return what old clients cannot do there, by what the broker states of itself."""
    from gateway.upstreams.client_limits import client_limits

    for attempt in found.attempts:
        if attempt.product:
            return client_limits(attempt.product, attempt.product_version)
    return ()


def show(found: Probe) -> None:
    """What was found, for people."""
    from gateway.commands.client import print_table

    print_table(
        ("VERSION", "SPEAKS", "PRODUCT", "MECHANISMS", "REASON"),
        (
            (
                attempt.version.value,
                attempt.speaks,
                f"{attempt.product} {attempt.product_version}".strip() or "-",
                " ".join(attempt.mechanisms) or "-",
                attempt.reason or "-",
            )
            for attempt in found.attempts
        ),
    )
    if rows := limits_of(found):
        click.echo("\nWhat old clients cannot do there:")
        for row in rows:
            click.echo(f"* {row.what}. {row.instead[0].upper()}{row.instead[1:]}.")
