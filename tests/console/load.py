"""``python -m tests.console.load``: the console over 10,000 queues, 10 million rows and 1,000 events a second.

The ledger is filled once and kept in the folder, so that a second run begins at once (:mod:`tests.console.filling`).
The events of the run go to a copy of it: filters look at the newest messages first, and would pass over those of
earlier runs.
Cold means: the gateway has just been started, no file of the ledger is in the memory of the machine, and the browser
has loaded nothing. Each figure is printed with its aim; nothing fails because it is slow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
from playwright.sync_api import Browser, CDPSession, Page, TimeoutError, sync_playwright

from gateway.ledger.db.engine import Database
from gateway.ledger.events import reads
from tests.attack.lab import Gateway
from tests.benchmarks import machine
from tests.benchmarks.__main__ import put
from tests.benchmarks.rows import say
from tests.console import filling
from tests.console.conftest import PATIENCE, PROGRAMS, key_of
from tests.management import fake
from tests.servers.process import cpu_seconds, free_port, identify

ROWS: Final = 10_000_000
QUEUES: Final = 10_000
RATE: Final = 1_000
"""Events a second."""
WINDOW: Final = 15.0
"""How long the CPU of the gateway is watched at a time, in seconds."""
WINDOWS: Final = 3
"""Times with an open console, and as many without, by turns."""
WARM: Final = 60.0
"""Seconds of events after which the memory of the tab should not grow any more."""
FIRST: Final[Mapping[str, str]] = {
    "": ".tiles .tile",
    "queues": "tbody tr",
    "messages": "tbody tr",
    "dead": "tbody tr",
    "schedules": ".empty",
    "search?q=orders-3": "tbody tr",
}
"""View -> what is there once it shows something."""
FIRST_VIEWS: Final = 5
"""How often each is opened."""
SHOWN: Final = {**FIRST, "events": "tbody tr"}
AIMS: Final = {"first": 1.0, "filter": 0.3, "cpu": 2.0, "memory": 10.0}
"""Seconds, seconds, per cent of a core, per cent of growth."""


@dataclass
class Figure:
    """A line of the table."""

    what: str
    value: str
    aim: str
    met: bool | None
    """None: there is no aim."""


@dataclass
class Lab:
    """A gateway over a full ledger, and a browser."""

    url: str
    gateway: Gateway
    database: Database
    folder: Path
    """Where the files of the database are."""
    client: httpx.Client
    browser: Browser
    figures: list[Figure] = field(default_factory=list)

    def tell(self, what: str, value: str, aim: str = "", met: bool | None = None) -> None:
        """Add a line, and say it."""
        self.figures.append(Figure(what, value, aim, met))
        say(f"  {what}: {value}{'' if met is None else ', met' if met else ', MISSED'}")

    def pid(self) -> int:
        """Of the gateway."""
        assert self.gateway.process is not None
        return self.gateway.process.pid

    def start(self, *, cold: bool) -> None:
        """Start the gateway, and wait until it knows its queues."""
        if self.gateway.running:
            self.gateway.terminate(120)
        if cold:
            self.forget_files()
        self.gateway.start()
        while self.client.get("/v1/caller").status_code != 200:
            time.sleep(0.1)

    def forget_files(self) -> None:
        """Have the system forget what it has read of the ledger's files."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                with contextlib.suppress(OSError):
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)

    def events(self) -> int:
        """How many there were ever."""
        engine = self.database.readers()
        try:
            with engine.connect() as connection:
                return sum(reads.end(connection).values())
        finally:
            engine.dispose()


# ------------------------------------------------------------------------------------------------------- figures


STOPWATCH: Final = """
(() => {
  const seen = {};
  const note = (name, at) => { if (!(name in seen)) seen[name] = at; };
  const painted = (name) => requestAnimationFrame(() => setTimeout(() => note(name, performance.now())));
  addEventListener("submit", () => note("pressed", performance.now()), true);
  new MutationObserver(() => {
    if (document.getElementById("key")) painted("asked");
    if ("pressed" in seen && document.querySelector("main VIEW")) painted("shown");
  }).observe(document, { childList: true, subtree: true });
  globalThis.stopwatch = seen;
})();
"""
"""Run in a page before its own scripts: milliseconds since its address was entered at which it asked for a key,
somebody pressed *Log in*, and the view was there, each as painted."""


def open_view(lab: Lab, view: str) -> tuple[Page, float]:
    """A page of a browser that has loaded nothing, and the seconds from the address to the first view, without those in
    which somebody types the key. The page itself takes the times: what drives it would add its own."""
    context = lab.browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE * 4)
    page = context.new_page()
    page.add_init_script(STOPWATCH.replace("VIEW", SHOWN[view]))
    page.goto(f"{lab.url}/console#/{view}", wait_until="commit")
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    try:
        page.locator(f"main {SHOWN[view]}").first.wait_for()
        page.wait_for_function("'shown' in stopwatch")
    except TimeoutError:
        page.screenshot(path=lab.folder.parent / "not-shown.png")
        raise
    took = page.evaluate("stopwatch.asked + stopwatch.shown - stopwatch.pressed")
    return page, float(took) / 1e3


def first_views(lab: Lab) -> None:
    """Each view, cold: the median of some times, and the least and the most. The browser has shown something else
    before, since it is slow with the first page after its start."""
    lab.start(cold=False)
    with lab.browser.new_context() as other:
        other.new_page().goto(f"{lab.url}/v1/login")
    for view in FIRST:
        took = []
        for _ in range(FIRST_VIEWS):
            lab.start(cold=True)
            page, seconds = open_view(lab, view)
            page.context.close()
            took.append(seconds)
        middle = statistics.median(took)
        value = f"{middle:.2f} s ({min(took):.2f} to {max(took):.2f})"
        lab.tell(f"first view, cold: {view or 'overview'}", value, "1 s", middle <= AIMS["first"])


def filters(lab: Lab) -> None:
    """What is asked of lists: the first time, and the median of five more."""
    middle = datetime.now(UTC) - timedelta(days=filling.DAYS / 2)
    window = {"since": middle.isoformat(), "until": (middle + timedelta(minutes=10)).isoformat()}
    old = lab.client.get("/v1/messages", params={**window, "limit": 1}).json()["messages"][0]
    number = old["properties"]["message_id"]
    dead = {"state": "dead", "newest": "true", "limit": "200"}
    asked: tuple[tuple[str, str, dict[str, str], bool], ...] = (
        ("messages, the newest", "messages", {}, True),
        ("messages by id", f"messages/{old['id']}", {}, True),
        ("messages by time", "messages", window, True),
        ("messages by routing key", "messages", {"routing_key": "orders-3"}, True),
        ("messages by routing key and time", "messages", {"routing_key": "orders-3", **window}, True),
        ("messages by broker", "messages", {"broker": "qpid"}, True),
        ("messages by state", "messages", {"state": "acknowledged"}, True),
        ("messages by subscription and time", "messages", {"subscription": "orders-3", **window}, True),
        ("messages by message_id and time", "messages", {"message_id": number, **window}, True),
        ("messages by header and time", "messages", {"header": number.replace("order-", "order="), **window}, True),
        ("dead letters by reason", "dead-letters", {}, True),
        ("dead letters by subscription", "deliveries", {**dead, "subscription": "orders-3"}, True),
        ("dead letters by code", "deliveries", {**dead, "code": "expired"}, True),
        ("queues by part of a name", "queues", {"search": "0777", "limit": "500"}, True),
        ("statistics of a day by kind", "statistics", {"by": "kind", "limit": "1000",
                                                       "since": (middle).isoformat()}, True),
        ("messages by a routing key that none has", "messages", {"routing_key": "nowhere"}, False),
        ("messages by an old message_id, without a time", "messages", {"message_id": number}, False),
        ("search for an old message_id", "search", {"q": number}, False),
    )  # fmt: skip
    lab.start(cold=True)
    for what, path, query, aimed in asked:
        target = f"/v1/{path}?{urlencode({'limit': '200', **query} if path == 'messages' else query)}"
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            answer = lab.client.get(target)
            seconds.append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
        found = next((len(each) for each in answer.json().values() if isinstance(each, list)), 0)
        reached = answer.json().get("reached") or next(
            (each["reached"] for each in answer.json().get("kinds", ()) if each["reached"]), None
        )
        value = f"{seconds[0] * 1e3:.0f} ms, then {statistics.median(seconds[1:]) * 1e3:.0f} ms; {found} rows"
        if not aimed and reached:
            value += f", looked back to {reached[:19]}"
        lab.tell(what, value, "300 ms" if aimed else "", max(seconds) <= AIMS["filter"] if aimed else None)


def gateway_share(lab: Lab, view: str, what: str, meanwhile: Callable[[], None] = lambda: None) -> None:
    """The CPU that an open console takes of the gateway, as the median of differences of windows with and without."""
    shares = []
    for _ in range(WINDOWS):
        found = []
        for is_open in (False, True):
            meanwhile()
            with opened(lab, view) if is_open else contextlib.nullcontext():
                time.sleep(2)
                before = cpu_seconds([identify(lab.pid())])
                time.sleep(WINDOW)
                found.append((cpu_seconds([identify(lab.pid())]) - before) / WINDOW * 100)
        shares.append(found)
    without = statistics.median(first for first, _ in shares)
    share = statistics.median(second - first for first, second in shares)
    value = f"{share:.1f} % of a core, beside {without:.1f} %"
    lab.tell(f"an open console, {view or 'overview'}, {what}", value, "2 %", share <= AIMS["cpu"])


@contextlib.contextmanager
def opened(lab: Lab, view: str) -> Iterator[Page]:
    """A console that shows a view while the context lasts."""
    page, _ = open_view(lab, view)
    try:
        yield page
    finally:
        page.context.close()


class Traffic:
    """Messages that are published over HTTP and bridged to another version, so that so many events a second happen."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        for queue in ("live", "live-moved"):
            settings = {"durable": True, "arguments": {"x-max-length": 10_000}}
            self._call("PUT", f"/v1/brokers/shop/queues/{queue}", settings)
        self._call("PUT", "/v1/subscriptions/live", {"broker": "qpid", "queue": "live-moved", "push": ""})
        bridge = {
            "source": {"broker": "shop", "queue": "live"},
            "target": {"broker": "qpid", "exchange": "", "routing_key": "live-moved"},
        }
        self._call("PUT", "/v1/bridges/live", bridge)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._lab.client.request(method, path, json=body)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        headers = {"authorization": f"Bearer {key_of('root')}"}
        engine = self._lab.database.readers()
        path = "/v1/brokers/shop/exchanges/amq.default:publish"
        with httpx.Client(base_url=self._lab.url, headers=headers, trust_env=False, timeout=60) as client:
            with engine.connect() as connection:
                first = sum(reads.end(connection).values())
            began = time.monotonic()
            number = 0
            each = 4.0  # events of a message, as far as is known
            while not self._ended.wait(0.1):
                due = (time.monotonic() - began + 0.1) * RATE
                with engine.connect() as connection:
                    there = sum(reads.end(connection).values()) - first
                if number > 1_000:
                    each = max(1.0, there / number)
                missing = min(200, int(due / each) - number)
                if missing > 0:
                    messages = [
                        {
                            "routing_key": "live",
                            "payload": {"order": number + place, "total": 12.5},
                            "properties": {"message_id": f"live-{number + place}"},
                        }
                        for place in range(missing)
                    ]
                    answer = client.post(path, json={"messages": messages})
                    assert answer.status_code == 207, answer.text
                    pulled = client.post("/v1/subscriptions/live:pull", json={"max_messages": 200, "wait_seconds": 0})
                    acks = [message["ack_id"] for message in pulled.json()["messages"]]
                    if acks:
                        client.post("/v1/subscriptions/live:acknowledge", json={"ack_ids": acks})
                    number += missing
        engine.dispose()


def heap(session: CDPSession) -> tuple[int, int]:
    """Bytes that the tab's scripts hold once the garbage is gone, and nodes of the page."""
    session.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return int(found["JSHeapUsedSize"]), int(found["Nodes"])


class Memory:
    """What a tab holds, over time."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable")
        self._samples: list[int] = []

    def sample(self) -> None:
        """Look now."""
        octets, nodes = heap(self._session)
        self._samples.append(octets)
        say(f"  the tab holds {octets / 2**20:.2f} MiB, {nodes} nodes")

    def told(self) -> tuple[str, float]:
        """The first quarter beside the last one, and the growth in per cent."""
        quarter = max(1, len(self._samples) // 4)
        before, after = statistics.median(self._samples[:quarter]), statistics.median(self._samples[-quarter:])
        growth = (after / before - 1) * 100
        return f"{before / 2**20:.1f} MiB, at the end {after / 2**20:.1f} MiB ({growth:+.0f} %)", growth


def loaded(lab: Lab, minutes: float) -> None:
    """So many minutes of events: memory of a tab that shows them all, the CPU of another console, the rate."""
    with Traffic(lab):
        end = time.monotonic() + minutes * 60
        page, _ = open_view(lab, "events")
        before, began = lab.events(), time.monotonic()
        page.wait_for_timeout(min(WARM, minutes * 15) * 1e3)
        tab = Memory(page)
        for view in ("", "queues", "messages", "events"):
            if time.monotonic() < end:
                gateway_share(lab, view, f"{RATE:,} events a second", tab.sample)
        while time.monotonic() < end:
            tab.sample()
            page.wait_for_timeout(min(20, end - time.monotonic() + 0.1) * 1e3)
        tab.sample()
        rate = (lab.events() - before) / (time.monotonic() - began)
        page.context.close()
    value, growth = tab.told()
    lab.tell(f"memory of the tab, live events, {minutes:g} minutes", value, "flat", growth <= AIMS["memory"])
    lab.tell("events a second meanwhile", f"{rate:,.0f}", "1,000", rate >= 0.98 * RATE)


# ---------------------------------------------------------------------------------------------------------- run


def inventory() -> list[dict[str, Any]]:
    """What RabbitMQ tells of 10,000 queues."""
    return [
        {
            "name": f"queue-{number:05}",
            "messages": number % 700,
            "messages_ready": number % 700,
            "messages_unacknowledged": number % 3,
            "consumers": number % 5,
            "type": "quorum",
            "durable": True,
            "state": "running",
            "arguments": {"x-dead-letter-exchange": "dead"},
            "message_stats": {"publish_details": {"rate": 1.5}, "deliver_get_details": {"rate": 1.4}},
        }
        for number in range(QUEUES)
    ]


@contextlib.contextmanager
def management() -> Iterator[str]:
    """The URL of a management API with those queues."""
    rows = inventory()
    pages = [
        json.dumps({
            "items": rows[begin : begin + 500], "page": begin // 500 + 1, "page_count": QUEUES // 500,
            "total_count": QUEUES,
        }).encode()
        for begin in range(0, QUEUES, 500)
    ]  # fmt: skip

    def told(target: str) -> fake.Answer:
        page = parse_qs(urlsplit(target).query).get("page", ["0"])[0]
        return (200, pages[int(page) - 1]) if int(page) else (404, {"error": "Object Not Found"})

    server = fake.Management(told)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> int:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        return int(listener.sockets[0].getsockname()[1])

    server.port = asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    try:
        yield server.url
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextlib.contextmanager
def lab(url: str, files: Path, browser: Browser) -> Iterator[Lab]:
    """A gateway over this ledger, whose files are there."""
    folder = Path(tempfile.mkdtemp(prefix="gateway-console-"))
    port = free_port()
    own = f"amqp://guest:guest@127.0.0.1:{port}/?version="
    with management() as queues:
        gateway = Gateway(
            folder,
            {
                "data_dir": str(folder / "data"),
                "embedded": {"enabled": True, "port": port},
                "brokers": {
                    "shop": {"url": f"{own}0-9-1", "management": queues},
                    "legacy": {"url": f"{own}0-8"},
                    "qpid": {"url": f"{own}0-10"},
                },
                "ledger": {"url": url, "headers": ["order"]},
                "api_keys": [{"name": "root", "key": key_of("root"), "scopes": ["admin"]}],
            },
        )
        base = f"http://127.0.0.1:{gateway.port}"
        headers = {"authorization": f"Bearer {key_of('root')}"}
        with httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=120) as client:
            try:
                yield Lab(base, gateway, Database(url), files, client, browser)
            finally:
                gateway.close()
                shutil.rmtree(folder, ignore_errors=True)


def measure(found: Lab, minutes: float) -> list[Figure]:
    """All figures of a database; those under load where ``minutes`` is not 0."""
    first_views(found)
    filters(found)
    found.start(cold=False)
    time.sleep(15)
    gateway_share(found, "", "nothing happens")
    if minutes:
        loaded(found, minutes)
    found.gateway.terminate(120)
    return found.figures


def table(figures: Mapping[str, Sequence[Figure]]) -> str:
    """What is printed."""
    lines = []
    for database, those in figures.items():
        lines += ["", database, "-" * len(database)]
        for each in those:
            verdict = "" if each.met is None else "met" if each.met else "MISSED"
            lines.append(f"{each.what:<56} {each.value:<44} {each.aim:<8} {verdict}".rstrip())
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.console.load", description=__doc__)
    parser.add_argument("databases", nargs="*", default=["sqlite", "postgresql"], metavar="DATABASE")
    parser.add_argument("--rows", type=int, default=ROWS, help="of messages and events (10 million)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of events, on the first database (10)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "console-load", help="kept")
    parser.add_argument("--fill", action="store_true", help="only fill the ledgers")
    parser.add_argument("--page", type=Path, help="put what is printed into the block of a page as well")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    given = sys.argv[1:] if arguments is None else arguments
    lines = list(machine.header(["python", "-m", "tests.console.load", *map(shlex.quote, given)]))
    figures: dict[str, list[Figure]] = {}
    with contextlib.ExitStack() as stack:
        urls = {}
        if "sqlite" in options.databases:
            urls["SQLite"] = filling.sqlite(options.folder / "sqlite", options.rows)
        if "postgresql" in options.databases:
            server = filling.KeptPostgreSQL(options.folder / "postgresql")
            stack.callback(server.halt)
            urls["PostgreSQL"] = filling.postgresql(server.start(), options.rows)
        if options.fill:
            return 0
        if options.minutes and urls:  # so that the next run finds the ledger as it was filled
            first = next(iter(urls))
            urls[first] = (
                filling.sqlite_copy(urls[first]) if first == "SQLite" else filling.postgresql_copy(server, urls[first])
            )
        browser = stack.enter_context(chromium())
        for name, url in urls.items():
            say(f"── {name}")
            with lab(url, options.folder / name.lower(), browser) as found:
                figures[name] = measure(found, options.minutes if name == next(iter(urls)) else 0.0)
    lines += [f"ended     load average {machine.load()}", table(figures), ""]
    text = "\n".join(lines)
    print(text, flush=True)
    if options.page is not None:
        options.page.write_text(put(options.page.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "no Chromium was found: run tests/servers/install.sh"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--disable-gpu"])
        yield browser
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
