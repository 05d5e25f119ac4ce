"""The verbs of ``gateway pipeline``, which are those of ``python -m gateway.pipeline`` too.

A job's options are data (:class:`~gateway.pipeline.jobs.base.Option`); here they become options of a command, with
those that every job has. A job's module is imported when the job is named, and Spark when the job asks for it, so that
help costs nothing.
"""

from __future__ import annotations

import inspect
import json
import signal
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gateway.exits import DONE, EXIT_STATUS
from gateway.pipeline.jobs.base import JOBS, Option
from gateway.terminal import escaped, json_text, note, output_options, print_json, print_json_line, print_table
from gateway.validation import ago

if TYPE_CHECKING:
    from gateway.pipeline.jobs.runs import Ended
    from gateway.pipeline.settings import Pipeline

F = TypeVar("F", bound=Callable[..., Any])

SHORTCUTS: Final = ("replay", "transfer", "reconcile", "validate")
"""Jobs that are verbs by themselves: ``gateway pipeline replay`` is ``gateway pipeline run replay``."""
VERBS: Final[Mapping[str, str]] = {
    "jobs": "Show the jobs there are.",
    "run": "Run a job.",
    "status": "Show what ran, and who reads the logs and how far.",
    **{name: JOBS[name][1] for name in SHORTCUTS},
    "archive": "Show what is in an archive.",
    "doctor": "Say whether everything is there that the jobs need.",
}
"""Verb -> what it does, in the order in which somebody new would need them."""
SETTINGS: Final = ("url", "api_key", "storage", "direct")
"""Settings of ``[pipeline]``, and the key, that are options of every job."""


EXAMPLES: Final[Mapping[str, str]] = {
    "archive": "gateway pipeline run archive --log messages",
    "compact": "gateway pipeline run compact",
    "retention": "gateway pipeline run retention --days 90 --dry-run",
    "rollup": "gateway pipeline run rollup",
    "reconcile": "gateway pipeline reconcile --since 2026-01-01T00:00:00Z",
    "validate": "gateway pipeline validate --source archive",
    "replay": "gateway pipeline replay --where \"queue = 'orders'\" --to shop --dry-run",
    "transfer": "gateway pipeline transfer --from orders@legacy --to shop",
}
"""Job -> a command that runs it."""


class Moment(click.ParamType[datetime]):
    """A time: RFC 3339 with its offset, or how long ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The time in UTC."""
        if isinstance(value, datetime):
            return value
        if (at := ago(value)) is not None:
            return at
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither 2026-11-03T04:05:06Z (RFC 3339) nor how long ago (90s, 2h, 1d)", param, ctx
            )
        if at.tzinfo is None:
            self.fail(f"{value!r} does not say in which time zone: add Z, or an offset", param, ctx)
        return at.astimezone(UTC)


class Setting(click.ParamType[tuple[str, str]]):
    """``NAME=VALUE``."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, setting = value.partition("=")
        if not equals or not name.startswith("spark."):
            self.fail(f"{value!r} is not spark.NAME=VALUE", param, ctx)
        return name, setting


def pipeline_options(function: F) -> F:
    """Where the settings come from, and those that are given most often."""
    for option in (
        click.option("--direct", is_flag=True, default=None, help="Read logs from the ledger itself, at ledger.url."),
        click.option(
            "--storage", metavar="FOLDER", help="Where archive, rollups and checkpoints are (pipeline.storage)."
        ),
        click.option("--api-key", metavar="KEY", help="API key, where the gateway has any; better GATEWAY_API_KEY."),
        click.option("--url", metavar="URL", help="Where the gateway is (pipeline.url, or GATEWAY_URL)."),
        click.option(
            "--config",
            envvar="GATEWAY_CONFIG",
            show_envvar=True,
            metavar="FILE",
            help="Configuration file (TOML); its [pipeline] counts.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


json_option = output_options

RUN_OPTIONS: Final = (
    click.option("--master", metavar="URL", help="Where Spark runs: local[*], spark://HOST:PORT (pipeline.master)."),
    click.option(
        "--spark",
        "spark_settings",
        multiple=True,
        type=Setting(),
        metavar="NAME=VALUE",
        help="A setting of Spark; may be repeated.",
    ),
    click.option("--id", "run_id", metavar="ID", help="Names the run: one that is done is not done again."),
    click.option("--dry-run", is_flag=True, help="Only say what would be done."),
    click.option("--html", metavar="FILE", type=click.Path(dir_okay=False), help="Write the report as a page, too."),
    json_option,
)


def job_command(name: str) -> click.Command:
    """A job as a command; its module is imported for that."""
    from gateway.pipeline.jobs.base import job_of

    job = job_of(name)

    def run(**given: Any) -> None:
        names = {option.name for option in job.options}
        _run(name, {key: given.pop(key) for key in names}, **given)

    command = pipeline_options(run)
    for each in reversed(RUN_OPTIONS):
        command = each(command)
    for option in reversed(job.options):
        command = _option(option)(command)
    example = EXAMPLES.get(name, f"gateway pipeline run {name}")
    text = f"{inspect.cleandoc(job.help)}\n\n\b\nExample:\n  {example}"
    return click.command(name, help=text, short_help=JOBS[name][1])(command)


def _option(option: Option) -> Callable[[F], F]:
    """An option of a job as one of click's."""
    kinds: dict[str, Any] = {
        "flag": None,
        "text": str,
        "whole": click.IntRange(min=int(option.least)) if option.least is not None else int,
        "number": click.FloatRange(min=option.least) if option.least is not None else float,
        "time": Moment(),
        "choice": click.Choice(option.choices),
        "file": click.Path(exists=True, dir_okay=False),
    }
    more: dict[str, Any] = {"type": kinds[option.type], "required": option.required, "multiple": option.many}
    if option.type == "flag":
        more = {"is_flag": True, "default": bool(option.default)}
    elif option.default is not None:  # for click a default of None is one, too
        more |= {"default": option.default, "show_default": True}
    if option.metavar:
        more["metavar"] = option.metavar
    return click.option(f"--{option.name.replace('_', '-')}", option.name, help=option.help, **more)


class Jobs(click.Group):
    """The jobs as commands, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the table's order."""
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the job."""
        return job_command(cmd_name) if cmd_name in JOBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing any job."""
        with formatter.section("Jobs"):
            formatter.write_dl([(name, text) for name, (_, text) in JOBS.items()])


class Verbs(click.Group):
    """The verbs; those that are jobs are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A verb, or a job that is one."""
        if cmd_name == "archive":
            from gateway.pipeline.archive.cli import archive

            return archive
        return job_command(cmd_name) if cmd_name in SHORTCUTS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing any job."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), text) for status, text in EXIT_STATUS.items()])


@click.group(cls=Verbs, short_help="Archive, count, compare and replay messages, on Spark.")
def pipeline() -> None:
    """Archive, count, compare, replay and transfer messages, on Spark.

    \b
    gateway pipeline doctor                            says what is missing
    gateway pipeline run archive                       keeps what taps have spooled
    gateway pipeline reconcile --html report.html      names what is lost, doubled, late or changed

    Spark and its Java are needed only here: pip install 'amqp-gateway[spark]', and Java 17 or later.
    """


@pipeline.command("jobs")
@json_option
def list_jobs(as_json: bool) -> None:
    """Show the jobs there are.

    \b
    Example:
      gateway pipeline jobs
    """
    if as_json:
        print_json([{"name": name, "help": text} for name, (_, text) in JOBS.items()])
    else:
        print_table(("JOB", "WHAT IT DOES"), ((name, text) for name, (_, text) in JOBS.items()))


@pipeline.group("run", cls=Jobs)
def run_job() -> None:
    """Run a job, to its end.

    \b
    gateway pipeline run rollup --since 1d
    gateway pipeline run archive --master spark://spark.internal:7077

    A run with an --id that is done already does nothing; one that ended in the middle goes on.
    """


@pipeline.command("status")
@click.argument("id", required=False)
@pipeline_options
@json_option
def status(id: str | None, as_json: bool, **given: Any) -> None:
    """Show what ran, and who reads the logs and how far; with ID, one run.

    \b
    Example:
      gateway pipeline status
    """
    from gateway.pipeline.jobs.runs import path_of, runs
    from gateway.pipeline.service import Service

    with Service(_settings(given)) as service:
        if id is not None:
            print_json(service.ask("GET", path_of(id)))
            return
        found = {"runs": runs(service), "cursors": service.ask("GET", "/v1/log/cursors")["cursors"]}
    if as_json:
        print_json(found)
        return
    print_table(
        ("ID", "JOB", "STATE", "STARTED", "ENDED", "ROWS", "REASON"),
        (
            (
                each["id"], each["job"], each["state"], each["started_at"], each.get("ended_at") or "-",
                each["detail"].get("rows", each["detail"].get("done", "-")), each["detail"].get("error", "-"),
            )
            for each in found["runs"]
        ),
    )  # fmt: skip
    if found["cursors"]:
        click.echo()
        print_table(
            ("CURSOR", "LOG", "OWNER", "EPOCH", "BACKLOG"),
            (
                (each["name"], each["log"], each["owner"] or "-", each["epoch"], each["backlog"])
                for each in found["cursors"]
            ),
        )


@pipeline.command("doctor")
@pipeline_options
@json_option
def doctor(as_json: bool, **given: Any) -> None:
    """Say whether everything is there that the jobs need: Java, Spark, jars, gateway, key, storage, cursors, clock.

    The exit status is that of the worst finding.

    \b
    Example:
      gateway pipeline doctor --config gateway.toml
    """
    from gateway.pipeline.doctor import examine_pipeline

    findings = examine_pipeline(lambda: _settings(given))
    if as_json:
        print_json([each.as_dict() for each in findings])
    else:
        print_table(("", "CHECK", "FINDING"), ((each.mark, each.name, each.text) for each in findings))
    click.get_current_context().exit(next((each.exit for each in findings if each.exit != DONE), DONE))


# ---------------------------------------------------------------------------------------------------- pieces


def _settings(given: Mapping[str, Any]) -> Pipeline:
    """The settings, with the options that count more."""
    from gateway.pipeline.settings import load

    overrides = {name: value for name, value in given.items() if name in SETTINGS}
    return load(given["config"], overrides | {"spark": dict(given.get("spark_settings") or ())})


def _run(
    name: str,
    options: Mapping[str, Any],
    *,
    master: str | None,
    run_id: str | None,
    dry_run: bool,
    html: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a job, and print what it did."""
    from gateway.pipeline.jobs import runs
    from gateway.pipeline.jobs.base import Context, JobRequest, job_of
    from gateway.pipeline.reports.page import report
    from gateway.pipeline.reports.text import text_of
    from gateway.terminal import Progress

    job = job_of(name)
    # A run that is told to end lets go of what it holds: cursors, temporary taps, Spark.
    signal.signal(signal.SIGTERM, _end)
    context = Context(
        _settings(given),
        JobRequest(run_id or runs.new_id(name), options, name, dry_run),
        master=master,
        reporter=Progress(as_json),
    )
    try:
        ended = runs.run(job, context)
    finally:
        context.close()
    title = f"{name} {ended.run_id}"
    if html is not None and not ended.repeated:
        _write(Path(html), report(title, ended.outcome.reports))
    if as_json:
        print_json_line(json.loads(json_text(runs.as_dict(job, ended), default=str)))
    else:
        if ended.outcome.reports:
            click.echo(escaped(text_of(title, ended.outcome.reports)))
        note(_last_line(name, ended, dry_run))
    sys.stdout.flush()
    click.get_current_context().exit(ended.outcome.exit)


def _write(path: Path, text: str) -> None:
    """Write the page, and the folder that it is to be in."""
    from gateway.pipeline.faults import fault_of

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise fault_of(error) from error


def _last_line(name: str, ended: Ended, dry_run: bool) -> str:
    if ended.repeated:
        return f"{ended.run_id} is done already ({ended.outcome.rows:,} rows); nothing was done"
    said = f"{ended.outcome.rows:,} rows in {ended.seconds:.1f} s"
    if dry_run:
        return f"{name}: {said}; it was a dry run, and nothing was done"
    left = "" if ended.outcome.exit == DONE else f"; {EXIT_STATUS[ended.outcome.exit]}"
    return f"{ended.run_id}: {said}{left}"


def _end(number: int, _: FrameType | None) -> None:
    """End what is under way, and do not begin to do so twice."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
