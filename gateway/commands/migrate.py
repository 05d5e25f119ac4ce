"""``gateway migrate``: the ledger's tables, brought up to this release."""

from __future__ import annotations

from pathlib import Path

import click

from gateway.commands.options import config_option, data_dir_option
from gateway.runtime.clock import clock
from gateway.terminal import note

RETRY_EVERY = 1.0
"""Pause before a database that is away is asked again, in seconds."""


@click.command(short_help="Bring the ledger's tables up to date.")
@config_option
@data_dir_option
@click.option(
    "--url",
    envvar="GATEWAY_LEDGER_URL",
    show_envvar=True,
    help="The ledger's database; without it, that of the configuration.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="How long to try again while the database is away.  [default: 0]",
)
def migrate(config: str | None, data_dir: str | None, url: str | None, wait: float) -> None:
    """Bring the tables of the ledger up to date. Safe to repeat, and to run twice at once.

    \b
    Examples:
      gateway migrate --url postgresql://gateway@db/gateway
      gateway migrate --wait 60
    """
    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.errors import ConfigurationError, LedgerUnavailable
    from gateway.ledger import Ledger
    from gateway.webhooks.settings.secrets import load_seals

    settings = load(config, overrides={"data_dir": data_dir, "ledger.url": url})
    deadline = clock.monotonic() + wait
    said = ""
    while True:
        try:
            Ledger.migrate(ledger_url(settings))
            break
        except LedgerUnavailable as error:
            if clock.monotonic() >= deadline:
                raise
            if str(error) != said:
                said = str(error)
                note(f"gateway: {said}; trying again")
        clock.block(min(RETRY_EVERY, max(0.0, deadline - clock.monotonic())))
    click.echo("The ledger is up to date.", err=True)
    if settings.ledger.secrets_file:
        try:
            load_seals(settings.ledger.secrets_file, Path(settings.data_dir) / "secrets.key")
        except ConfigurationError as error:
            note(f"gateway: {error}\ngateway: serve does not start without it")
