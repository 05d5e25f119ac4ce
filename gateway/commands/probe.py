"""``gateway probe URL``: which AMQP versions does the far end really speak?"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import click

from gateway.commands import DONE, REFUSED, UNREACHABLE
from gateway.terminal import note, output_options

if TYPE_CHECKING:
    from gateway.upstreams import Probe
    from gateway.upstreams.client_limits import ClientLimit

VARIABLE: Final = "GATEWAY_BROKER_PASSWORD"
"""Variable of the environment that holds the password."""
KNOWN: Final = "guest"
"""Password that brokers come with, which is no secret."""


@click.command(short_help="Say which AMQP versions a broker speaks.")
@click.argument("url")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds for each version.")
@click.option("--ca-file", default="", help="Authorities that may sign the broker's certificate (PEM).")
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    default=None,
    metavar="FILE",
    help="File with the password, in its first line; - is standard input.",
)
@output_options
@click.pass_context
def probe(ctx: click.Context, url: str, timeout: float, ca_file: str, password_file: str | None, as_json: bool) -> None:
    """Try each AMQP version on the broker at URL, and say what it speaks.

    URL is amqp[s]://user@host:port/vhost. Nothing is declared or published. The password comes from --password-file or
    GATEWAY_BROKER_PASSWORD; otherwise you are asked for it. In the URL other users could read it in the process list.

    \b
    Examples:
      gateway probe amqp://127.0.0.1:5672
      gateway probe amqps://shop@broker.example --password-file password.txt
    """
    from gateway import upstreams
    from gateway.config import BrokerSettings, TlsSettings

    url = _with_password(url, password_file, os.environ.get(VARIABLE, ""))
    settings = BrokerSettings(url=url, connect_timeout=timeout, tls=TlsSettings(ca_file=ca_file))
    found = asyncio.run(upstreams.probe(settings))
    if as_json:
        from gateway.commands.client import print_json

        print_json(as_document(found))
    else:
        show(found)
    ctx.exit(exit_status(found))


def _with_password(url: str, file: str | None, password: str) -> str:
    """Return the URL with the password that it needs. One that stands in it is taken, with a warning."""
    from gateway.config.brokers import parse_broker_url

    parse_broker_url(url)  # says what is wrong, without the password
    parts = urlsplit(url)
    if parts.password not in (None, "", KNOWN):
        assert parts.password is not None
        _hide_argument(parts.password)
        if not file and not password:
            note(
                "gateway: a password in the URL is visible in the process list and in the shell's history. "
                "Use --password-file or GATEWAY_BROKER_PASSWORD."
            )
    if file:
        with click.open_file(file, encoding="utf-8") as lines:
            password = lines.readline().rstrip("\r\n")
    elif not password and parts.username is not None and parts.password is None and sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, err=True)
    if not password:
        return url
    user = quote(parts.username, safe="%") if parts.username is not None else "guest"
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()


def _hide_argument(secret: str) -> None:
    """Overwrite a secret where the system shows the arguments of this process. Does nothing where that is not Linux."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        start, end = map(int, stat.rpartition(")")[2].split()[45:47])  # arg_start, arg_end: proc(5)
        shown = Path("/proc/self/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    if start == 0 or end - start != len(shown) or ctypes.string_at(start, len(shown)) != shown:
        return
    octets = secret.encode("utf-8", "surrogateescape")
    at = shown.find(octets)
    while at >= 0:
        ctypes.memset(start + at, ord("x"), len(octets))
        at = shown.find(octets, at + len(octets))


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
