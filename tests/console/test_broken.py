"""Five set-ups that are broken: from the first page of the console to the reason, by what the page offers alone.

One gateway has all five: a broker that is down, an endpoint that fails, a queue that nobody consumes, a message that
fails again and again before others of its key, and a bridge in doubt. The transaction of that bridge is in doubt since
the gateway was killed between its two phases. The first page names each of them. At most two clicks lead from there to
the reason and to what helps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import BROKER, PATIENCE, WATCH, Receiver, Served, Watched, _Handler, key_of, wait_until
from tests.console.views import PICTURES
from tests.servers.process import free_port

CLICKS_MAX: Final = 2
"""Most clicks from the first page to the reason."""
POISON: Final = "poison"
PREPARE: Final = ("gateway.upstreams.branches:UpstreamBranch.prepare", "after", "1")
"""Where the gateway is killed: the target has prepared the branch, and the ledger has not decided."""


class Doubtful(Gateway):
    """A gateway that is killed at :data:`PREPARE`, until it is ``mended``."""

    module = "tests.faults.killed_at"

    def _spawn(self, *arguments: str) -> Any:
        return super()._spawn(*(PREPARE if self.module else ()), *arguments)


class Picky(Receiver):
    """An endpoint that fails, or only for one message."""

    def __init__(self, fails: Callable[[bytes], bool]) -> None:
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), _PickyHandler)
        self.fails = fails
        self.got: list[bytes] = []


class _PickyHandler(_Handler):
    server: Picky

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.got.append(body)
        self.send_response(500 if self.server.fails(body) else 204)
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture(scope="module")
def receivers() -> Iterator[dict[str, Picky]]:
    found = {"failing": Picky(lambda _: True), "picky": Picky(lambda body: POISON.encode() in body)}
    threads = [threading.Thread(target=each.serve_forever, daemon=True) for each in found.values()]
    for thread in threads:
        thread.start()
    yield found
    for each, thread in zip(found.values(), threads, strict=True):
        each.shutdown()
        each.server_close()
        thread.join()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, receivers: dict[str, Picky]) -> Iterator[Served]:
    """The gateway with all of it."""
    folder, far_folder = tmp_path_factory.mktemp("broken"), tmp_path_factory.mktemp("far")
    far_port = free_port()
    far = Gateway(far_folder, {"data_dir": str(far_folder / "data"), "embedded": {"enabled": True, "port": far_port}})
    far.start()
    gateway = Doubtful(
        folder,
        {
            "data_dir": str(folder / "data"),
            "embedded": {"enabled": True, "port": free_port()},
            "outbound": {"allow": ["127.0.0.1/32"]},
            "brokers": {
                "far": {"url": f"amqp://guest:guest@127.0.0.1:{far_port}/?version=0-10", "reconnect_max": 0.5},
                "warehouse": {"url": "amqp://guest:guest@127.0.0.1:1/", "reconnect_max": 0.5},
            },
            "api_keys": [{"name": "root", "key": key_of("root"), "scopes": ["admin"]}],
        },
    )
    gateway.start()
    url = f"http://127.0.0.1:{gateway.port}"
    headers = {"authorization": f"Bearer {key_of('root')}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        served = Served(url, client, gateway, None)
        _in_doubt(served, gateway)
        far.terminate()
        gateway.module = ""
        gateway.start()
        served.queue("old")
        _others(served, receivers)
        yield served
    gateway.terminate()
    gateway.close()
    far.close()


def _in_doubt(served: Served, gateway: Gateway) -> None:
    """A bridge whose message the target has prepared; then the gateway is dead."""
    served.queue("old")
    with httpx.Client(base_url=served.url, headers=served.client.headers, trust_env=False, timeout=60) as client:
        for _ in range(200):
            if client.put("/v1/brokers/far/queues/new", json={}).is_success:
                break
            time.sleep(0.05)
        body = {
            "source": {"broker": BROKER, "queue": "old"}, "target": {"broker": "far", "routing_key": "new"},
            "acknowledge": "dtx",
        }  # fmt: skip
        assert client.put("/v1/bridges/to-far", json=body).status_code == 201
        message = {"routing_key": "old", "payload": "in two phases", "properties": {"message_id": "doubt-1"}}
        try:
            client.post(f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", json=message)
        except httpx.TransportError:
            pass  # it was killed before it could answer
    assert gateway.process is not None
    assert gateway.process.wait(30) == -9, gateway.log()[-2000:]


def _others(served: Served, receivers: dict[str, Picky]) -> None:
    for name, receiver in receivers.items():
        settings = {"url": receiver.url, "schedule": [0, 0.2, 3600], "breaker_failures": 100}
        served.call("PUT", f"/v1/endpoints/{name}", settings)
        served.queue(name)
    served.call("PUT", "/v1/subscriptions/billing", {"broker": BROKER, "queue": "failing", "push": "failing"})
    settings = {"broker": BROKER, "queue": "picky", "push": "picky", "lease": "ledger", "order_key": "property:type"}
    served.call("PUT", "/v1/subscriptions/parcels", settings)
    served.publish("failing", "invoice")
    for payload in (POISON, "behind it", "behind that"):
        served.publish("picky", payload, properties={"type": "eu"})
    for _ in range(200):
        if sum(POISON.encode() in body for body in receivers["picky"].got) == 2:
            break
        time.sleep(0.05)
    served.publish("picky", "of another key", properties={"type": "us"})  # the endpoint is well
    served.queue("nobody-reads")
    for number in range(3):
        served.publish("nobody-reads", number)


@pytest.fixture
def page(browser: Browser, broken: Served) -> Iterator[Page]:
    """The first page, logged in."""
    watched = Watched(broken.url)
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    page = context.new_page()
    page.on("request", watched.request)
    page.on("console", watched.console)
    page.on("pageerror", lambda error: watched.errors.append(str(error)))
    page.goto(f"{broken.url}/console")
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    page.locator(".troubles").wait_for()
    yield page
    watched.check([page])
    context.close()


class Walk:
    """What a stranger does: read the first page, and click."""

    def __init__(self, page: Page, pictures: Path, name: str) -> None:
        self.page = page
        self.clicks = 0
        self._pictures = pictures
        self._name = name

    def trouble(self, kind: str, name: str) -> Locator:
        """The item of the first page about a thing."""
        return self.page.locator(".troubles li", has=self.page.locator(".kind", has_text=kind)).filter(
            has=self.page.locator("bdi", has_text=name)
        )

    def click(self, link: Locator) -> None:
        """One more."""
        if not self.clicks:
            self.picture("first")
        link.click()
        self.clicks += 1
        assert self.clicks <= CLICKS_MAX
        expect(self.page.locator("main .quiet", has_text="Loading…")).to_have_count(0)

    def picture(self, what: str) -> None:
        """Keep what is seen."""
        self.page.screenshot(path=self._pictures / f"broken-{self._name}-{what}.png", full_page=True)


@pytest.fixture
def walk(page: Page, request: pytest.FixtureRequest, tmp_path: Path) -> Walk:
    return Walk(
        page, Path(PICTURES) if PICTURES not in ("", "docs") else tmp_path, request.node.name.removeprefix("test_")
    )


def test_a_broker_that_is_down(walk: Walk) -> None:
    item = walk.trouble("Broker", "warehouse")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("broker_unavailable")
    expect(item).to_contain_text("127.0.0.1:1: Connection refused")
    walk.click(item.get_by_role("link"))
    expect(walk.page.locator("h1")).to_have_text("warehouse")
    expect(walk.page.locator("main")).to_contain_text("127.0.0.1:1: Connection refused")
    expect(walk.page.get_by_role("button", name="Probe versions")).to_be_visible()
    walk.picture("reason")
    assert walk.clicks == 1


def test_an_endpoint_that_fails(walk: Walk) -> None:
    item = walk.trouble("Endpoint", "failing")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("1 message waits, last attempt failed: ")
    expect(item).to_contain_text("500")
    walk.click(item.get_by_role("link"))
    expect(walk.page.locator(".lead")).to_contain_text("1 message waits, last attempt failed: ")
    attempts = walk.page.get_by_role("region", name="Last attempts", exact=True)
    expect(attempts.locator("tbody tr").first).to_contain_text("500")
    walk.click(attempts.locator("tbody a").first)
    expect(walk.page.locator("main")).to_contain_text("500")
    expect(walk.page.get_by_label("Request", exact=True)).to_contain_text("webhook-id: ")
    walk.picture("reason")
    assert walk.clicks == 2


def test_a_queue_that_nobody_consumes(walk: Walk) -> None:
    item = walk.trouble("Queue", "nobody-reads")
    expect(item).to_contain_text(f"3 messages wait at the broker {BROKER}, and nobody consumes the queue.")
    walk.click(item.get_by_role("link"))
    expect(walk.page.locator("h1")).to_have_text("nobody-reads")
    expect(walk.page.locator(".tiles")).to_contain_text("Nobody takes from it")
    expect(walk.page.locator("main")).to_contain_text("No subscription and no bridge of this gateway takes from it.")
    walk.picture("reason")
    assert walk.clicks == 1


def test_a_message_that_fails_before_others(walk: Walk) -> None:
    item = walk.trouble("Subscription", "parcels")
    expect(item).to_contain_text("Its oldest message has failed 2 times: ")
    expect(item).to_contain_text("500")
    expect(item).to_contain_text("2 more wait.")
    walk.click(item.get_by_role("link", name="The message"))
    expect(walk.page.locator(".now")).to_contain_text("500")
    expect(walk.page.locator(".now")).to_contain_text("next try")
    expect(walk.page.get_by_role("button", name="Try now")).to_be_visible()
    expect(walk.page.locator(".story")).to_contain_text("An attempt to push it failed")
    walk.picture("reason")
    assert walk.clicks == 1


def test_a_bridge_that_is_in_doubt(walk: Walk) -> None:
    item = walk.trouble("Bridge", "to-far")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("1 transaction is in doubt: nothing is taken until the broker and the ledger agree")
    walk.click(item.get_by_role("link"))
    expect(walk.page.locator("h1")).to_have_text("to-far")
    expect(walk.page.locator(".lead")).to_contain_text("far")
    expect(walk.page.locator(".lead")).to_contain_text("1 transaction is in doubt")
    walk.picture("reason")
    assert walk.clicks == 1


def test_the_first_page_names_all_five_and_no_more(walk: Walk, broken: Served) -> None:
    """What is well is not among them, and the broker that is in the bridge's way is."""
    wait_until(lambda: len(broken.call("GET", "/v1/overview")["troubles"]) >= 6, walk.page)
    found = {(each["kind"], each["name"], each["severity"]) for each in broken.call("GET", "/v1/overview")["troubles"]}
    assert found == {
        ("broker", "far", "bad"), ("broker", "warehouse", "bad"), ("bridge", "to-far", "bad"),
        ("endpoint", "failing", "bad"), ("queue", "nobody-reads", "notice"), ("subscription", "parcels", "notice"),
        ("subscription", "billing", "notice"),
    }  # fmt: skip
    expect(walk.page.locator(".verdict")).to_contain_text("4 things need attention.")
    walk.picture("first")
