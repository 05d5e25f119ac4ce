"""``gateway doctor``: what is broken, why, and what to do.

It reads the configuration as ``gateway serve`` would and tries everything that this names, step by step and without
changing anything, whether a gateway runs or not. The parts, each a module:

* :mod:`~gateway.commands.doctor.findings`   the table of checks, and what a run found
* :mod:`~gateway.commands.doctor.settings`   the file, variables, secrets that must not be shown
* :mod:`~gateway.commands.doctor.access`     who may call
* :mod:`~gateway.commands.doctor.budgets`    what one of them may hold
* :mod:`~gateway.commands.doctor.files`      data folder, secrets, certificates of ours, what the system allows
* :mod:`~gateway.commands.doctor.listeners`  ports
* :mod:`~gateway.commands.doctor.ledger`     SQLite and PostgreSQL
* :mod:`~gateway.commands.doctor.brokers`    from the name to an open connection
* :mod:`~gateway.commands.doctor.permissions` what is there, and what the login may do
* :mod:`~gateway.commands.doctor.outbound`   the guard, endpoints
* :mod:`~gateway.commands.doctor.network`    names, addresses, certificates that are shown
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gateway.commands.options import config_option, data_dir_option
from gateway.runtime.threads import threads
from gateway.terminal import escaped, output_options

if TYPE_CHECKING:
    from gateway.commands.doctor.findings import Finding, Report
    from gateway.config import Config

AREAS = ("config", "access", "files", "listeners", "ledger", "brokers", "outbound", "pipeline")
"""What ``--only`` chooses from, in the order in which it is looked at."""
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
INDENT = " " * 6


@click.command(short_help="Say what is broken in a set-up, and what to do.")
@config_option
@data_dir_option
@click.option("--role", type=click.Choice(("all", "api", "worker")), envvar="GATEWAY_ROLE", show_envvar=True,
              help="What the process is to do.  [default: all]")  # fmt: skip
@click.option("--only", "areas", multiple=True, type=click.Choice(AREAS), help="Look at this alone. May be repeated.")
@click.option("--pipeline", is_flag=True, help="Look at what the jobs on Spark need, too: Java, packages, storage.")
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=5.0, show_default=True, metavar="SECONDS",
              help="How long each step over the network may take.")  # fmt: skip
@click.option("--deep", is_flag=True, help="Read all of a ledger on SQLite, and compare it with its checksums.")
@click.option("--strict", is_flag=True, help="A warning, too, ends with a status that is not 0.")
@click.option("--quiet", is_flag=True, help="Leave out what is well.")
@output_options
@click.pass_context
def doctor(
    ctx: click.Context,
    config: str | None,
    data_dir: str | None,
    role: str | None,
    areas: tuple[str, ...],
    pipeline: bool,
    timeout: float,
    deep: bool,
    strict: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Say what is broken in a set-up, why, and what to do about it.

    It reads the configuration, and tries what it names: files and their rights, ports, the ledger, each broker up to
    a publish, endpoints, the issuer of tokens. Nothing is changed, and no message comes into a queue. It can run
    beside a gateway, best as the same user. The exit status is that of the first failure.

    \b
    Examples:
      gateway doctor --config gateway.toml
      gateway doctor --config gateway.toml --only brokers --quiet
      gateway doctor --only ledger --deep
      gateway doctor --json
    """
    chosen = frozenset(areas) or frozenset(AREAS) - {"pipeline"}
    if pipeline:
        chosen |= {"pipeline"}
    with _silence():
        report = asyncio.run(examine(config, {"data_dir": data_dir, "role": role}, chosen, timeout, deep=deep))
    if as_json:
        from gateway.terminal import print_json

        print_json(report.as_dict())
    else:
        show(report, quiet=quiet)
    ctx.exit(report.exit(strict=strict))


@contextmanager
def _silence() -> Iterator[None]:
    """Nothing is logged: the findings are texts."""
    logger = logging.getLogger("gateway")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


async def examine(
    path: str | None, overrides: dict[str, Any], areas: frozenset[str], within: float, *, deep: bool = False
) -> Report:
    """Look at all that is asked for. The configuration is always read. ``deep``: all of the ledger, too."""
    from gateway.commands.doctor import settings
    from gateway.commands.doctor.findings import Report

    report, first = Report(), Report()
    config = settings.examine(first, path, os.environ, overrides)
    if config is None:
        report.hide(settings.secrets_in(path, os.environ))
        report.take(first)
        return report
    development = path is None
    if development:
        from gateway.app import with_development

        config = with_development(config)
    report.hide(settings.secrets_of(config), public=settings.users_of(config))
    if "config" in areas or first.exit():
        report.take(first)
    await _examine(report, config, areas, within, development=development, deep=deep)
    if "pipeline" in areas:
        await threads.run(_pipeline, report, path, overrides)
    return report


async def _examine(
    report: Report, config: Config, areas: frozenset[str], within: float, *, development: bool, deep: bool
) -> None:
    """Area by area; an internal error in one of them hides nothing of the others."""
    from gateway.commands.doctor import access, brokers, budgets, files, ledger, listeners, outbound

    async def callers() -> None:
        access.examine(report, config, development=development)
        await access.examine_issuer(report, config, within)
        await threads.run(budgets.examine, report, config)

    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "access": callers,
        "files": lambda: threads.run(files.examine, report, config),
        "listeners": lambda: threads.run(listeners.examine, report, config),
        "ledger": lambda: ledger.examine(report, config, within, deep=deep),
        "brokers": lambda: brokers.examine(report, config, within),
        "outbound": lambda: outbound.examine(report, config, within, development=development),
    }
    for area, step in steps.items():
        if area in areas:
            try:
                await step()
            except Exception as error:  # whatever it is, the rest is looked at
                what = f"it could not be looked at: {type(error).__name__}: {error}"
                report.fail("fault", area, what, do="That is a defect of the doctor: please report it.")


def _pipeline(report: Report, path: str | None, overrides: dict[str, Any]) -> None:
    """What ``gateway pipeline doctor`` finds."""
    from gateway.pipeline.doctor import examine_pipeline
    from gateway.pipeline.settings import load

    for found in examine_pipeline(lambda: load(path)):
        where = f"pipeline: {found.name}"
        if found.mark == "ok":
            report.ok("pipeline", where, found.text)
        elif found.mark == "note":
            report.warn("pipeline", where, found.text, do="")
        else:
            report.fail("pipeline", where, found.text, do="gateway pipeline doctor", status=found.exit)


def show(report: Report, *, quiet: bool) -> None:
    """For people: findings on stdout, the sum on stderr."""
    for finding in report.findings:
        if finding.severity.value != "ok" or not quiet:
            for line in lines(finding):
                click.echo(line)
    counts = {severity.value: number for severity, number in report.counts().items()}
    click.echo(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures", err=True)


def lines(finding: Finding) -> list[str]:
    """A finding: what and where; why and what to do below."""
    mark = finding.severity.value
    head = click.style(f"{mark.upper() if mark == 'fail' else mark:<4}", fg=COLOURS[mark], bold=mark == "fail")
    found = [f"{head}  {finding.check}  {escaped(f'{finding.where}: {finding.what}')}"]
    found += [f"{INDENT}{name}: {escaped(text)}" for name, text in (("why", finding.why), ("do", finding.do)) if text]
    return found
