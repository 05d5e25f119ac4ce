"""Write the generated tables of ``docs/`` anew, from the code that they describe.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. ``python docs/generate.py`` rewrites all
of them; ``tests/test_docs.py`` fails while one differs from what would be written.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import click
import msgspec
from prometheus_client import Metric
from prometheus_client.metrics import MetricWrapperBase

from gateway import budgets, commands, config, errors, fidelity, limits, terminal
from gateway.access.scopes import FORMS
from gateway.amqp.message import ArrivalTime, Deadline, Message, Properties, ReplyTo, UuidMessageId
from gateway.amqp.values import Timestamp, Typed, type_of
from gateway.api.app import ROUTES
from gateway.api.history import story
from gateway.api.http.problems import PROBLEMS
from gateway.api.resources.subscription_scopes import NEEDS, Need
from gateway.broker import arguments
from gateway.classic import client, client_channel, server, server_channel
from gateway.classic import dialect as classic
from gateway.classic.dialect import Dialect
from gateway.classic.frames import FRAME_HEADER, METHOD
from gateway.classic.methods import ChannelCloseOk, ConnectionCloseOk, ConnectionRedirect09, Method
from gateway.commands.doctor import findings as doctor
from gateway.fidelity import HELD, deaths
from gateway.front.channels.rules import RULES as FRONT_RULES
from gateway.front.channels.treatment import TREATMENTS
from gateway.ledger.writing import states, transitions
from gateway.observing import telemetry
from gateway.observing.series import Family
from gateway.outbound import DEFAULT_OUTBOUND_LIMITS
from gateway.outbound import limits as outbound_limits_module
from gateway.outbound.addresses import RANGES
from gateway.outbound.hosts import DENIED_NAMES
from gateway.pipeline.jobs import lives
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source import options as spark_options_module
from gateway.reload import RESTART, RULES
from gateway.tracing import names as trace_names
from gateway.translation import target_of
from gateway.v010 import attached as native_attached
from gateway.v010 import client as native_client
from gateway.v010 import frames as native_frames
from gateway.v010 import server as native_server
from gateway.v010.client_channel import ClientChannel as NativeClientChannel
from gateway.v010.commands import COMMANDS, Command
from gateway.v010.controls import CONTROLS, ConnectionClose, ConnectionHeartbeat, Control
from gateway.v010.controls import ConnectionCloseOk as ConnectionCloseOk010
from gateway.v010.server_channel import ServerChannel as NativeServerChannel
from gateway.v010_draft import methods as draft
from gateway.v010_draft.attached import METHODS as DRAFT_METHODS
from gateway.v010_draft.attached import Attached
from gateway.v010_draft.client_channel import ClientChannel as DraftClientChannel
from gateway.v010_draft.server_channel import WAYS as DRAFT_WAYS
from gateway.v010_draft.server_channel import ServerChannel as DraftServerChannel
from gateway.v010_draft.unserved import UNSERVED as DRAFT_UNSERVED
from gateway.validation import words_in
from gateway.versions import PROTOCOLS, version_named
from gateway.webhooks import breaker
from gateway.webhooks.attempts import schedule

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


SETTINGS: Final = {
    "settings-connections": ("brokers", "fronts", "api_keys", "access"),
    "settings-resources": ("subscriptions", "endpoints", "bridges", "taps", "pipeline"),
}
"""Page -> the tables of the configuration file that it has. All others are on the page of settings."""


def settings(page: str = "settings") -> Iterator[str]:
    """The tables of the configuration file that a page has."""
    elsewhere = {name for names in SETTINGS.values() for name in names}
    docs: dict[str, dict[str, str]] = {}
    for name in sorted({struct.__module__ for _, struct in config_tables(config.Config)}):
        docs |= field_docs(sys.modules[name])
    variables = {setting: variable for variable, setting in config.ENVIRONMENT.items()}
    for path, struct in config_tables(config.Config):
        first = path[0] if path else ""
        if first in elsewhere if page == "settings" else first not in SETTINGS[page]:
            continue
        yield f"{'###' if page == 'settings' else '##'} {config_heading(path)}"
        yield ""
        rows = []
        for field in msgspec.structs.fields(struct):
            if config_table_of(field.type) is not None:
                continue
            variable = variables.get((*path, field.name))
            text = docs[struct.__name__][field.name]
            words = [f"`{word}`" for word in words_in(field.type) if word]
            if words:
                text += f" Words: {', '.join(words)}."
            old = next((old for old, new in getattr(struct, "RENAMED", {}).items() if new == field.name), None)
            shown = default(next(each for each in msgspec.structs.fields(struct) if each.name == (old or field.name)))
            if field.name in getattr(struct, "OTHER_NAMES", {}):
                shown = ""
            rows.append((f"`{field.name}`", shown, text + (f" Variable `{variable}`." if variable else "")))
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
    if origin is dict and isinstance(arguments[1], type) and issubclass(arguments[1], msgspec.Struct):
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
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + "}"
    if value is None:
        return "none"
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


def doctor_checks() -> Iterator[str]:
    """What ``gateway doctor`` looks at."""
    yield from table(
        ("check", "looks at", "exit status"),
        ((f"`{name}`", check.looks_at, str(check.exit)) for name, check in doctor.CHECKS.items()),
    )


def exit_statuses() -> Iterator[str]:
    """What the command line ends with."""
    yield from table(("status", "meaning"), ((str(status), text) for status, text in commands.EXIT_STATUS.items()))


# -------------------------------------------------------------------------------------------------- limits


def limit_table() -> Iterator[str]:
    """Every limit on untrusted input."""
    yield from _limits(limits.DEFAULT_LIMITS)


def budget_table() -> Iterator[str]:
    """What clients share, and how much of it one client may hold."""
    bounds = budgets.BudgetBounds()
    yield from table(
        ("resource", "what is counted", "total", "setting of the total", "one client", "counted per"),
        (
            (
                f"`{row.name}`",
                row.what,
                f"{row.total:,}",
                f"`{row.setting}`",
                f"{int(row.total * bounds.share):,}" if row.is_split else "",
                row.scope,
            )
            for row in budgets.RESOURCES.values()
        ),
    )


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


VERBS: Final = {
    "service": ("serve", "demo", "doctor", "migrate", "backup", "restore", "reload", "completion"),
    "brokers": ("overview", "brokers", "probe", "fronts", "explain"),
    "queues": ("queues",),
    "topology": ("exchanges", "bindings"),
    "messages": ("publish", "pull", "messages", "search", "why", "tail", "statistics"),
    "scheduled": ("scheduled",),
    "subscriptions": ("subscriptions", "taps"),
    "webhooks": ("endpoints",),
    "bridges": ("bridges",),
    "replays": ("replays",),
    "dead-letters": ("dlq",),
    "access": ("budgets", "keys", "audit", "secrets"),
    "pipeline": ("pipeline",),
    "pipeline-run": ("pipeline run",),
    "pipeline-checks": ("pipeline reconcile", "pipeline validate", "pipeline run reconcile", "pipeline run validate"),
}
"""Page of commands -> the verbs that it has, with those below them that have no page of their own."""


def verbs(page: str) -> Iterator[str]:
    """The verbs of a page, with what they take."""
    root = click.Context(commands.cli, info_name="gateway")
    for path in VERBS[page]:
        command, context = commands.cli, root
        for name in path.split():
            assert isinstance(command, click.Group)
            inner = command.get_command(context, name)
            assert inner is not None
            command, context = inner, click.Context(inner, info_name=name, parent=context)
        yield from verb(command, context)


def verb_pages() -> Iterator[str]:
    """Which page has which verb."""
    rows = []
    for page, paths in VERBS.items():
        names = ", ".join(f"`gateway {path}`" for path in paths)
        rows.append((f"[{page.replace('-', ' ')}](commands/{page}.md)", names))
    yield from table(("page", "verbs"), rows)


def verb(command: click.Command, context: click.Context) -> Iterator[str]:
    """One verb, and the verbs below it that are not on another page."""
    yield f"## `{context.command_path}`"
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
            inner = click.Context(child, info_name=name, parent=context)
            if not any(inner.command_path == f"gateway {path}" for paths in VERBS.values() for path in paths):
                yield from verb(child, inner)


def reach_options() -> Iterator[str]:
    """The options of every verb that asks a running gateway."""
    yield from table(
        ("option", "environment", "meaning"),
        (
            (f"`--{name} {kind}`", f"`{commands.variable_of(name)}`", prose(text))
            for name, (kind, text) in commands.REACH.items()
        ),
    )


def output_forms() -> Iterator[str]:
    """What ``--output`` takes."""
    yield from table(("form", "meaning"), ((f"`{name}`", text) for name, text in terminal.OUTPUTS.items()))


# -------------------------------------------------------------------------------------------------- ledger


def ledger_states() -> Iterator[str]:
    """The events of a message's timeline."""
    docs = field_docs(states)["EventKind"]
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


def reload_rules() -> Iterator[str]:
    """Which setting counts when."""
    rows = sorted(RULES.items(), key=lambda row: (row[1][0] == RESTART, list(RULES).index(row[0])))
    yield from table(
        ("setting", "live or restart", "when, or why not"),
        ((f"`{name}`", when, text) for name, (when, text) in rows),
    )


def metric_families() -> Iterator[tuple[Metric, Sequence[str]]]:
    """Every metric, by the name under which it is exposed, with its labels."""
    for found in vars(telemetry.Metrics("")).values():
        collector = found.metric if isinstance(found, Family) else found
        if isinstance(collector, MetricWrapperBase):
            (metric,) = collector.describe()
            if metric.type == "counter":
                metric.name += "_total"
            yield metric, collector._labelnames


# ---------------------------------------------------------------------------------------------- protocols


CLASSICS = [protocol for protocol in PROTOCOLS if protocol.is_classic]


def dialects() -> Iterator[str]:
    """What varies between products that speak the same classic version."""
    known = [dialect for protocol in CLASSICS for dialect in protocol.dialects.values()]
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


def classic_methods() -> Iterator[str]:
    """Every method of every dialect of the classic versions, who of us reads it, and who was seen with it."""
    takers = {
        "client": {*client_channel.HANDLERS, *client_channel.UNDECODED, *client.CONNECTION},
        "server": {*server_channel.HANDLERS, *server_channel.UNDECODED, *server.CONNECTION, *CLOSED},
    }
    seen = transcribed()
    rows: dict[tuple[int, str], dict[type[Method], list[Dialect]]] = {}
    for dialect in (dialect for protocol in CLASSICS for dialect in protocol.dialects.values()):
        for key, method in dialect.methods.items():
            rows.setdefault((key, method.title), {}).setdefault(method, []).append(dialect)
    unserved = {
        dialect.methods[key]
        for shapes in rows.values()
        for known in shapes.values()
        for dialect in known
        for key in dialect.unserved
    }
    by_version = users(2), users(1)
    yield from table(
        ("method", "number", *(protocol.name for protocol in CLASSICS), "used by", "read by our", "seen on"),
        (
            (
                title + " (content)" * next(iter(shapes)).content,
                f"{key >> 16}.{key & 0xFFFF}",
                *(spoken(shapes, protocol.dialects) for protocol in CLASSICS),
                used(title, *by_version),
                "nobody: 540"
                if unserved & shapes.keys()
                else ", ".join(
                    role for role, taken in takers.items() if any(shape.meaning in taken for shape in shapes)
                ),
                "; ".join(f"{broker} {', '.join(versions)}" for broker, versions in seen.get((key, title), {}).items()),
            )
            for (key, title), shapes in sorted(rows.items())
        ),
    )


BESIDES = {
    "connection.start": "opening",
    "connection.secure": "opening",
    "connection.tune": "opening",
    "connection.open": "opening",
    "connection.redirect": "`redirect_hosts`",
    "connection.heartbeat": "heartbeats",
    "access.request": "`realm`",
    "session.request-timeout": "`OpenChannel`",
    "session.timeout": "`OpenChannel`",
    "session.expected": "`OpenChannel`",
    "session.confirmed": "`OpenChannel`",
    "session.command-point": "`OpenChannel`",
    "session.flush": "`Confirmed`",
    "session.known-completed": "`Confirmed`",
    "session.gap": "`CloseChannel`",
    "execution.sync": "every request",
    "execution.result": "every query",
    "execution.exception": "`ChannelClosed`",
    "message.set-flow-mode": "`Consume`",
}
"""What uses a method besides the operations of the table."""


def users(column: int) -> Mapping[str, str]:
    """Method -> the operations that use it, by the table of operations; ``column`` of a version there."""
    found: dict[str, list[str]] = {}
    page = (DOCS / "reference" / "protocols.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\| (`[A-Z].*) \|$", page.partition("## Distributed")[0], re.MULTILINE):
        cells = row.split(" | ")
        operations = re.findall(r"`[A-Z]\w+`", cells[0])
        cell = cells[column].replace("tx", "tx.select, .commit, .rollback") if cells[column] == "tx" else cells[column]
        of = ""
        named = re.findall(r"\b([a-z]*)\.([a-z]+(?:-[a-z]+)*)", cell.replace(" .", " x."))
        for place, (name, method) in enumerate(named):
            of = of if name == "x" else name
            mine = operations[place : place + 1] if len(named) == len(operations) else operations
            known = found.setdefault(f"{of}.{method}", [])
            known += [operation for operation in mine if operation not in known]
    return {**{method: ", ".join(operations) for method, operations in found.items()}, **BESIDES}


def used(title: str, *versions: Mapping[str, str]) -> str:
    """What uses a method, or what it answers."""
    asked = re.sub(r"-ok$|ed$", "", title)
    names = (title, asked, {"basic.get-empty": "basic.get", "session.attached": "session.attach"}.get(title, asked))
    return next((version[name] for name in names for version in versions if name in version), "")


CLOSED = (ConnectionCloseOk, ChannelCloseOk)
"""What a server reads when it waits for nothing else."""


def spoken(shapes: Mapping[type[Method], Sequence[Dialect]], known: Mapping[str, Dialect]) -> str:
    """Which dialects of a version have the method."""
    having = [name for name, one in known.items() if any(one in dialects for dialects in shapes.values())]
    return "all" if len(having) == len(known) else ", ".join(having)


def transcribed() -> Mapping[tuple[int, str], Mapping[str, Sequence[str]]]:
    """Method -> broker -> versions, of the recorded transcripts: what went to and fro and was understood."""
    found: dict[tuple[int, str], dict[str, list[str]]] = {}
    dialects = {protocol.name: protocol.dialects["qpid"] for protocol in CLASSICS}
    for path in sorted((DOCS.parent / "tests" / "golden").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        broker, version = document["broker"].rpartition(" ")[0].removeprefix("Apache Qpid "), document["version"]
        if version not in dialects:
            continue
        for speaker in ("client", "server"):
            octets = b"".join(bytes.fromhex(piece) for who, piece in document["pieces"] if who == speaker)
            at = 8 if octets.startswith(b"AMQP") else 0
            while at < len(octets):
                kind, _, size = FRAME_HEADER.unpack_from(octets, at)
                if kind == METHOD:
                    key = int.from_bytes(octets[at + 7 : at + 11], "big")
                    versions = found.setdefault((key, dialects[version].methods[key].title), {}).setdefault(broker, [])
                    if version not in versions:
                        versions.append(version)
                at += size + 8
    return found


def native_methods() -> Iterator[str]:
    """Every control and command of 0-10, who of us reads it, and who was seen with it."""
    both = {ConnectionHeartbeat, ConnectionClose, ConnectionCloseOk010, *native_attached.CONTROLS}
    takers = {
        "client": {*both, *native_client.ClientSession.control_handlers, *NativeClientChannel.command_handlers},
        "server": {*both, *native_server.ServerSession.control_handlers, *NativeServerChannel.command_handlers},
    }
    seen = native_transcribed()
    operations = users(3)
    rows: list[type[Control | Command]] = [*CONTROLS.values(), *COMMANDS.values()]
    yield from table(
        ("control or command", "code", "for", "result, answers", "used by", "read by our", "seen on"),
        (
            (
                kind.spelled + " (content)" * (getattr(kind, "header", None) is not None),
                f"0x{kind.code:04x}",
                ", ".join(sorted(role.value for role in kind.to)),
                ", ".join((*([kind.result.spelled] if getattr(kind, "result", None) else []), *kind.answers)),
                used(kind.spelled, operations),
                ", ".join(role for role, taken in takers.items() if kind in taken) or "nobody: 540",
                ", ".join(seen.get(kind.code, ())),
            )
            for kind in sorted(rows, key=lambda kind: kind.code)
        ),
    )


def native_transcribed() -> Mapping[int, Sequence[str]]:
    """Code of a control or command -> brokers, of the recorded transcripts."""
    found: dict[int, list[str]] = {}
    for path in sorted((DOCS.parent / "tests" / "golden").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != "0-10":
            continue
        broker = document["broker"].rpartition(" ")[0].removeprefix("Apache Qpid ")
        for speaker in ("client", "server"):
            octets = b"".join(bytes.fromhex(piece) for who, piece in document["pieces"] if who == speaker)
            at = 8 if octets.startswith(b"AMQP") else 0
            while (frame := native_frames.read_frame(octets, at, native_frames.FRAME_MAX)) is not None:
                (flags, kind, _, _, payload), at = frame
                if kind <= native_frames.COMMAND and flags & native_frames.FIRST_FRAME:
                    brokers = found.setdefault(int.from_bytes(payload[:2], "big"), [])
                    if broker not in brokers:
                        brokers.append(broker)
    return found


UNASKED = "nobody: what it answers is not sent"


def draft_methods() -> Iterator[str]:
    """Every method of the transitional draft, and who of us reads it."""
    ends: Mapping[str, tuple[type[Attached], Iterable[type[Method]]]] = {
        "client": (DraftClientChannel, (*client.CONNECTION, ConnectionRedirect09, draft.MessageTransfer)),
        "server": (
            DraftServerChannel,
            (*server.CONNECTION, ConnectionCloseOk, draft.SessionResume, draft.MessageTransfer),
        ),
    }
    takers = {
        role: {*end.command_handlers, *end.control_handlers, *end.responses, *(method.key for method in more)}
        for role, (end, more) in ends.items()
    }
    takers["server"] |= DRAFT_WAYS.keys()
    yield from table(
        ("method", "number", "read by our"),
        (
            (
                method.title,
                f"{key >> 16}.{key & 0xFFFF}",
                "nobody: 540"
                if method in DRAFT_UNSERVED.methods
                else ", ".join(role for role, taken in takers.items() if key in taken) or UNASKED,
            )
            for key, method in sorted(DRAFT_METHODS.items())
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


def front_operations() -> Iterator[str]:
    """What a front does with each operation."""
    yield from table(
        ("operation", "what a front does", "refused where"),
        (
            (
                f"`{operation.__name__}`",
                f"{each.kind.value}: {each.how}" if each.how else each.kind.value,
                "; ".join(f"{refusal.where} ({refusal.code})" for refusal in each.refusals),
            )
            for operation, each in TREATMENTS.items()
        ),
    )


def front_rules() -> Iterator[str]:
    """What a front rewrites."""
    yield from table(
        ("rule", "upstream", "a client asks", "the upstream gets"),
        (
            (
                f"`{rule.name}`",
                (rule.product or "any")
                + (f" {rule.since[0]}.{rule.since[1]} and later" if rule.since > (0, 0) else ""),
                rule.what,
                rule.becomes,
            )
            for rule in FRONT_RULES
        ),
    )


def routes() -> Iterator[str]:
    """Every route of the API."""
    yield from table(
        ("method", "path", "scope", "what it does"),
        (
            (route.method, f"`{route.path}`", f"`{route.scope.value}`", prose(route.summary))
            for route in sorted(ROUTES, key=lambda route: (route.path.split("/{")[0], route.path, route.method))
        ),
    )


def scopes() -> Iterator[str]:
    """What keys may be allowed."""
    yield from table(("scope", "allows"), ((f"`{form.text}`", form.allows) for form in FORMS.values()))


def subscription_scopes() -> Iterator[str]:
    """What the settings of a subscription take of a caller without ``admin``."""
    found: dict[Need, list[str]] = {}
    for name, need in NEEDS.items():
        found.setdefault(need, []).append(f"`{name}`")
    yield from table(("setting", "scope besides `subscribe:`"), ((", ".join(found[need]), need.value) for need in Need))


# ------------------------------------------------------------------------------------------------ translation

TARGETS = {
    "0-8, 0-9-1 RabbitMQ": ("0-9-1", "rabbitmq"),
    "0-8, 0-9-1 Broker-J": ("0-9-1", "qpid"),
    "0-10 Broker-J": ("0-10", "qpid"),
    "0-10 others": ("0-10", "other"),
}
"""Column -> version and product. ``cluster_id`` alone tells 0-8 from 0-9-1, and has a row for each."""
PROPERTIES: Sequence[tuple[str, str, Any]] = (
    ("content_type", "UTF-8", "text/plain"),
    ("content_type", "not UTF-8", "\udcff"),
    ("content_encoding", "`gzip`", "gzip"),
    ("delivery_mode", "1, 2", 2),
    ("delivery_mode", "any other", 7),
    ("priority", "0 to 9", 5),
    ("priority", "10 to 255", 200),
    ("correlation_id", "up to 255 octets of UTF-8", "c-1"),
    ("correlation_id", "longer", "x" * 256),
    ("correlation_id", "not UTF-8, from 0-10", b"\xff"),
    ("reply_to", "a name", "replies"),
    ("reply_to", "a binding URL of JMS", "direct://amq.direct//answers?routingkey='answers'"),
    ("reply_to", "with an exchange", ReplyTo("x", "k")),
    ("expiration", "milliseconds", "60000"),
    ("expiration", "an instant, from Broker-J's 0-8 and 0-9-1", Deadline.at(1_700_000_060_000, 1_700_000_000.0)),
    ("expiration", "no number", "soon"),
    ("message_id", "a UUID, from 0-10", UuidMessageId("12345678-1234-5678-1234-567812345678")),
    ("message_id", "`ID:` and a UUID", "ID:12345678-1234-5678-1234-567812345678"),
    ("message_id", "a UUID as text", "12345678-1234-5678-1234-567812345678"),
    ("message_id", "any other", "m-1"),
    ("timestamp", "the publisher's", 1_700_000_000),
    ("timestamp", "a broker's own, from 0-10", ArrivalTime(1_700_000_000)),
    ("type", "", "order"),
    ("user_id", "the login", "guest"),
    ("user_id", "any other", "somebody"),
    ("app_id", "", "shop"),
    ("cluster_id", "", "c"),
)
"""Property, what kind of value, value."""
HEADERS: Mapping[str, Any] = {
    "void": None,
    "bool": True,
    "int8": Typed("int8", 5),
    "uint8": Typed("uint8", 5),
    "int16": Typed("int16", 5),
    "uint16": Typed("uint16", 5),
    "int32": 5,
    "uint32": Typed("uint32", 5),
    "int64": 1 << 40,
    "uint64": 1 << 63,
    "float": Typed("float", 0.5),
    "double": 0.5,
    "double: NaN, an infinity": float("inf"),
    "decimal": Decimal("1.5"),
    "dec64": Typed("dec64", Decimal("1.5")),
    "timestamp": Timestamp(5),
    "char": Typed("char", "a"),
    "char-utf32": Typed("char-utf32", "a"),
    "uuid": UUID(int=5),
    "string": "text",
    "string: not UTF-8": Typed("string", b"\xff"),
    "string: over 65,535 octets": "x" * 65_536,
    "str8": Typed("str8", "a"),
    "str8-latin": Typed("str8-latin", "a"),
    "str8-utf16": Typed("str8-utf16", "a"),
    "str16-latin": Typed("str16-latin", "a"),
    "str16-utf16": Typed("str16-utf16", "a"),
    "bytes": b"x",
    "vbin8": Typed("vbin8", b"x"),
    "vbin16": Typed("vbin16", b"x"),
    "bin8 to bin1024": Typed("bin16", b"xx"),
    "bit": Typed("bit", True),
    "struct32": Typed("struct32", b"\x04\x01\x00\x00"),
    "typed-array": Typed("typed-array", b"\x02\x00\x00\x00\x01\x05"),
    "table": {"a": 1},
    "table: empty": {},
    "array": [1],
}
"""Type of a header's value -> value."""


def translations() -> Iterator[str]:
    """What becomes of every property and every type of header."""
    rows: list[Sequence[str]] = [
        (f"`{name}`", kind, *_results(Properties(**{name: value}), name)) for name, kind, value in PROPERTIES
    ]
    rows += [
        (f"header `{name}`", "", *_results(Properties(headers={name: ["x"]}), f"headers/{name}"))
        for name in sorted(HELD)
    ]
    yield from table(("property", "value", *TARGETS), rows)
    yield ""
    rows = [(f"`{kind}`", *_results(Properties(headers={"k": value}), "headers/k")) for kind, value in HEADERS.items()]
    yield from table(("type of a header", *TARGETS), rows)


def _results(properties: Properties, field: str) -> Iterator[str]:
    for version, product in TARGETS.values():
        target = target_of(version_named(version), product, clock=lambda: 1_700_000_000.0)
        (receipt,) = target.explain(Message(b"", properties)).fields
        assert receipt.field == field
        text = receipt.result
        if receipt.result == "mapped" and field.startswith("headers/"):
            text += f": {type_of(receipt.becomes)}"
        yield text


def losses() -> Iterator[str]:
    """Everything that can be lost."""
    rows = [
        (
            f"`{name}`",
            loss.what,
            loss.when,
            ", ".join(each.name for each in PROTOCOLS if each.is_classic or not loss.classic_only),
            "no" if loss.stops else "yes",
        )
        for name, loss in fidelity.LOSSES.items()
    ]
    yield from table(("name", "what is lost", "when", "towards", "is it sent"), rows)


# ------------------------------------------------------------------------------------- outbound requests


def denied_addresses() -> Iterator[str]:
    """Where the gateway does not connect on somebody else's word."""
    yield from table(("network", "what", "says who"), ((f"`{row.network}`", row.what, row.rfc) for row in RANGES))


def denied_names() -> Iterator[str]:
    """Names that are denied whatever they resolve to."""
    yield from table(("name", "why"), ((f"`{name}`", why) for name, why in DENIED_NAMES))


def outbound_limits() -> Iterator[str]:
    """How much a request of the gateway's may take."""
    yield from _settings_of(outbound_limits_module, DEFAULT_OUTBOUND_LIMITS)


def breaker_settings() -> Iterator[str]:
    """When an endpoint is left alone."""
    yield from _settings_of(breaker, breaker.BreakerSettings())


def _settings_of(module: ModuleType, defaults: Any) -> Iterator[str]:
    docs = field_docs(module)[type(defaults).__name__]
    yield from table(
        ("limit", "default", "meaning"),
        (
            (f"`{field.name}`", f"{getattr(defaults, field.name):_}", docs[field.name])
            for field in dataclasses.fields(defaults)
        ),
    )


def webhook_statuses() -> Iterator[str]:
    """What a status means; the first row that fits."""

    def span(rule: schedule.StatusRule) -> str:
        if rule is schedule.STATUSES[-1]:
            return "any other"
        asked = f" with `{schedule.DROP_HEADER}: {schedule.DROP}`" if rule.asked else ""
        return (str(rule.first) if rule.first == rule.last else f"{rule.first} to {rule.last}") + asked

    yield from table(
        ("status", "outcome", "why"), ((span(rule), f"`{rule.outcome}`", rule.why) for rule in schedule.STATUSES)
    )


def dead_letter_codes() -> Iterator[str]:
    """Why a message is a dead letter."""
    yield from table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in deaths.CODES.items()))


def wait_codes() -> Iterator[str]:
    """Why a message waits."""
    words = {"subscription": "S", "endpoint": "E", "where": "its queue"}
    rows = ((f"`{code}`", said.format_map(words)) for code, (said, _) in story.WAITS.items())
    yield from table(("code", "meaning, for a subscription S and its endpoint E"), rows)


def webhook_errors() -> Iterator[str]:
    """What an error means; the nearest class."""
    yield from table(
        ("error", "outcome", "why"),
        ((f"`{cls.code}`", f"`{verdict}`", why) for cls, (verdict, why) in schedule.ERRORS.items()),
    )


def webhook_schedule() -> Iterator[str]:
    """When attempts are made."""
    total, rows = 0.0, []
    for attempt, delay in enumerate(schedule.DELAYS, 1):
        total += delay
        rows.append((str(attempt), _duration(delay), _duration(total)))
    yield from table(("attempt", "after a wait of", "from the first on"), rows)


def helm_values() -> Iterator[str]:
    """Every value of the chart."""
    chart = script("deploy/helm/generate.py")
    yield from table(
        ("value", "default", "meaning"),
        ((f"`{path}`", f"`{json.dumps(value)}`", prose(text)) for path, value, text in chart.described()),
    )


def script(path: str) -> ModuleType:
    """A script of the project, as a module."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), DOCS.parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def licences() -> Iterator[str]:
    """The licence of every locked package."""
    found = script("deploy/supply/licences.py")
    yield from table(
        ("package", "licence", "for", "brings along"),
        (
            (f"`{row.name}`", row.licence, ", ".join(row.used_by), "; ".join(found.BUNDLED.get(row.name, ())))
            for row in found.rows()
        ),
    )


def licences_taken() -> Iterator[str]:
    """The licences that any package may have, and those that packages have by name."""
    found = script("deploy/supply/licences.py")
    yield from table(("licence", "asks to"), ((f"`{name}`", asks) for name, asks in found.TAKEN.items()))
    yield ""
    yield from table(
        ("package", "licence", "why it may have that one"),
        ((f"`{name}`", licence, why) for name, (licence, why) in found.TOGETHER.items()),
    )


def _duration(seconds: float) -> str:
    if not seconds:
        return "at once"
    hours, rest = divmod(round(seconds), 3600)
    parts = ((hours, "h"), (rest // 60, "min"), (rest % 60, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def message_lives() -> Iterator[str]:
    """What each kind of event does to a message's publish and to its stay in a queue, and the flows that write it."""
    yield from table(
        ["event", "publish", "stay in a queue", "flows"],
        (
            [
                f"`{kind.value}`",
                *("–" if role is lives.Role.NOTES else role.value for role in life),
                ", ".join(name for name, flow in lives.FLOWS.items() if kind in flow.roles),
            ]
            for kind, life in lives.LIVES.items()
        ),
    )


def event_transitions() -> Iterator[str]:
    """Which event may follow which, scope by scope."""
    yield from table(
        ["scope", "event", "may follow", "the rule"],
        (
            [
                scope.value,
                f"`{step}`",
                ", ".join(
                    f"`{before}`" if before else "nothing"
                    for before in (transitions.BEGIN, *transitions.STEPS)
                    if before in rule.after
                ),
                rule.why,
            ]
            for scope, rules in transitions.TRANSITIONS.items()
            for step, rule in rules.items()
        ),
    )


def spark_options(kind: type[msgspec.Struct]) -> Iterator[str]:
    """The options of the source or of the sink for Spark."""
    known = field_docs(spark_options_module)
    documented = {**known["Connection"], **known[kind.__name__]}
    rows = []
    for field in msgspec.structs.fields(kind):
        default = "needed" if field.required else f"`{field.default}`".lower() if field.default != "" else ""
        rows.append((f"`{field.name}`", default, documented[field.name]))
    yield from table(("option", "default", "meaning"), rows)


def log_columns(log: str) -> Iterator[str]:
    """The columns of a log."""
    yield from table(
        ("column", "type", "meaning"), ((f"`{each.name}`", f"`{each.type}`", each.meaning) for each in COLUMNS[log])
    )


def trace_spans() -> Iterator[str]:
    """Every span."""
    yield from table(
        ("span", "kind", "operation", "about", "parent"),
        (
            (
                f"`{row.name} …`" if row.type else f"`{row.name}`",
                row.kind.name.lower(),
                f"`{row.type}`" if row.type else "",
                row.about,
                row.parent,
            )
            for row in trace_names.SPANS
        ),
    )


def trace_attributes() -> Iterator[str]:
    """Every attribute of a span."""
    yield from table(("attribute", "meaning"), ((f"`{name}`", text) for name, text in trace_names.ATTRIBUTES.items()))


WORLDS: Final = {
    "": "",
    "branches": "branches that cannot be undone at once",
    "bridges": "bridges",
    "claims": "answers for callers who give up",
    "depths": "a tap that ends",
    "dtx": "`dtx`",
    "equals": "equal messages",
    "forgetting": "a broker that forgets",
    "losing again": "one lost answer of the ledger after another",
    "fronts": "fronts",
    "steering": "somebody who pauses and changes what moves messages",
    "losses": "a ledger that goes away",
    "modes": "a bridge that changes its mode",
    "orders": "order keys",
    "processes": "two processes",
    "pushes": "pushes",
    "redrives": "replays that lose connections",
    "copies": "replays of the ledger",
    "reloads": "a reload",
    "replays": "replays",
    "restarts": "an end soon after a start",
    "retries": "retries",
    "schedules": "scheduled publishes",
    "strands": "a process that is cut off and sleeps",
    "taps": "taps",
    "turns": "a busy broker",
    "twins": "ids used twice",
    "unreadable": "a ledger that cannot be read",
}
"""Kind of simulated worlds -> what they have."""


def measured_mutations(*, fixes: bool) -> Iterator[str]:
    """What simulated worlds have shown of mutations: undone fixes, or planted defects."""
    chosen = {name: result for name, result in _mutations().items() if bool(result["commit"]) is fixes}
    found = {name: result for name, result in chosen.items() if result["seed"] is not None}
    seconds = sum(result["seconds"] for result in found.values())
    yield f"{len(found)} of {len(chosen)} were found, in {seconds:,.0f} s of CPU together."
    yield ""
    commit = ("commit",) if fixes else ()
    yield from table(
        ("mutation", *commit, "worlds", "seconds", "seed", "what that world shows"),
        (
            tuple(cell for cell in (*_measured(name, result), str(result["seed"]), result["problem"]) if cell)
            for name, result in found.items()
        ),
    )


def unfound_mutations() -> Iterator[str]:
    """Which mutations no simulated world has shown so far."""
    rows = [_measured(name, result) for name, result in _mutations().items() if result["seed"] is None]
    yield from table(("mutation", "commit", "worlds", "seconds"), rows)


def simulated_runs() -> Iterator[str]:
    """Which worlds were run in the long run, on which code."""
    runs: list[dict[str, Any]] = json.loads(
        (DOCS.parent / "tests/simulation/long_run.json").read_text(encoding="utf-8")
    )
    failed = [seed for run in runs for seed in run["failed"]]
    worlds, hours = sum(run["worlds"] for run in runs), sum(run["cpu"] for run in runs) / 3_600
    yield f"{worlds:,} worlds, {hours:.1f} h of CPU; failed: {', '.join(map(str, failed)) or 'none'}."
    yield ""
    yield from table(
        ("seeds", "commit", "worlds", "a second of a core", "failed"),
        (
            (
                f"{run['first']:,} to {run['first'] + run['worlds'] - 1:,}", f"`{run['code']}`", f"{run['worlds']:,}",
                f"{run['worlds'] / run['cpu']:.1f}", ", ".join(map(str, run["failed"])) or "none",
            )
            for run in runs
        ),
    )  # fmt: skip


def states_hit() -> Iterator[str]:
    """Which faults of simulated worlds have hit which states of messages, and how often."""
    path = DOCS.parent / "tests/simulation/states.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    added = ", and ".join(f"{worlds:,} with `--also {kind}`" for kind, worlds in found["added"].items())
    failed = ", ".join(map(str, found["failed"])) or "none"
    yield f"{found['worlds']:,} worlds, {added}, on `{found['code']}`; failed: {failed}."
    yield ""
    faults = list(enumerate(found["faults"].items(), 1))
    yield from table(
        ("", "fault", "how often"), ((f"**{number}**", fault, f"{row['times']:,}") for number, (fault, row) in faults)
    )
    yield ""
    yield from table(
        ("what something is in", *(f"{number}" for number, _ in faults)),
        (
            (what, *(f"{row['hits'][state]:,}" if row["hits"][state] else "–" for _, (_, row) in faults))
            for state, what in found["states"].items()
        ),
    )
    yield ""
    for fault, reasons in found["empty"].items():
        for state, why in reasons.items():
            yield f"* {fault.capitalize()} while there is {found['states'][state]}: never, for {why}."


def _mutations() -> dict[str, dict[str, Any]]:
    path = DOCS.parent / "tests/simulation/mutations.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _measured(name: str, result: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A mutation, the commit whose fix it undoes, and how many worlds and seconds were run."""
    has = " and ".join(WORLDS[kind] for kind in result["kind"].split(",") if kind)
    worlds = f"{result['worlds']:,}" + f" with {has}" * bool(has)
    worlds += f" from seed {result['first']}" * (result["first"] > 1)
    return name, f"`{result['commit']}`" * bool(result["commit"]), worlds, f"{result['seconds']:.0f}"


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    **{page: partial(settings, page) for page in SETTINGS},
    "errors": error_codes,
    "problems": problems,
    "exit-statuses": exit_statuses,
    "doctor-checks": doctor_checks,
    "limits": limit_table,
    "budgets": budget_table,
    "broker-limits": broker_limits,
    "output-forms": output_forms,
    "reach-options": reach_options,
    "verb-pages": verb_pages,
    **{f"verbs-{page}": partial(verbs, page) for page in VERBS},
    "events": ledger_states,
    "lives": message_lives,
    "transitions": event_transitions,
    "metrics": metrics,
    "trace-spans": trace_spans,
    "trace-attributes": trace_attributes,
    "reload": reload_rules,
    "dialects": dialects,
    "classic-methods": classic_methods,
    "native-methods": native_methods,
    "draft-methods": draft_methods,
    "broker-arguments": broker_arguments,
    "front-operations": front_operations,
    "front-rules": front_rules,
    "routes": routes,
    "scopes": scopes,
    "subscription-scopes": subscription_scopes,
    "translations": translations,
    "losses": losses,
    "denied-addresses": denied_addresses,
    "denied-names": denied_names,
    "outbound-limits": outbound_limits,
    "webhook-statuses": webhook_statuses,
    "webhook-errors": webhook_errors,
    "wait-codes": wait_codes,
    "dead-letter-codes": dead_letter_codes,
    "webhook-schedule": webhook_schedule,
    "breaker": breaker_settings,
    "log-events": lambda: log_columns("events"),
    "log-messages": lambda: log_columns("messages"),
    "spark-read-options": lambda: spark_options(spark_options_module.ReadOptions),
    "helm-values": helm_values,
    "licences": licences,
    "licences-taken": licences_taken,
    "mutations-fixes": partial(measured_mutations, fixes=True),
    "mutations-planted": partial(measured_mutations, fixes=False),
    "mutations-unfound": unfound_mutations,
    "simulated-runs": simulated_runs,
    "states-hit": states_hit,
    "spark-write-options": lambda: spark_options(spark_options_module.WriteOptions),
}
"""Name of the block -> what makes it."""


EXAMPLE = re.compile(r"<!-- example: (?P<file>\S+) -->\n(?:\n```.*?\n```\n)?", re.DOTALL)
LANGUAGES = {".sh": "sh", ".py": "python", ".mjs": "js", ".go": "go", ".java": "java", ".php": "php"}
"""Suffix of an example -> language of its block."""


def example(match: re.Match[str]) -> str:
    """A program of ``docs/examples``, as a block of a page."""
    path = DOCS / "examples" / match["file"]
    text = path.read_text(encoding="utf-8").rstrip()
    return f"<!-- example: {match['file']} -->\n\n```{LANGUAGES[path.suffix]}\n{text}\n```\n"


def render(text: str) -> str:
    """Return a page with its generated tables and its examples as they would be written now."""

    def block(match: re.Match[str]) -> str:
        body = "\n".join(TABLES[match["name"]]()).strip()
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return EXAMPLE.sub(example, BLOCK.sub(block, text))


def main() -> int:
    """Rewrite every page that differs."""
    for page in sorted(DOCS.rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = render(before)
        if before != after:
            page.write_text(after, encoding="utf-8")
            click.echo(f"wrote {page.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
