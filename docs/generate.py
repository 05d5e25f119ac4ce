"""Write the generated tables of ``docs/`` anew, from the code that they describe.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``python docs/generate.py`` rewrites all
of them; ``tests/test_docs.py`` fails while one differs from what would be written.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_origin

import click
import msgspec
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from gateway import commands, config, errors, limits, telemetry
from gateway.api.app import ROUTES
from gateway.api.problems import PROBLEMS
from gateway.broker import arguments
from gateway.classic import dialect as classic
from gateway.ledger import states
from gateway.v08 import dialect as v08
from gateway.v091 import dialect as v091

DOCS = Path(__file__).resolve().parent
BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def field_docs(module: ModuleType) -> dict[str, dict[str, str]]:
    """Class -> field -> the string that stands under the field in the source."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        fields = found.setdefault(node.name, {})
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, (ast.AnnAssign, ast.Assign))
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
                assert isinstance(target, ast.Name)
                fields[target.id] = prose(str(text.value.value))
    return found


def prose(text: str) -> str:
    """A docstring as one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


# ------------------------------------------------------------------------------------------------ settings


def settings() -> Iterator[str]:
    """Every table of the configuration file."""
    docs = field_docs(config)
    variables = {setting: variable for variable, setting in config.ENVIRONMENT.items()}
    for path, struct in config_tables(config.Config):
        yield f"### {config_heading(path)}"
        yield ""
        rows = []
        for field in msgspec.structs.fields(struct):
            if config_table_of(field.type) is not None:
                continue
            variable = variables.get((*path, field.name))
            text = docs[struct.__name__][field.name]
            rows.append((f"`{field.name}`", default(field), text + (f" Variable `{variable}`." if variable else "")))
        yield from table(("setting", "default", "meaning"), rows)
        yield ""


def config_tables(struct: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every struct of the configuration with the path that leads to it, the whole file first."""
    yield path, struct
    for field in msgspec.structs.fields(struct):
        if (inner := config_table_of(field.type)) is not None:
            shape, cls = inner
            yield from config_tables(cls, (*path, field.name, *shape))


def config_table_of(kind: Any) -> tuple[tuple[str, ...], Any] | None:
    """The struct that a field holds, and what stands between: nothing, ``NAME`` or ``[]``."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return (), kind
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is dict:
        return ("NAME",), arguments[1]
    if origin is tuple and isinstance(arguments[0], type) and issubclass(arguments[0], msgspec.Struct):
        return ("[]",), arguments[0]
    return None


def config_heading(path: tuple[str, ...]) -> str:
    """``[http]``, ``[brokers.NAME.tls]``, ``[[api_keys]]``."""
    if not path:
        return "At the top of the file"
    if path[-1] == "[]":
        return f"`[[{'.'.join(path[:-1])}]]`"
    return f"`[{'.'.join(path)}]`"


def default(field: Any) -> str:
    """A default as it would be written in the file."""
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    return f"`{toml(value)}`"


def toml(value: Any) -> str:
    """A plain value in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(toml(item) for item in value)}]"
    return f"{value:_}" if isinstance(value, int) else str(value)


# -------------------------------------------------------------------------------------------------- errors


def error_tree(root: type[errors.GatewayError] = errors.GatewayError) -> Iterator[type[errors.GatewayError]]:
    """The errors of :mod:`gateway.errors`, parents first."""
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from error_tree(child)


def error_codes() -> Iterator[str]:
    """Every error of the gateway."""
    yield from table(
        ("code", "class", "retry may help", "the message", "exit status", "meaning"),
        (
            (
                f"`{cls.code}`",
                f"`{cls.__name__}`",
                "yes" if cls.retryable else "no",
                cls.outcome.replace("_", " "),
                str(commands.exit_status(cls)),
                prose(cls.__doc__ or ""),
            )
            for cls in error_tree()
        ),
    )


def problems() -> Iterator[str]:
    """Every code that the HTTP API answers."""
    yield from table(
        ("code", "status", "title", "what to do"),
        (
            (f'<a id="{code}"></a>`{code}`', str(kind.status), kind.title, prose(kind.advice))
            for code, kind in PROBLEMS.items()
        ),
    )


def exit_statuses() -> Iterator[str]:
    """What the command line ends with."""
    yield from table(("status", "meaning"), ((str(status), text) for status, text in commands.EXIT_STATUS.items()))


# -------------------------------------------------------------------------------------------------- limits


def limit_table() -> Iterator[str]:
    """Every limit on untrusted input."""
    yield from _limits(limits.DEFAULT_LIMITS)


def broker_limits() -> Iterator[str]:
    """What the embedded broker keeps for its clients."""
    yield from _limits(limits.DEFAULT_BROKER_LIMITS)


def _limits(defaults: limits.Limits | limits.BrokerLimits) -> Iterator[str]:
    docs = field_docs(limits)[type(defaults).__name__]
    yield from table(
        ("limit", "default", "meaning"),
        (
            (f"`{field.name}`", f"{getattr(defaults, field.name):_}", docs[field.name])
            for field in dataclasses.fields(defaults)
        ),
    )


# ------------------------------------------------------------------------------------------------ commands


def verbs() -> Iterator[str]:
    """Every verb of the command line, with what it takes."""
    root = click.Context(commands.cli, info_name="gateway")
    for name in commands.VERBS:
        command = commands.cli.get_command(root, name)
        assert command is not None
        yield from verb(command, click.Context(command, info_name=name, parent=root))


def verb(command: click.Command, context: click.Context) -> Iterator[str]:
    """One verb, and the verbs below it."""
    yield f"### `{context.command_path}`"
    yield ""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = inspect.cleandoc(command.help or "")
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (" ".join(paragraph.split()), "")
    yield from (f"Usage: `{usage}`", "")
    rows = [option for parameter in command.params if (option := parameter.get_help_record(context)) and option[1]]
    if rows:
        yield from table(("option", "meaning"), ((f"`{names}`", prose(meaning)) for names, meaning in rows))
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from verb(child, click.Context(child, info_name=name, parent=context))


# -------------------------------------------------------------------------------------------------- ledger


def ledger_states() -> Iterator[str]:
    """The events of a message's timeline."""
    docs = field_docs(states)["Kind"]
    yield from table(
        ("event", "state after it", "meaning"),
        ((f"`{kind}`", f"`{rule.state}`", docs[kind.name]) for kind, rule in states.RULES.items()),
    )


# ----------------------------------------------------------------------------------------------- metrics


def metrics() -> Iterator[str]:
    """What ``/metrics`` shows."""
    yield from table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{metric.name}`", metric.type, ", ".join(f"`{label}`" for label in labels), prose(metric.documentation))
            for metric, labels in metric_families()
        ),
    )


def metric_families() -> Iterator[tuple[Metric, Sequence[str]]]:
    """Every metric, by the name under which it is exposed, with its labels."""
    for collector in vars(telemetry.Metrics("")).values():
        if isinstance(collector, MetricWrapperBase):
            (metric,) = collector.describe()
            if metric.type == "counter":
                metric.name += "_total"
            yield metric, collector._labelnames


# ---------------------------------------------------------------------------------------------- protocols


def dialects() -> Iterator[str]:
    """What varies between products that speak the same classic version."""
    known = [dialect for table in (v08.DIALECTS, v091.DIALECTS) for dialect in table.values()]
    docs = field_docs(classic)["Dialect"]
    yield from table(
        ("", *(f"{dialect.version.value} {dialect.name}" for dialect in known), "note"),
        (
            (
                f"`{field.name}`",
                *("yes" if getattr(dialect, field.name) else "no" for dialect in known),
                docs.get(field.name, ""),
            )
            for field in dataclasses.fields(classic.Dialect)
            if isinstance(field.default, bool)
        ),
    )


def broker_arguments() -> Iterator[str]:
    """What the embedded broker takes in declarations and consumers."""
    known = {
        "exchange": arguments.EXCHANGE_ARGUMENTS,
        "queue": arguments.QUEUE_ARGUMENTS,
        "consumer": arguments.CONSUMER_ARGUMENTS,
    }
    yield from table(
        ("of", "arguments"), ((of, ", ".join(f"`{name}`" for name in names)) for of, names in known.items())
    )


# ---------------------------------------------------------------------------------------------------- HTTP


def routes() -> Iterator[str]:
    """Every route of the API."""
    yield from table(
        ("method", "path", "scope", "what it does"),
        (
            (route.method, f"`{route.path}`", f"`{route.scope.value}`", prose(route.summary))
            for route in sorted(ROUTES, key=lambda route: (route.path.split("/{")[0], route.path, route.method))
        ),
    )


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "errors": error_codes,
    "problems": problems,
    "exit-statuses": exit_statuses,
    "limits": limit_table,
    "broker-limits": broker_limits,
    "verbs": verbs,
    "events": ledger_states,
    "metrics": metrics,
    "dialects": dialects,
    "broker-arguments": broker_arguments,
    "routes": routes,
}
"""Name of the block -> what makes it."""


def render(text: str) -> str:
    """A page with all its generated blocks made anew."""

    def block(match: re.Match[str]) -> str:
        body = "\n".join(TABLES[match["name"]]()).strip()
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return BLOCK.sub(block, text)


def main() -> int:
    """Rewrite every page that differs."""
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if before != after:
            page.write_text(after, encoding="utf-8")
            click.echo(f"wrote {page.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
