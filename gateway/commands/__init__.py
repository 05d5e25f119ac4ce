"""The command line: one module per verb.

This module knows the verbs and their one-line help, and nothing else: a verb's module is imported when the verb
is used, and what it needs when it runs, so that ``gateway --help`` costs no more than the interpreter and click.

What a verb found is printed on stdout, what it has to say about it on stderr. The exit status says how it went:
:data:`~gateway.exits.EXIT_STATUS`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from traceback import format_exception
from types import TracebackType
from typing import Any, Final, NoReturn

import click

from gateway import __version__, errors
from gateway.exits import (
    DIFFERENT,
    DONE,
    EXIT_STATUS,
    FAILED,
    MISSING,
    NOT_FOUND,
    PARTLY_DONE,
    REFUSED,
    UNREACHABLE,
    USAGE,
    exit_status,
)
from gateway.terminal import note

__all__ = [
    "DIFFERENT", "DONE", "EXIT_STATUS", "FAILED", "MISSING", "NOT_FOUND", "PARTLY_DONE", "REFUSED", "UNREACHABLE",
    "USAGE", "VERBS", "Failure", "Verbs", "check_service", "cli", "exit_status", "main",
]  # fmt: skip

VERBS: Mapping[str, tuple[str, str]] = {
    "serve": ("gateway.commands.serve:serve", "Run the gateway."),
    "demo": ("gateway.commands.demo:demo", "Show the main job on a fresh gateway, step by step."),
    "doctor": ("gateway.commands.doctor:doctor", "Say what is broken in a set-up, and what to do."),
    "migrate": ("gateway.commands.migrate:migrate", "Bring the ledger's tables up to date."),
    "backup": ("gateway.commands.backup:backup", "Copy the SQLite ledger while a gateway uses it."),
    "restore": ("gateway.commands.restore:restore", "Put a ledger back from a backup."),
    "reload": ("gateway.commands.reload:reload", "Have a running gateway read its configuration again."),
    "probe": ("gateway.commands.probe:probe", "Say which AMQP versions a broker speaks."),
    "brokers": ("gateway.commands.brokers:brokers", "Show, put, change and delete brokers."),
    "queues": ("gateway.commands.resources:queues", "Find, declare, show, purge and delete queues."),
    "exchanges": ("gateway.commands.exchanges:exchanges", "Declare, show and delete a broker's exchanges."),
    "bindings": ("gateway.commands.exchanges:bindings", "Show, add and remove a broker's bindings."),
    "publish": ("gateway.commands.publish:publish", "Publish one message, and wait until it is safe."),
    "scheduled": ("gateway.commands.scheduled:scheduled", "Show, cancel and retry scheduled publishes."),
    "pull": ("gateway.commands.pull:pull", "Take messages from a subscription or a queue."),
    "subscriptions": ("gateway.commands.subscriptions:subscriptions", "Show, put, pause and delete subscriptions."),
    "explain": ("gateway.commands.explain:explain", "Say what a message becomes in another version."),
    "bridges": ("gateway.commands.bridge:bridges", "Show, put, watch, steer, compare and delete bridges."),
    "budgets": ("gateway.commands.budgets:budgets", "Show budgets, and which clients hold most."),
    "taps": ("gateway.commands.taps:taps", "Show, put, pause and delete taps into the message log."),
    "fronts": ("gateway.commands.fronts:fronts", "Show fronts and their clients, and close clients."),
    "endpoints": ("gateway.commands.endpoints:endpoints", "Show, put, test, steer and delete webhook endpoints."),
    "replays": ("gateway.commands.replays:replays", "Send messages once more, and watch it."),
    "dlq": ("gateway.commands.dlq:dlq", "Show, redrive and purge dead messages."),
    "keys": ("gateway.commands.keys:keys", "Make, show, replace and revoke API keys."),
    "audit": ("gateway.commands.audit:audit", "Check the audit log, and write it out."),
    "secrets": ("gateway.commands.secrets:secrets", "Make, show and renew the keys that seal secrets in the ledger."),
    "messages": ("gateway.commands.messages:messages", "Show what the ledger knows, newest first."),
    "search": ("gateway.commands.search:search", "Find names of everything, and messages."),
    "why": ("gateway.commands.why:why", "Say what happened to one message, and what can be done."),
    "tail": ("gateway.commands.tail:tail", "Follow what happens to all messages."),
    "overview": ("gateway.commands.overview:overview", "Show what is wrong, at a glance."),
    "statistics": ("gateway.commands.statistics:statistics", "Count events per hour."),
    "completion": ("gateway.commands.completion:completion", "Print the completion script of a shell."),
    "pipeline": (
        "gateway.pipeline.cli:pipeline",
        "Archive, count, compare and replay messages, on Spark.",
    ),
}
"""Verb -> where it is, what it does. In the order in which somebody new would need them."""
FORMER_VERBS: Mapping[str, str] = {
    "bridge": "gateway.commands.bridge:watch_bridge",
    "replay": "gateway.commands.replays:replays",
}
"""Verb of earlier releases -> where it is. It is in no list and no help."""
FORMER_NAMES: Mapping[str, str] = {"get": "show"}
"""Name of earlier releases -> what it is called in all groups now."""


REACH: Final[Mapping[str, tuple[str, str]]] = {
    "url": ("URL", "Where the gateway is; without it, on this machine at port 8080."),
    "api-key": ("KEY", "API key, where the gateway has any."),
    "ca": ("FILE", "Authorities that may sign the gateway's certificate (PEM); without it, the public ones."),
    "cert": ("FILE", "Certificate to show to a gateway that asks for one (PEM)."),
    "key": ("FILE", "Key of --cert (PEM), where it is not in that file."),
}
"""Option that every verb takes that asks a running gateway -> its value, and what it is. Help pages of verbs name the
first alone."""


GIVEN_BEFORE: Final = "gateway.reach"
"""Where click's context has those that stand before the verb."""


def variable_of(option: str) -> str:
    """The environment variable of one of :data:`REACH`."""
    return f"GATEWAY_{option.upper().replace('-', '_')}"


class Failure(click.ClickException):
    """A verb that did not do what it was asked; its text goes to stderr."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.exit_code = status  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Print the text, as every message on stderr looks."""
        note(f"gateway: {self.message}")


def check_service() -> None:
    """Raises Failure where the service is not installed: ``amqp-gateway-cli`` has the command line alone."""
    if find_spec("gateway.app") is None:
        raise Failure(
            "this command needs the service, and only the command line is installed here. Replace it: "
            "pip uninstall amqp-gateway-cli, then pip install amqp-gateway",
            MISSING,
        )


class Noun(click.Group):
    """The verbs of one kind of thing. Those that had another name once are still found under it."""

    def with_verb(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with a verb before them. A kind of thing may have one that need not be given."""
        return args

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb."""
        return super().get_command(ctx, FORMER_NAMES.get(cmd_name, cmd_name)) or super().get_command(ctx, cmd_name)


class Verbs(click.Group):
    """The group of all verbs, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb."""
        if cmd_name not in VERBS and cmd_name not in FORMER_VERBS:
            return None
        module, _, name = (FORMER_VERBS.get(cmd_name) or VERBS[cmd_name][0]).partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb. Raises UsageError, with the verb that is meant where one is close: click knows only those that
        are imported."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], self.list_commands(ctx), 1, 0.6) if args else []
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]!r}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing any verb."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])
        with formatter.section("Options to reach a gateway"):
            formatter.write_dl(
                [
                    (f"--{name} {kind}", f"{text}  [env var: {variable_of(name)}]")
                    for name, (kind, text) in REACH.items()
                ]
            )
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), text) for status, text in EXIT_STATUS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; an error of the gateway becomes its exit status."""
        try:
            return super().invoke(ctx)
        except ImportError:
            check_service()
            raise
        except errors.GatewayError as error:
            text = "\n  ".join([str(error), *getattr(error, "__notes__", ())])
            raise Failure(text, exit_status(type(error))) from error


def _keep_reach(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta.setdefault(GIVEN_BEFORE, {})[option_name(parameter)] = value


def option_name(parameter: click.Parameter) -> str:
    """The name of one of :data:`REACH`, without its dashes."""
    return parameter.opts[0].removeprefix("--")


def reach_options(function: Any) -> Any:
    """The options of :data:`REACH` before the verb, for all verbs that take them behind it."""
    for name in REACH:
        function = click.option(f"--{name}", hidden=True, expose_value=False, callback=_keep_reach)(function)
    return function


def _check_reach(ctx: click.Context) -> None:
    """Raises UsageError where options to reach a gateway stand before a verb that asks none."""
    verb = cli.get_command(ctx, ctx.invoked_subcommand or "")
    options = {name for each in verb.params for name in each.opts} if verb is not None else set()
    if verb is None or isinstance(verb, click.Group) or "--url" in options:
        return
    for name in ctx.meta.get(GIVEN_BEFORE, {}):
        raise click.UsageError(f"{verb.name} asks no running gateway: take out --{name}.", ctx)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gateway")
@reach_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """One gateway for AMQP 0-8 to 0-10 brokers, with HTTP for everyone else.

    \b
    gateway serve                    starts it, with a broker inside for a first try
    gateway demo                     shows what it does, and ends
    gateway VERB --help              says what a verb takes
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    _check_reach(ctx)


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a defect. Its texts may be those of others."""
    note("".join(format_exception(kind, error, trace)).rstrip("\n"))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    sys.excepthook = _show_traceback
    cli.main(args=sys.argv[1:] if arguments is None else arguments, prog_name="gateway")
    raise SystemExit(DONE)
