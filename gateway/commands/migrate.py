"""``gateway migrate``: the ledger's tables, brought up to this release."""

from __future__ import annotations

import click

from gateway.commands.options import config_option, data_dir_option


@click.command(short_help="Bring the ledger's tables up to date.")
@config_option
@data_dir_option
@click.option(
    "--url",
    envvar="GATEWAY_LEDGER_URL",
    show_envvar=True,
    help="The ledger's database; without it, that of the configuration.",
)
def migrate(config: str | None, data_dir: str | None, url: str | None) -> None:
    """Bring the tables of the ledger up to date. Safe to repeat, and to run twice at once.

    \b
    Example: gateway migrate --url postgresql://gateway@db/gateway
    """
    from gateway.app import ledger_url
    from gateway.config import load
    from gateway.ledger import Ledger

    settings = load(config, overrides={"data_dir": data_dir, "ledger.url": url})
    Ledger.migrate(ledger_url(settings))
    click.echo("The ledger is up to date.", err=True)
