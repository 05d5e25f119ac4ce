"""The options that several verbs share: where the settings come from."""

from __future__ import annotations

import click

config_option = click.option(
    "--config",
    envvar="GATEWAY_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="Configuration file (TOML). Without one: development, on loopback, with the embedded broker.",
)
data_dir_option = click.option(
    "--data-dir",
    envvar="GATEWAY_DATA_DIR",
    show_envvar=True,
    metavar="FOLDER",
    help="Folder of the SQLite ledger.  [default: ./gateway-data]",
)
