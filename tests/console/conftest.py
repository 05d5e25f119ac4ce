"""A gateway with the embedded broker and something in it, and a browser whose every page is watched."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests import canary
from tests.attack.lab import Gateway
from tests.servers.process import free_port

BROKER: Final = "local-0-9-1"
PATIENCE: Final = 30_000
"""How long a page may take to show something, in milliseconds: this says that it hangs, not that it is slow."""
expect.set_options(timeout=PATIENCE)
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
KEYS: Final = {
    "root": ["admin"],
    "reader": ["history", f"broker:{BROKER}"],
    "publisher": [f"publish:{BROKER}/amq.default"],
}
"""Client -> its scopes."""
WATCH: Final = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""


def key_of(client: str) -> str:
    """Return a client's key; nothing that the gateway says may have it."""
    return f"{client}-{canary.CANARY}"


class Receiver(ThreadingHTTPServer):
    """An endpoint that takes every message but those whose body ``fails``."""

    daemon_threads = True

    def __init__(self, fails: Callable[[bytes], bool] = lambda _: False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fails = fails
        self.got: list[bytes] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/in"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.got.append(body)
        self.send_response(500 if self.server.fails(body) else 204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def receiving(*receivers: Receiver) -> Iterator[None]:
    """They answer while the context lasts."""
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in receivers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each, thread in zip(receivers, threads, strict=True):
            each.shutdown()
            each.server_close()
            thread.join()


@pytest.fixture(scope="session")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    with receiving(server):
        yield server


@dataclass
class Served:
    """A gateway, and a client that may do everything."""

    url: str
    client: httpx.Client
    process: Gateway
    receiver: Receiver | None
    """An endpoint, where there is one."""
    broker: str = BROKER
    """Where queues are declared."""
    front_port: int = 0
    """Of the front ``legacy``, where there is one."""

    @property
    def endpoint(self) -> str:
        """Where the endpoint is."""
        assert self.receiver is not None
        return self.receiver.url

    def call(self, method: str, path: str, body: Any = None, status: tuple[int, ...] = (200, 201, 202, 204)) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.status_code in status, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def queue(self, name: str, **settings: Any) -> None:
        self.call("PUT", f"/v1/brokers/{self.broker}/queues/{name}", settings)

    def dead_letters(self, name: str, count: int) -> None:
        """Subscription and queue of that name, with so many dead letters."""
        self.queue(name)
        self.call("PUT", f"/v1/subscriptions/{name}", {"broker": self.broker, "queue": name, "lease": "ledger"})
        for number in range(count):
            self.publish(name, f"dead {number}")
        ids: list[str] = []
        while len(ids) < count:
            body = {"max_messages": count, "wait_seconds": 5}
            found = self.call("POST", f"/v1/subscriptions/{name}:pull", body)["messages"]
            ids += [each["ack_id"] for each in found]
        self.call("POST", f"/v1/subscriptions/{name}:reject", {"ack_ids": ids, "reason": "cannot be read"})

    def publish(self, key: str, payload: Any, **more: Any) -> str:
        body = {"routing_key": key, "payload": payload, **more}
        found = self.call("POST", f"/v1/brokers/{self.broker}/exchanges/amq.default:publish", body)
        return str(found["id"])


@contextmanager
def serving(gateway: Gateway, receiver: Receiver | None = None, broker: str = BROKER) -> Iterator[Served]:
    """A gateway that knows the key of ``root`` runs while the context lasts."""
    gateway.start()
    url = f"http://127.0.0.1:{gateway.port}"
    headers = {"authorization": f"Bearer {key_of('root')}"}
    try:
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
            yield Served(url, client, gateway, receiver, broker)
        gateway.terminate()
    finally:
        gateway.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("console")
    front_port = free_port()
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "embedded": {"enabled": True, "port": free_port()},
            "outbound": {"allow": ["127.0.0.1/32"]},
            "ledger": {"headers": ["order"]},
            "fronts": {
                "legacy": {
                    "port": front_port,
                    "broker": "local-0-10",
                    "users": [{"name": "till", "password": "till"}],
                    "versions": ["0-9-1"],
                }
            },
            "api_keys": [{"name": name, "key": key_of(name), "scopes": scopes} for name, scopes in KEYS.items()],
        },
    )
    with serving(gateway, receiver) as served:
        served.front_port = front_port
        yield served


@pytest.fixture(scope="package")  # its event loop runs until the fixture ends, and no other one may run meanwhile
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "no Chromium was found: run tests/servers/install.sh"
    with sync_playwright() as playwright:
        # Nothing but this machine is ever looked up.
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        found = playwright.chromium.launch(executable_path=program, args=[rules, "--disable-gpu"])
        yield found
        found.close()


@dataclass
class Watched:
    """What pages did that they may not."""

    origin: str
    foreign: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def request(self, request: Request) -> None:
        if request.url.startswith("data:"):
            return
        if not request.url.startswith(f"{self.origin}/"):
            self.foreign.append(request.url)
        if canary.CANARY in request.url:
            self.secrets.append(request.url)

    def console(self, message: ConsoleMessage) -> None:
        # A refused or failed request is logged by the browser itself: the console shows these to its reader.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def check(self, pages: list[Page]) -> None:
        violations = [each for page in pages if not page.is_closed() for each in page.evaluate("window.violations")]
        assert (violations, self.foreign, self.secrets, self.errors) == ([], [], [], [])


@pytest.fixture(scope="session")
def something(served: Served) -> str:
    """A gateway that somebody works with; the id of a message that waits."""
    for name in ("orders", "orders.dead", "invoices-2026", "shipments"):
        served.queue(name)
    served.call("PUT", "/v1/endpoints/warehouse", {"url": served.endpoint})
    served.call("PUT", "/v1/endpoints/partner", {"url": served.endpoint})
    served.call("POST", "/v1/endpoints/partner:pause")
    settings = {"broker": BROKER, "queue": "shipments", "push": "warehouse"}
    served.call("PUT", "/v1/subscriptions/shipping", settings)
    served.call("PUT", "/v1/subscriptions/partners", {"broker": BROKER, "queue": "orders", "push": "partner"})
    target = {"broker": "local-0-10", "exchange": "", "routing_key": "orders.dead"}
    served.call(
        "PUT", "/v1/bridges/to-0-10", {"source": {"broker": BROKER, "queue": "invoices-2026"}, "target": target}
    )
    for number in range(20):
        served.publish("shipments", {"parcel": number}, properties={"message_id": f"parcel-{number}"})
        served.publish("invoices-2026", {"invoice": number})
    served.publish("orders", "later", delay_seconds=3600)
    exchange = f"/v1/brokers/{BROKER}/exchanges/orders.events"
    served.call("PUT", exchange, {"type": "topic"})
    for queue, key in (("orders.dead", "order.failed"), ("shipments", "order.shipped.#")):
        binding = {"exchange": "orders.events", "queue": queue, "binding_key": key}
        served.call("POST", f"/v1/brokers/{BROKER}/bindings", binding)
    served.dead_letters("returns", 6)
    served.call("POST", "/v1/keys", {"client": "late-shift", "scopes": ["history", f"consume:{BROKER}/*"]})
    job = {"id": "returns-again", "source": {"deliveries": {"subscription": "returns"}}, "rate": 0.001}
    served.call("POST", "/v1/replays", job)
    return served.publish("orders", {"order": 1}, properties={"message_id": "order-1", "type": "order"})


Open = Callable[..., Page]


@pytest.fixture
def open_console(browser: Browser, served: Served) -> Iterator[Open]:
    """``open_console("queues", client="root", width=1280, theme="light")``: a page, logged in; without a client: one
    that asks for a key."""
    with console_at(browser, served.url) as opened:
        yield opened


@contextmanager
def console_at(browser: Browser, url: str) -> Iterator[Open]:
    """The same for the gateway at this address."""
    watched = Watched(url)
    pages: list[Page] = []

    def make(
        path: str = "", *, client: str = "root", width: int = 1280, height: int = 860, theme: str = "light"
    ) -> Page:
        page = watched_page(browser, watched, width, height, theme)
        pages.append(page)
        page.goto(f"{url}/console#/{path}")
        if client:
            log_in(page, client)
        return page

    try:
        yield make
        watched.check(pages)
    finally:
        for page in pages:
            page.context.close()


def watched_page(browser: Browser, watched: Watched, width: int, height: int, theme: str) -> Page:
    """An empty page of a browser that knows nothing of others."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    page = context.new_page()
    page.on("request", watched.request)
    page.on("console", watched.console)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    return page


class Window:
    """A page that is used again and again, each time as if it were new: a new one costs half of the time of a walk."""

    def __init__(self, browser: Browser, url: str, width: int, height: int, theme: str) -> None:
        self._url = url
        self._watched = Watched(url)
        self._page = watched_page(browser, self._watched, width, height, theme)

    @contextmanager
    def console(self) -> Iterator[Page]:
        """The first page, logged in."""
        page = self._page
        for what in (self._watched.foreign, self._watched.secrets, self._watched.errors):
            what.clear()
        page.goto(f"{self._url}/console#/")
        log_in(page, "root")
        try:
            yield page
            self._watched.check([page])
        finally:
            page.evaluate("localStorage.clear()")
            page.goto("about:blank")
            page.context.clear_cookies()

    def close(self) -> None:
        """It is no longer needed."""
        self._page.context.close()


def log_in(page: Page, client: str) -> None:
    """Enter the key of a client, and wait for the view."""
    page.get_by_label("API key or token").fill(key_of(client))
    page.get_by_role("button", name="Log in").click()
    page.locator("dialog").wait_for(state="detached")
    page.locator("main h1").wait_for()


def wait_until(what: Callable[[], Any], page: Page) -> Any:
    """Ask until there is something."""
    for _ in range(PATIENCE // 100):
        if found := what():
            return found
        page.wait_for_timeout(100)
    raise AssertionError("it did not happen")
