"""Five set-ups that are broken: from the first page of the console to the reason, by what the page offers alone.

One gateway has all five: a broker that is down, an endpoint that fails, a queue that nobody consumes, a message that
fails again and again before others of its key, and a bridge in doubt. The transaction of that bridge is in doubt since
the gateway was killed between its two phases. The first page names each of them. At most two clicks lead from there to
the reason and to what helps, in less than a minute by the clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import BROKER, Receiver, Served, key_of, receiving, serving, wait_until
from tests.console.walk import Stranger, stranger_at, window_at
from tests.servers.process import free_port

SECONDS_MAX: Final = 60.0
"""Most seconds from the address to the reason, with the login."""
POISON: Final = "poison"
PREPARE: Final = ("gateway.upstreams.branches:UpstreamBranch.prepare", "after", "1")
"""Where the gateway is killed: the target has prepared the branch, and the ledger has not decided."""


class Doubtful(Gateway):
    """A gateway that is killed at :data:`PREPARE`, until it is ``mended``."""

    module = "tests.faults.killed_at"

    def _spawn(self, *arguments: str) -> Any:
        return super()._spawn(*(PREPARE if self.module else ()), *arguments)


@pytest.fixture(scope="module")
def receivers() -> Iterator[dict[str, Receiver]]:
    found = {"failing": Receiver(lambda _: True), "picky": Receiver(lambda body: POISON.encode() in body)}
    with receiving(*found.values()):
        yield found


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, receivers: dict[str, Receiver]) -> Iterator[Served]:
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
    with serving(gateway) as served:
        _in_doubt(served, gateway)
        far.terminate()
        gateway.module = ""
        gateway.start()
        served.queue("old")
        _others(served, receivers)
        yield served
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


def _others(served: Served, receivers: dict[str, Receiver]) -> None:
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
def stranger(browser: Browser, broken: Served, request: pytest.FixtureRequest) -> Iterator[Stranger]:
    with (
        window_at(browser, broken.url) as window,
        stranger_at(window, f"broken_{request.node.name.removeprefix('test_')}") as found,
    ):
        yield found


def trouble(page: Page, kind: str, name: str) -> Locator:
    """The item of the first page about a thing."""
    return page.locator(".troubles li", has=page.locator(".kind", has_text=kind)).filter(
        has=page.locator("bdi", has_text=name)
    )


def test_a_broker_that_is_down(stranger: Stranger) -> None:
    item = trouble(stranger.page, "Broker", "warehouse")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("broker_unavailable")
    expect(item).to_contain_text("127.0.0.1:1: Connection refused")
    stranger.click(item.get_by_role("link"))
    expect(stranger.page.locator("h1")).to_have_text("warehouse")
    expect(stranger.page.locator("main")).to_contain_text("127.0.0.1:1: Connection refused")
    expect(stranger.page.get_by_role("button", name="Probe versions")).to_be_visible()
    stranger.done(1, SECONDS_MAX)


def test_an_endpoint_that_fails(stranger: Stranger) -> None:
    item = trouble(stranger.page, "Endpoint", "failing")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("1 message waits, last attempt failed: ")
    expect(item).to_contain_text("500")
    stranger.click(item.get_by_role("link"))
    expect(stranger.page.locator(".lead")).to_contain_text("1 message waits, last attempt failed: ")
    attempts = stranger.page.get_by_role("region", name="Last attempts", exact=True)
    expect(attempts.locator("tbody tr").first).to_contain_text("500")
    stranger.click(attempts.locator("tbody a").first)
    expect(stranger.page.locator("main")).to_contain_text("500")
    expect(stranger.page.get_by_label("Request", exact=True)).to_contain_text("webhook-id: ")
    stranger.done(2, SECONDS_MAX)


def test_a_queue_that_nobody_consumes(stranger: Stranger) -> None:
    item = trouble(stranger.page, "Queue", "nobody-reads")
    expect(item).to_contain_text(f"3 messages wait at the broker {BROKER}, and nobody consumes the queue.")
    stranger.click(item.get_by_role("link"))
    expect(stranger.page.locator("h1")).to_have_text("nobody-reads")
    expect(stranger.page.locator(".tiles")).to_contain_text("Nobody takes from it")
    expect(stranger.page.locator("main")).to_contain_text(
        "No subscription and no bridge of this gateway takes from it."
    )
    stranger.done(1, SECONDS_MAX)


def test_a_message_that_fails_before_others(stranger: Stranger) -> None:
    item = trouble(stranger.page, "Subscription", "parcels")
    expect(item).to_contain_text("Its oldest message has failed 2 times: ")
    expect(item).to_contain_text("500")
    expect(item).to_contain_text("2 more wait.")
    stranger.click(item.get_by_role("link", name="The message"))
    expect(stranger.page.locator(".now")).to_contain_text("500")
    expect(stranger.page.locator(".now")).to_contain_text("next try")
    expect(stranger.page.get_by_role("button", name="Try now")).to_be_visible()
    expect(stranger.page.locator(".story")).to_contain_text("An attempt to push it failed")
    stranger.done(1, SECONDS_MAX)


def test_a_bridge_that_is_in_doubt(stranger: Stranger) -> None:
    item = trouble(stranger.page, "Bridge", "to-far")
    expect(item).to_have_class("bad")
    expect(item).to_contain_text("1 transaction is in doubt: nothing is taken until the broker and the ledger agree")
    stranger.click(item.get_by_role("link"))
    expect(stranger.page.locator("h1")).to_have_text("to-far")
    expect(stranger.page.locator(".lead")).to_contain_text("far")
    expect(stranger.page.locator(".lead")).to_contain_text("1 transaction is in doubt")
    stranger.done(1, SECONDS_MAX)


def test_the_first_page_names_all_five_and_no_more(stranger: Stranger, broken: Served) -> None:
    """What is well is not among them, and the broker that is in the bridge's way is."""
    wait_until(lambda: len(broken.call("GET", "/v1/overview")["troubles"]) >= 6, stranger.page)
    found = {(each["kind"], each["name"], each["severity"]) for each in broken.call("GET", "/v1/overview")["troubles"]}
    assert found == {
        ("broker", "far", "bad"), ("broker", "warehouse", "bad"), ("bridge", "to-far", "bad"),
        ("endpoint", "failing", "bad"), ("queue", "nobody-reads", "notice"), ("subscription", "parcels", "notice"),
        ("subscription", "billing", "notice"),
    }  # fmt: skip
    expect(stranger.page.locator(".verdict")).to_contain_text("4 things need attention.")
