"""No text of others moves the cursor: every verb against a gateway whose every string is hostile, in each format.

The answers are made from the OpenAPI description, so a new field or route is part of it at once.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner

from gateway.api.about.openapi import document
from gateway.api.app import ROUTES
from gateway.commands import cli

HOSTILE = "<\x1b]0;PWNED\x07\x1bc\x00\x08\x7f\x85\x9b2J\x9d0;x\x9c\u061c\u200e\u200f\u2028\u2029\u202e\u2066\ufeff>"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
OURS = re.compile("\x1b\\[[0-9;]*m|\r\x1b\\[K")
"""Colors, and the line that is drawn over."""
ANSWERS = 3
"""After so many the server refuses everything, so that whoever waits or follows ends."""
WITHOUT_API = {
    "serve": "speaks to nobody", "demo": "its gateway is its own", "migrate": "speaks to the database",
    "backup": "reads the ledger", "restore": "writes the ledger",
    "doctor": "tests/doctor", "probe": "speaks AMQP; below", "completion": "prints what it has",
    "audit export": "reads the ledger", "audit verify": "reads the ledger", "secrets list": "reads the ledger",
    "secrets new": "writes a file", "secrets rotate": "reads the ledger",
}  # fmt: skip
SPARK = ("pipeline run", "pipeline jobs", "pipeline archive", "pipeline doctor", "pipeline reconcile")
"""They start Spark; what they print is printed as by the others."""
MORE: dict[str, tuple[str, ...]] = {
    "explain": ("--to", "0-10"), "keys create": ("--scope", "admin"),
    "pipeline replay": ("--where", "x", "--to", "b/q"), "pipeline transfer": ("--to", "b/q"),
    "pull": ("--max", "2"), "pull --follow": ("--max", "1"),
    "scheduled move": ("--delay", "1"),
    "bindings add": ("--queue", "q"), "bindings remove": ("--queue", "q"),
    "dlq show": ("x",), "dlq redrive": ("--subscription", "x"), "dlq purge": ("--subscription", "x"),
    "replays messages": ("--broker", "b", "--to-broker", "b"), "replays queue": ("--to-broker", "b"),
}  # fmt: skip
"""Verb -> what it needs besides its arguments."""


def leaves(command: click.Command, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(found, context, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS: dict[str, Any] = dict(leaves(cli, click.Context(cli)))
VERBS = [name for name in COMMANDS if name not in WITHOUT_API and not name.startswith(SPARK)] + ["pull --follow"]


class Examples:
    """Values that a schema allows, whose strings are hostile wherever it allows any string."""

    def __init__(self) -> None:
        self.document = json.loads(json.dumps(document(ROUTES)))
        self.pull = self.document["paths"]["/v1/subscriptions/{subscription}:pull"]["post"]["responses"]["200"]
        self.paths = [
            (re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+?", re.escape(path))), operations)
            for path, operations in self.document["paths"].items()
        ]

    def of(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """An example of a schema."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return self.of(self.document["components"]["schemas"][name], depth + 1) if depth < 12 else {}
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.of(schema[several][0], depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][-1]
        kind = schema.get("type")
        kind = kind[0] if isinstance(kind, list) else kind
        match kind:
            case "object":
                found = {name: self.of(inner, depth + 1) for name, inner in schema.get("properties", {}).items()}
                more = schema.get("additionalProperties")
                return found | ({HOSTILE: self.of(more, depth + 1)} if isinstance(more, dict) else {})
            case "array":
                return [self.of(schema.get("items", {}), depth + 1)]
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return True
        return "2026-11-24T12:00:00Z" if schema.get("format") == "date-time" else HOSTILE

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, type and body for a request."""
        for pattern, operations in self.paths:
            operation = operations.get(method.lower())
            if operation is None or pattern.fullmatch(path) is None:
                continue
            if path.endswith(":stream"):
                (item,) = self.of(self.pull["content"]["application/json"]["schema"])["messages"]
                return 200, "application/x-ndjson", json.dumps(item).encode() + b"\n"
            for status, response in sorted(operation["responses"].items(), reverse=path == "/v1/replays"):
                if not status.startswith("2"):
                    continue
                content = response.get("content", {})
                if "application/json" in content:
                    value = self.of(content["application/json"].get("schema", {}))
                    return int(status), "application/json", json.dumps(value).encode()
                if "text/event-stream" in content:
                    value = self.of(content["text/event-stream"].get("schema", {}))
                    value = value if isinstance(value, dict) else self.event()
                    return 200, "text/event-stream", b"id: 1\ndata: " + json.dumps(value).encode() + b"\n\n"
                return int(status), "application/json", b""
        return 404, "application/problem+json", self.problem()

    def event(self) -> Any:
        """One of the events that are followed."""
        return {**self.of({"$ref": "#/components/schemas/MessageEvent"}), "message_id": HOSTILE, "id": HOSTILE}

    def problem(self) -> bytes:
        """A refusal."""
        found = self.of({"$ref": "#/components/schemas/Problem"})
        return json.dumps({**found, "code": HOSTILE, "detail": HOSTILE, "title": HOSTILE, "advice": HOSTILE}).encode()


EXAMPLES = Examples()


class Hostile(ThreadingHTTPServer):
    """Answers all routes; ``how`` says with what."""

    daemon_threads = True
    how = "answers"
    answered = 0


class Handler(BaseHTTPRequestHandler):
    server: Hostile

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        server = self.server
        server.answered += 1
        status, kind, body = 403, "application/problem+json", EXAMPLES.problem()
        if server.answered <= ANSWERS and server.how == "answers":
            status, kind, body = EXAMPLES.answer(self.command, urlsplit(self.path).path)
        elif server.answered <= ANSWERS and server.how == "other JSON":
            kind, body, status = "application/json", json.dumps({HOSTILE: [HOSTILE], "code": 7}).encode(), 200
        elif server.how == "no JSON":
            kind, body, status = "text/plain", HOSTILE.encode(), 200 if server.answered <= ANSWERS else 500
        self.send_response(status, "\x9b31m")
        self.send_header("content-type", kind)
        self.send_header("etag", '"\x9b31m"')
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET  # noqa: N815  # the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def hostile() -> Iterator[Hostile]:
    with Hostile(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def arguments(verb: str, tmp_path: Path) -> list[str]:
    """What a verb is called with."""
    command = COMMANDS[verb.removesuffix(" --follow")]
    found = verb.split()
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.required:
            name = "1" if parameter.type is click.INT else "x"
            if parameter.name == "file":
                file = tmp_path / "x.json"
                file.write_text('{"url": "https://x.example/", "broker": "b", "queue": "q"}', encoding="utf-8")
                name = str(file)
            found.append(name)
    options = {option for parameter in command.params for option in parameter.opts}
    return [*found, *MORE.get(verb, ()), *(["--yes"] if "--yes" in options else [])]


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("how", ["answers", "refusals", "other JSON", "no JSON"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_prints_a_control_character(
    verb: str, how: str, as_json: bool, hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.how, hostile.answered = how, 0
    monkeypatch.setattr("gateway.commands.follow.PAUSE_MIN", 0.01)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    monkeypatch.setenv("GATEWAY_URL", f"http://127.0.0.1:{hostile.server_address[1]}")
    options = ["--json"] if as_json and "--json" in {o for p in _parameters(verb) for o in p.opts} else []
    result = CliRunner().invoke(cli, [*arguments(verb, tmp_path), *options], input="y\n", color=True)
    assert "Usage:" not in result.output, result.output
    assert hostile.answered, result.output
    plain = OURS.sub("", result.output)
    assert FORBIDDEN.search(plain) is None, repr(plain)
    if how in ("answers", "refusals"):  # what is no gateway may end in a traceback, which is escaped: below
        assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)


def _parameters(verb: str) -> list[click.Parameter]:
    found: list[click.Parameter] = COMMANDS[verb.removesuffix(" --follow")].params
    return found


def test_a_traceback_sends_no_control_character() -> None:
    """Its last line is whatever made it fail."""
    code = f"import gateway.commands as c; c.cli.main = lambda **_: int({HOSTILE!r}); c.main([])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 1
    said = done.stderr.decode()
    assert "ValueError: invalid literal" in said
    assert FORBIDDEN.search(said) is None, repr(said)


def test_every_verb_is_here_or_has_a_reason() -> None:
    assert len(VERBS) > 60
    assert set(WITHOUT_API) <= COMMANDS.keys()
