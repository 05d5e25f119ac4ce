"""``gateway completion``: what a shell needs to complete verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gateway.commands import Failure, cli

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets SHELL complete verbs and options.

    \b
    Examples:
      mkdir -p ~/.local/share/bash-completion/completions
      gateway completion bash > ~/.local/share/bash-completion/completions/gateway
      gateway completion zsh > ~/.zfunc/_gateway
      gateway completion fish > ~/.config/fish/completions/gateway.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    try:
        click.echo(kind(cli, {}, "gateway", "_GATEWAY_COMPLETE").source())
    except RuntimeError as error:  # bash is too old, or not there
        raise Failure(str(error)) from None
