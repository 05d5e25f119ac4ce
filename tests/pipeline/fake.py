"""A gateway that serves made-up logs over real HTTP, and can do what no real one does when it is asked: cut answers
off, send fewer rows than it said, fail, dawdle, forget.

What it says is what the real one says; ``test_source_service.py`` asks both. Rows are made when they are asked for,
from their shard and number, so a log of a million rows costs nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source.conform import arrow_schema

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
DAY = 1_767_225_600_000_000
"""2026-01-01 in microseconds since 1970: when row 0 was made. Each row is 1,001 microseconds after the one before."""
BATCH = 4_096
SILENCE = 60.0


@dataclass
class Log:
    """One shard of one log."""

    head: int = 0
    floor: int = 1
    missing: set[int] = field(default_factory=set)
    """Rows that are not there, and nobody knows it."""

    def numbers(self, after: int, upto: int) -> list[int]:
        """The rows of a range."""
        return [number for number in range(after + 1, upto + 1) if number not in self.missing]


@dataclass
class Fault:
    """What goes wrong with requests to paths like this."""

    path: str
    times: int
    status: int = 0
    """Answer with this status."""
    cut: int = -1
    """Hang up after so many octets of the answer's body."""
    fewer: int = 0
    """Send so many rows less than was said."""
    delay: float = 0.0
    """Wait so long first, in seconds."""
    after: bool = False
    """Hang up after the request was carried out, without an answer."""
    octets: bytes | None = None
    """Answer with these."""
    told: int = 0
    """Say that there are so many rows more than the range has numbers."""
    run: Callable[[], None] | None = None
    """Do this first."""
    then: Callable[[], None] | None = None
    """Do this when the request has been carried out, before the answer."""


def row(log: str, shard: int, number: int) -> dict[str, Any]:
    """The row of this number; times are microseconds."""
    body = f"body {shard} {number}".encode()
    at = DAY + number * 1_001
    common = {
        "shard": shard, "sequence": number, "message_id": f"00000000-0000-7000-{shard:04x}-{number:012x}",
        "broker": f"broker-{number % 3}", "version": ("0-8", "0-9-1", "0-10")[number % 3], "accepted_at": at,
        "exchange": f"exchange-{number % 5}", "routing_key": f"key.{number % 7}", "size": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }  # fmt: skip
    if log == "events":
        return common | {
            "kind": "confirmed" if number % 2 else "delivered", "at": at, "detail": "{}", "source_broker": "orders",
            "source_version": "0-9-1", "origin": "http",
        }  # fmt: skip
    return common | {
        "tap": f"tap-{number % 2}", "queue": f"queue-{number % 4}", "redelivered": number % 11 == 0,
        "origin_id": f"id-{number}", "properties": '{"properties": {"delivery_mode": 2}, "headers": {}}', "body": body,
    }  # fmt: skip


def batch_of(log: str, shard: int, numbers: list[int], names: list[str]) -> pa.RecordBatch:
    """These rows as Arrow."""
    rows = [row(log, shard, number) for number in numbers]
    schema = arrow_schema(log, names)
    return pa.RecordBatch.from_arrays(
        [pa.array([each[name] for each in rows], schema.field(name).type) for name in names], schema=schema
    )


def line_of(log: str, shard: int, number: int, names: list[str]) -> bytes:
    """A row as NDJSON."""
    found = row(log, shard, number)
    for name in names:
        if isinstance(found[name], bytes):
            found[name] = base64.b64encode(found[name]).decode()
        if name in ("at", "accepted_at"):
            seconds, micro = divmod(found[name], 1_000_000)
            found[name] = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{micro:06d}Z"
    return json.dumps({name: found[name] for name in names}).encode() + b"\n"


class Problem(Exception):
    def __init__(self, status: int, code: str, detail: str, **extra: Any) -> None:
        self.status = status
        self.document = {"status": status, "code": code, "title": code, "detail": detail, **extra}


class FakeGateway:
    """``with FakeGateway() as gateway``: it listens at ``gateway.url``."""

    def __init__(self, key: str = "", arrow: bool = True, trims: bool = False, now: Callable[[], float] | None = None):
        self.key = key
        self.arrow = arrow
        self.trims = trims
        """Retention takes at once what no cursor needs."""
        self.now = now or time.monotonic
        self.logs: dict[str, dict[int, Log]] = {"events": {}, "messages": {}}
        self.cursors: dict[str, dict[str, Any]] = {}
        self.published: dict[str, dict[str, Any]] = {}
        """Key -> the message that was published first under it."""
        self.order: list[str] = []
        self.received = 0
        self.refuses: Callable[[dict[str, Any]], tuple[int, str, bool] | None] = lambda message: None
        self.finals: set[str] = set()
        """Keys of messages that were refused for good."""
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.headers: list[dict[str, str]] = []
        self.queries: list[dict[str, str]] = []
        self.paths: list[str] = []
        """As they came, percent-encoding and all."""
        self.batch_max = 10_000
        self.lock = threading.RLock()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    # ------------------------------------------------------------------------------------------------ running

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FakeGateway:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def up(self) -> None:
        """Listen, at the same port as before."""
        ours = self

        class Handler(_Handler):
            gateway = ours

        self._server = _Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.hang_up()
            self._server = None

    def add(self, log: str, shard: int, rows: int) -> None:
        """Append rows."""
        with self.lock:
            self.logs[log].setdefault(shard, Log()).head += rows

    def fail(self, path: str, times: int = 1, **how: Any) -> Fault:
        """From now on, for so many requests."""
        fault = Fault(path, times, **how)
        self.faults.append(fault)
        return fault

    # ------------------------------------------------------------------------------------------------ requests

    def head(self, log: str) -> dict[str, Any]:
        shards = sorted(self.logs[log].items())
        return {
            "log": log,
            "shards": [{"shard": shard, "floor": each.floor, "head": each.head} for shard, each in shards],
            "position": {str(shard): each.head for shard, each in shards},
            "start": {str(shard): each.floor - 1 for shard, each in shards},
            "arrow": self.arrow,
        }

    def range(self, query: dict[str, str], accept: str) -> tuple[Log, dict[str, Any]]:
        log, shard = query["log"], int(query["shard"])
        after, upto = int(query["after"]), int(query["upto"])
        there = self.logs[log].get(shard, Log())
        if upto - after > 1_000_000:
            raise Problem(422, "invalid_parameter", "a range has at most 1000000 numbers")
        if after < there.floor - 1:
            raise Problem(410, "log_range_gone", f"{after + 1} to {there.floor - 1} of shard {shard} are gone")
        if upto > there.head:
            raise Problem(409, "log_range_ahead", f"shard {shard} ends at {there.head}")
        if ARROW in accept and not self.arrow:
            raise Problem(406, "not_acceptable", "this gateway sends no Arrow: install amqp-gateway[arrow]")
        names = [each.name for each in COLUMNS[log]]
        if "columns" in query:
            asked = query["columns"].split(",")
            names = [name for name in names if name in asked]
        self.queries.append(query)
        return there, {"log": log, "shard": shard, "after": after, "upto": upto, "names": names}

    def cursor(self, method: str, name: str, verb: str, body: dict[str, Any]) -> Any:
        with self.lock:
            return self._cursor(method, name, verb, body)

    def _cursor(self, method: str, name: str, verb: str, body: dict[str, Any]) -> Any:
        found = self.cursors.get(name)
        if verb == "claim":
            if found is None:
                start = body["start"]
                if isinstance(start, str):
                    head = self.head(body["log"])
                    start = head["start"] if start == "earliest" else head["position"]
                found = self.cursors[name] = {
                    "name": name, "log": body["log"], "position": dict(start), "owner": "", "epoch": 0, "heard": 0.0
                }  # fmt: skip
            fresh = found["owner"] and self.now() - found["heard"] < SILENCE
            if fresh and found["owner"] != body["owner"] and not body["take_over"]:
                raise Problem(409, "cursor_owned", f"the cursor {name} belongs to {found['owner']} since 10:15:00Z")
            found["owner"] = body["owner"]
            found["epoch"] += 1
            found["heard"] = self.now()
            return found
        if found is None:
            raise Problem(404, "no_such_resource", f"there is no cursor {name}")
        if method == "GET":
            return found
        if found["epoch"] != body["epoch"] or found["owner"] != body["owner"]:
            raise Problem(409, "cursor_owned", f"the cursor {name} belongs to {found['owner'] or 'nobody'} now")
        found["heard"] = self.now()
        if verb == "release":
            found["owner"] = ""
            return found
        for shard, last in body["position"].items():
            found["position"][shard] = max(last, found["position"].get(shard, 0))
        if self.trims:
            self._trim(found["log"])
        return found

    def _trim(self, log: str) -> None:
        cursors = [each["position"] for each in self.cursors.values() if each["log"] == log]
        for shard, there in self.logs[log].items():
            there.floor = max(there.floor, min(each.get(str(shard), 0) for each in cursors) + 1)

    def publish(self, exchange: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if len(messages) > self.batch_max:
            raise Problem(413, "body_too_large", f"{len(messages)} messages; a batch holds at most {self.batch_max}")
        results = []
        with self.lock:
            for message in messages:
                self.received += 1
                key = message["key"]
                refused = self.refuses(message)
                if refused is not None:
                    status, code, retryable = refused
                    problem = {"code": code, "detail": f"no {code}", "retryable": retryable, "status": status}
                    result = {"status": status, "problem": problem}
                    if not retryable:
                        result["key"] = "repeated" if key in self.finals else "done"
                        self.finals.add(key)
                    results.append(result)
                elif key in self.published:
                    results.append({"status": 200, "id": key, "key": "repeated"})
                else:
                    self.published[key] = {"exchange": exchange, **message}
                    self.order.append(key)
                    results.append({"status": 200, "id": key, "key": "done", "routed": True})
        return {"results": results}

    def told(self, name: str = "c") -> dict[str, int]:
        """How far a cursor is, of the shards in which it is anywhere; nowhere, if there is none."""
        with self.lock:
            position = self.cursors.get(name, {}).get("position", {})
            return {shard: last for shard, last in position.items() if last}

    def bodies(self) -> list[bytes]:
        """What was published, in order."""
        return [base64.b64decode(self.published[key]["payload"]) for key in self.order]

    def fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fnmatchcase(path, fault.path) and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[Any] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, address)

    def handle_error(self, request: Any, address: Any) -> None:
        """Clients may hang up."""

    def hang_up(self) -> None:
        for connection in self.connections:
            try:
                connection.shutdown(2)
            except OSError:
                pass


class _Cut(Exception):
    """Hang up now."""


class _Handler(BaseHTTPRequestHandler):
    gateway: FakeGateway
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not on standard error."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815  # the server's names

    def _answer(self) -> None:
        gateway = self.gateway
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        gateway.paths.append(parts.path)
        gateway.seen[f"{self.command} {path}"] += 1
        gateway.headers.append({name.lower(): value for name, value in self.headers.items()})
        octets = self.rfile.read(int(self.headers.get("content-length", 0)))
        fault = gateway.fault(path) or Fault(path, 0)
        try:
            if fault.run is not None:
                fault.run()
            time.sleep(fault.delay)
            if fault.octets is not None:
                self._send(200, {"content-type": "text/html"}, fault.octets)
                return
            if fault.status:
                raise Problem(
                    fault.status, "internal" if fault.status >= 500 else "invalid_request", "as it was asked to"
                )
            if gateway.key and self.headers.get("authorization") != f"Bearer {gateway.key}":
                raise Problem(401, "unauthorized", "no valid API key")
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            self._route(path, query, json.loads(octets) if octets else {}, fault)
        except Problem as problem:
            document = json.dumps(problem.document).encode()
            self._send(problem.status, {"content-type": "application/problem+json"}, document)
        except (_Cut, BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, path: str, query: dict[str, str], body: Any, fault: Fault) -> None:
        gateway = self.gateway
        if path == "/v1/log/head":
            with gateway.lock:
                self._json(gateway.head(query["log"]), fault)
        elif path == "/v1/log":
            self._rows(query, fault)
        elif path.startswith("/v1/log/cursors/"):
            name, _, verb = path.removeprefix("/v1/log/cursors/").partition(":")
            self._json(gateway.cursor(self.command, name, verb, body), fault)
        elif path.endswith(":publish"):
            exchange = path.rpartition("/")[2].removesuffix(":publish")
            self._json(gateway.publish(exchange, body["messages"]), fault, 207)
        else:
            raise Problem(404, "route_not_found", f"no resource at {path}")

    def _json(self, document: Any, fault: Fault, status: int = 200) -> None:
        if fault.then is not None:
            fault.then()
        if fault.after:
            raise _Cut
        self._send(status, {"content-type": "application/json"}, json.dumps(document).encode(), fault.cut)

    def _send(self, status: int, headers: dict[str, str], octets: bytes, cut: int = -1) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(octets)))
        self.end_headers()
        self.wfile.write(octets if cut < 0 else octets[:cut])
        if cut >= 0:
            raise _Cut

    def _rows(self, query: dict[str, str], fault: Fault) -> None:
        accept = self.headers.get("accept", "")
        with self.gateway.lock:
            log, asked = self.gateway.range(query, accept)
        numbers = log.numbers(asked["after"], asked["upto"])
        told = asked["upto"] - asked["after"] + fault.told
        kept = numbers[: len(numbers) - fault.fewer]
        for name in ("tap", "broker", "kind"):
            if name in query:
                wanted = query[name].split(",")
                kept = [each for each in kept if row(asked["log"], asked["shard"], each)[name] in wanted]
        self.send_response(200)
        self.send_header("content-type", ARROW if ARROW in accept else NDJSON)
        self.send_header("log-range-rows", str(told))
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        make = self._arrow if ARROW in accept else self._lines
        sent = 0
        for octets in make(asked, kept):
            if fault.cut >= 0 and sent + len(octets) > fault.cut:
                octets = octets[: fault.cut - sent]
                if octets:
                    self._chunk(octets)
                raise _Cut
            sent += len(octets)
            self._chunk(octets)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, octets: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(octets), octets))

    def _lines(self, asked: dict[str, Any], numbers: list[int]) -> Iterator[bytes]:
        for start in range(0, len(numbers), BATCH):
            part = numbers[start : start + BATCH]
            yield b"".join(line_of(asked["log"], asked["shard"], number, asked["names"]) for number in part)

    def _arrow(self, asked: dict[str, Any], numbers: list[int]) -> Iterator[bytes]:
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, arrow_schema(asked["log"], asked["names"])) as writer:
            for start in range(0, len(numbers), BATCH):
                part = numbers[start : start + BATCH]
                writer.write_batch(batch_of(asked["log"], asked["shard"], part, asked["names"]))
                yield sink.getvalue()
                sink.seek(0)
                sink.truncate()
        yield sink.getvalue()


@contextmanager
def fake(**how: Any) -> Iterator[FakeGateway]:
    """One that is there for the length of a block."""
    with FakeGateway(**how) as gateway:
        yield gateway
