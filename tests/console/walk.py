"""The twelve tasks of a stranger: from the first page, by what is on the screen and nothing else.

Each walk counts its clicks and fields, and its seconds from the address on; the press that opens the menu of a narrow
window does not count. With ``GATEWAY_TEST_PICTURES`` every step is kept as a picture, and ``walk.txt`` has a line for
each task.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import BROKER, Receiver, Served, Window, key_of, receiving, serving
from tests.console.views import HEIGHTS, PICTURES
from tests.servers import BrokerJ
from tests.servers.process import free_port

UUID: Final = "0198c1d2-0b1c-7a6e-9d57-3f0c2a5b7e11"
"""The ``message_id`` of a publisher, which the gateway must not take for its own."""
FILLERS: Final = 40
"""Queues that nobody looks for."""
QUEUES: Final = (
    "orders",
    "orders.failed",
    "invoices",
    "stock-eu",
    "stock-us",
    "parcels",
    "moving",
    "alerts",
    "held",
    "later",
)


class Place(NamedTuple):
    """Where the tasks are done."""

    kind: str
    """A kind of server, or ``embedded``."""
    width: int = 1280
    theme: str = "light"

    def __str__(self) -> str:
        return f"{self.kind}-{self.width}-{self.theme}"


def _fill(served: Served) -> None:
    for name in (*QUEUES, *(f"filler-{number}" for number in range(FILLERS))):
        served.queue(name)
    for name in ("partner", "warehouse"):
        served.call("PUT", f"/v1/endpoints/{name}", {"url": served.endpoint})
    served.call("POST", "/v1/endpoints/partner:pause")
    served.call("PUT", "/v1/subscriptions/billing", {"broker": served.broker, "queue": "invoices", "push": "partner"})
    served.call("PUT", "/v1/subscriptions/shipping", {"broker": served.broker, "queue": "parcels", "push": "warehouse"})
    served.call("PUT", "/v1/subscriptions/holder", {"broker": served.broker, "queue": "held"})
    target = {"broker": "local-0-10", "routing_key": "moved"}
    served.call("PUT", "/v1/brokers/local-0-10/queues/moved", {})
    served.call("PUT", "/v1/bridges/move", {"source": {"broker": served.broker, "queue": "moving"}, "target": target})
    for number in range(5):
        served.publish("moving", {"number": number})
        served.publish("parcels", {"parcel": number}, properties={"message_id": f"parcel-{number}"})
    served.publish("invoices", "late", properties={"message_id": "invoice-1"})
    served.publish("held", "one")
    served.call("POST", "/v1/subscriptions/holder:pull", {"wait_seconds": 5})
    more = {"properties": {"message_id": UUID, "content_type": "application/json"}, "headers": {"tenant": "north"}}
    served.publish("orders", {"order": 4711}, **more)
    served.publish("alerts", {"alert": [1, 2]}, headers={"level": {"type": "int16", "value": 3}})
    served.publish("later", "tomorrow", delay_seconds=86_400)
    served.dead_letters("returns", 6)


class Stranger:
    """Somebody who has never seen the console: their clicks, and what they see after each."""

    def __init__(self, page: Page, name: str, begun: float) -> None:
        """``begun``: when they opened the address."""
        self.page = page
        self.clicks = 0
        self.typed = 0
        self._name = name
        self._begun = begun

    @property
    def seconds(self) -> float:
        """How long ago they opened the address."""
        return time.monotonic() - self._begun

    def click(self, where: Locator) -> None:
        """Do it with the mouse."""
        where.click()
        self.clicks += 1
        expect(self.page.locator("main .quiet", has_text="Loading…")).to_have_count(0)
        self.see()

    def go(self, view: str) -> None:
        """Choose a view at the side."""
        if (menu := self.page.get_by_role("button", name="Menu", exact=True)).is_visible():
            menu.click()
        self.click(self.page.get_by_role("navigation", name="Views").get_by_role("link", name=view, exact=True))

    def button(self, name: str, within: str = "main") -> None:
        """Press it."""
        self.click(self.page.locator(within).get_by_role("button", name=name, exact=True))

    def confirm(self, name: str, word: str = "") -> None:
        """Press the button of a dialog, after the word that it asks for."""
        if word:
            self.type("To confirm, type", word)
        self.click(self.page.locator("dialog").get_by_role("button", name=name, exact=True).last)

    def type(self, label: str, words: str) -> None:
        """Fill a field."""
        self.page.get_by_label(label, exact=label.isalpha()).fill(words)
        self.typed += 1

    def region(self, name: str) -> Locator:
        """A table, by what it is called."""
        return self.page.get_by_role("region", name=name, exact=True)

    def see(self) -> None:
        """Keep what is seen."""
        if PICTURES not in ("", "docs"):
            self.page.wait_for_timeout(400)
            self.page.screenshot(path=Path(PICTURES) / f"{self._name}-{self.clicks:02}.png", full_page=True)

    def done(self, most: int, within: float = math.inf) -> None:
        """It took at most so many clicks and seconds."""
        seconds = self.seconds
        self.see()
        if PICTURES not in ("", "docs"):
            line = f"{self._name}\t{self.clicks} clicks\t{self.typed} fields\t{seconds:.1f} s\n"
            with (Path(PICTURES) / "walk.txt").open("a") as file:
                file.write(line)
        assert self.clicks <= most
        assert seconds < within


@contextmanager
def window_at(browser: Browser, url: str, width: int = 1280, theme: str = "light") -> Iterator[Window]:
    """A window for a gateway."""
    window = Window(browser, url, width, HEIGHTS[width], theme)
    try:
        yield window
    finally:
        window.close()


@contextmanager
def stranger_at(window: Window, name: str) -> Iterator[Stranger]:
    """Somebody at the first page, logged in. ``name``: what the pictures are called."""
    begun = time.monotonic()
    with window.console() as page:
        page.locator(".verdict").wait_for()
        found = Stranger(page, name, begun)
        found.see()
        yield found


class Tasks:
    """The twelve tasks. A class of tests says by its fixture ``place`` where they are done; the tasks of a class share
    a gateway, and come in this order.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def endpoint(cls) -> Iterator[Receiver]:
        server = Receiver()
        with receiving(server):
            yield server

    @pytest.fixture(scope="class")
    @classmethod
    def shop(
        cls, place: Place, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, endpoint: Receiver
    ) -> Iterator[Served]:
        """A gateway over the broker of the place and the embedded one, that people work with."""
        folder: Path = tmp_path_factory.mktemp("shop")
        server: Any = None if place.kind == "embedded" else request.getfixturevalue(place.kind)
        brokers = {}
        if server is not None:
            is_brokerj = isinstance(server, BrokerJ)
            management = f"http://127.0.0.1:{server.state.ports['http' if is_brokerj else 'management']}"
            brokers["shop"] = {"url": server.url("0-10" if is_brokerj else "0-9-1"), "management": management}
        gateway = Gateway(
            folder,
            {
                "data_dir": str(folder / "data"),
                "embedded": {"enabled": True, "port": free_port()},
                "outbound": {"allow": ["127.0.0.1/32"]},
                "ledger": {"headers": ["tenant"]},
                "brokers": brokers,
                "api_keys": [{"name": "root", "key": key_of("root"), "scopes": ["admin"]}],
            },
        )
        with serving(gateway, endpoint, "shop" if brokers else BROKER) as served:
            _fill(served)
            yield served
        for name in (*QUEUES, "returns", *(f"filler-{number}" for number in range(FILLERS))):
            if server is not None:
                server.delete_queue(name)

    @pytest.fixture(scope="class")
    @classmethod
    def window(cls, browser: Browser, shop: Served, place: Place) -> Iterator[Window]:
        with window_at(browser, shop.url, place.width, place.theme) as window:
            yield window

    @pytest.fixture
    def stranger(self, window: Window, request: pytest.FixtureRequest) -> Iterator[Stranger]:
        """At the first page, logged in."""
        name = re.sub(r"^test_(\d)_", r"test_0\1_", request.node.name).removeprefix("test_")
        with stranger_at(window, name) as found:
            yield found

    def test_1_sees_what_is_wrong(self, stranger: Stranger) -> None:
        item = stranger.page.locator(".troubles li", has_text="partner").first
        expect(item).to_contain_text("paused")
        stranger.click(item.get_by_role("link").first)
        expect(stranger.page.locator(".lead")).to_contain_text("paused")
        expect(stranger.page.get_by_role("button", name="Resume")).to_be_visible()
        stranger.done(1)

    def test_2_finds_a_queue_and_who_holds_its_messages(self, stranger: Stranger) -> None:
        stranger.go("Queues")
        stranger.type("Find a queue", "hel")
        row = stranger.region("Queues").locator("tbody tr")
        expect(row).to_have_count(1)
        stranger.see()
        stranger.click(row.get_by_role("link"))
        held = stranger.region("Who holds unacknowledged messages").locator("tbody tr", has_text="holder")
        expect(held).to_contain_text("root")
        expect(held).to_contain_text("ago")
        stranger.done(2)

    def test_3_looks_into_a_queue(self, stranger: Stranger, shop: Served) -> None:
        stranger.go("Queues")
        stranger.type("Find a queue", "alert")
        stranger.click(stranger.region("Queues").get_by_role("link", name="alerts"))
        stranger.click(stranger.page.get_by_role("link", name="Show its messages"))
        rows = stranger.region("Messages").locator("tbody tr")
        if shop.call("GET", f"/v1/brokers/{shop.broker}/queues/alerts/messages")["how"] != "browsed":
            take = stranger.page.get_by_role("button", name="Take and give back")
            for _ in range(40):  # RabbitMQ tells the policy of a new queue after seconds
                if take.count():
                    break
                stranger.page.get_by_role("button", name="Look again").click()
                stranger.page.wait_for_timeout(300)
            stranger.click(take)
            stranger.confirm("Take and give back", "alerts")
        expect(rows).to_have_count(1)
        stranger.click(rows.get_by_role("link"))
        one = stranger.page.get_by_role("region", name="Message 1")
        stranger.click(one.get_by_role("button", name="JSON"))
        expect(one.locator(".body pre")).to_contain_text('"alert": [')
        expect(one.get_by_label("Headers")).to_contain_text('"type": "int16"')
        assert shop.call("GET", f"/v1/brokers/{shop.broker}/queues/alerts")["messages"] == 1
        stranger.done(7)

    def test_4_publishes_a_message_and_one_like_it(self, stranger: Stranger, shop: Served) -> None:
        stranger.go("Publish")
        stranger.page.get_by_label("Broker", exact=True).select_option(shop.broker)
        stranger.type("Routing key", "stock-us")
        stranger.type("Body", '{"stock": 3}')
        stranger.type("Properties (JSON)", '{"message_id": "stock-3"}')
        stranger.button("Publish")
        expect(stranger.page.locator(".result")).to_contain_text("The broker has it")
        stranger.click(stranger.page.get_by_role("link", name="its story"))
        stranger.button("Publish one like it")
        expect(stranger.page.get_by_label("Properties (JSON)")).to_have_value(re.compile("stock-3"))
        expect(stranger.page.locator("main")).to_contain_text("The gateway does not have its body")
        stranger.type("Body", '{"stock": 4}')
        stranger.button("Publish")
        expect(stranger.page.locator(".result")).to_contain_text("The broker has it")
        assert shop.call("GET", f"/v1/brokers/{shop.broker}/queues/stock-us")["messages"] == 2
        stranger.done(5)

    def test_5_finds_a_message_by_its_publishers_id(self, stranger: Stranger) -> None:
        stranger.go("Messages")
        stranger.type("Id of the gateway, or message_id of the publisher", UUID)
        stranger.button("Find")
        rows = stranger.region("Messages").locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("orders")
        stranger.click(rows.get_by_role("link"))
        expect(stranger.page.locator(".story")).to_contain_text("confirmed")
        stranger.done(3)

    @pytest.mark.parametrize(("label", "words"), [("Header", "tenant=north"), ("Routing key", "orders")])
    def test_5_finds_a_message_by_what_it_had(self, stranger: Stranger, label: str, words: str) -> None:
        stranger.go("Messages")
        stranger.type(label, words)
        stranger.page.keyboard.press("Enter")
        rows = stranger.region("Messages").locator("tbody tr")
        expect(rows).to_have_count(1)
        stranger.click(rows.get_by_role("link"))
        expect(stranger.page.locator("main")).to_contain_text(UUID)
        stranger.done(2)

    def test_6_answers_why_a_message_is_stuck(self, stranger: Stranger, shop: Served) -> None:
        stranger.click(stranger.page.locator(".top").get_by_role("link", name="Search"))
        stranger.type("Search everything", "invoice-1")
        stranger.button("Find")
        stranger.click(stranger.region("Messages").locator("tbody tr").get_by_role("link").first)
        expect(stranger.page.locator(".why")).to_contain_text("partner")
        stranger.button("Resume partner")
        expect(stranger.page.locator(".story")).to_contain_text("acknowledged")
        shop.call("POST", "/v1/endpoints/partner:pause")
        stranger.done(4)

    def test_7_redrives_dead_letters(self, stranger: Stranger, shop: Served) -> None:
        def dead() -> int:
            return len(shop.call("GET", "/v1/deliveries?state=dead&subscription=returns")["deliveries"])

        stranger.click(stranger.page.locator("main .tile", has_text="Dead letters"))
        stranger.click(
            stranger.region("Dead letters by reason").locator("tbody tr", has_text="returns").get_by_role("link")
        )
        rows = stranger.region("Dead letters").locator("tbody tr")
        expect(rows).to_have_count(6)
        for number in range(2):
            stranger.click(rows.nth(number).locator("input[type=checkbox]"))
        stranger.click(stranger.page.locator(".selection").get_by_role("button", name="Redrive"))
        stranger.confirm("Redrive")
        expect(stranger.page.locator(".lead")).to_contain_text("done")
        assert dead() == 4
        stranger.go("Dead letters")
        stranger.button("Redrive all")
        expect(stranger.page.locator("dialog")).to_contain_text("4 dead letters")
        stranger.confirm("Redrive")
        expect(stranger.page.locator(".lead")).to_contain_text("done")
        assert dead() == 0
        stranger.done(9)

    def test_8_watches_a_bridge_and_steers_it(self, stranger: Stranger) -> None:
        stranger.go("Bridges")
        stranger.click(stranger.region("Bridges").get_by_role("link", name="move"))
        expect(stranger.page.locator(".facts div", has_text="Forwarded")).to_contain_text("5")
        stranger.button("Pause")
        expect(stranger.page.locator(".lead .state")).to_have_text("paused")
        stranger.button("Compare by the ledger")
        expect(stranger.page.locator("main")).to_contain_text("Both sides are equal.")
        stranger.button("Resume")
        expect(stranger.page.locator(".lead .state")).to_have_text("running")
        stranger.done(5)

    def test_9_sees_an_endpoints_attempts_tests_it_and_rotates_its_key(
        self, stranger: Stranger, endpoint: Receiver
    ) -> None:
        stranger.go("Endpoints")
        stranger.click(stranger.region("Endpoints").get_by_role("link", name="warehouse"))
        attempts = stranger.region("Last attempts").locator("tbody tr")
        expect(attempts).to_have_count(5)
        stranger.button("Send a test")
        expect(stranger.page.locator(".result")).to_contain_text("204")
        stranger.click(attempts.nth(1).get_by_role("link"))
        expect(stranger.page.get_by_label("Request", exact=True)).to_contain_text("webhook-id: ")
        stranger.click(
            stranger.page.get_by_role("navigation", name="Where you are").get_by_role("link", name="warehouse")
        )
        stranger.button("Rotate keys")
        stranger.confirm("Rotate keys")
        expect(stranger.page.locator(".result")).to_contain_text("whsec_")
        stranger.button("Dry run")
        expect(stranger.page.locator("main")).to_contain_text("would be sent")
        stranger.done(8)

    def test_10_changes_and_cancels_what_is_scheduled(self, stranger: Stranger, shop: Served) -> None:
        stranger.go("Scheduled")
        row = stranger.region("Scheduled").locator("tbody tr", has_text="later")
        stranger.click(row.get_by_role("button", name="Change the time"))
        then = datetime.now(UTC) + timedelta(days=20)
        stranger.type("Publish it at", f"{then:%Y-%m-%dT%H:%M:%S}")
        stranger.confirm("Save")
        expect(row).to_contain_text(f"{then:%Y-%m-%d}")
        stranger.click(row.get_by_role("button", name="Cancel"))
        stranger.confirm("Cancel the message")
        expect(row).to_have_count(0)
        assert shop.call("GET", "/v1/scheduled")["scheduled"] == []
        stranger.done(5)

    def test_11_makes_a_subscription(self, stranger: Stranger, shop: Served) -> None:
        stranger.go("Subscriptions")
        stranger.click(stranger.page.get_by_role("link", name="Create a subscription"))
        stranger.type("Name*", "failures")
        stranger.type("broker*", shop.broker)
        stranger.type("queue", "orders.failed")
        stranger.type("push", "warehouse")
        stranger.see()
        expect(stranger.page.locator(".same")).to_contain_text("[subscriptions.failures]")
        stranger.button("Save")
        expect(stranger.page.locator("h1")).to_have_text("failures")
        expect(stranger.page.locator(".lead .state")).to_have_text("active")
        assert shop.call("GET", "/v1/subscriptions/failures")["push"] == "warehouse"
        stranger.done(3)

    def test_12_makes_a_key_and_reads_who_did_it(self, stranger: Stranger, shop: Served) -> None:
        stranger.go("API keys")
        stranger.button("Make a key")
        stranger.page.locator("#key-client").fill("night-shift")
        stranger.page.locator("#key-scopes").fill(f"history\nconsume:{shop.broker}/orders")
        stranger.typed += 2
        stranger.click(stranger.page.locator("dialog").get_by_role("button", name="Make a key"))
        expect(stranger.page.locator(".secret code")).not_to_be_empty()
        stranger.button("I have it", "dialog")
        stranger.go("Audit log")
        stranger.type("What", "create_key")
        stranger.page.keyboard.press("Enter")
        expect(stranger.region("Audit log").locator("tbody tr").first).to_contain_text("root")
        stranger.done(5)
