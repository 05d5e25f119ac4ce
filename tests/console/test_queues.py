"""The list of queues over brokers whose management is a fake: 10,000 of them, and servers that fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import Open, console_at, key_of
from tests.console.views import TAGS
from tests.management import fake

ROWS: list[dict[str, Any]] = [
    {"name": f"queue-{number:05}", "messages": number, "messages_unacknowledged": 1, "type": "quorum"}
    for number in range(10_000)
]


@dataclass
class Brokers:
    """A gateway over three brokers with management: ``large`` is well, ``refused`` and ``<b>`` are not."""

    url: str
    large: fake.Management


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    large, refused = fake.Management(fake.rabbitmq(ROWS)), fake.Management(lambda _: (401, {}))
    loop = asyncio.new_event_loop()

    servers: list[asyncio.Server] = []

    async def listen() -> None:
        for each in (large, refused):
            servers.append(await asyncio.start_server(each.serve, "127.0.0.1", 0))
            each.port = servers[-1].sockets[0].getsockname()[1]

    async def close() -> None:
        for server in servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(listen(), loop).result(10)
    folder: Path = tmp_path_factory.mktemp("queues")
    nowhere = "amqp://guest:guest@127.0.0.1:1/"
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "brokers": {
                "large": {"url": nowhere, "management": large.url},
                "refused": {"url": nowhere, "management": refused.url},
            },
            "api_keys": [
                {"name": "root", "key": key_of("root"), "scopes": ["admin"]},
                {"name": "one", "key": key_of("one"), "scopes": ["consume:large/queue-00007"]},
            ],
        },
    )
    gateway.start()
    yield Brokers(f"http://127.0.0.1:{gateway.port}", large)
    gateway.terminate()
    gateway.close()
    asyncio.run_coroutine_threadsafe(close(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def opened(browser: Browser, brokers: Brokers) -> Iterator[Open]:
    with console_at(browser, brokers.url) as opened:
        yield opened


def names(page: Page) -> list[str]:
    return page.locator("tbody tr:not(.gap) td:first-child").all_inner_texts()


def test_ten_thousand_queues_are_searched_sorted_and_paged(opened: Open, brokers: Brokers) -> None:
    headers = {"authorization": f"Bearer {key_of('root')}"}
    assert httpx.get(f"{brokers.url}/v1/queues", headers=headers, timeout=30).json()["total"] == 10_000
    began = time.monotonic()
    page = opened("queues")
    expect(page.locator("div.bar")).to_contain_text("500 of 10,000 rows")
    print(f"10,000 queues are shown {time.monotonic() - began:.2f} s after the address was opened")
    assert names(page)[0] == "queue-00000"
    page.get_by_label("Sort by").select_option("Most messages")
    expect(page.locator("tbody tr").first).to_contain_text("queue-09999")
    expect(page.locator("tbody tr").first).to_contain_text("9,999")
    assert "sort=-depth" in page.url
    page.get_by_label("Find a queue").fill("0012")
    expect(page.locator("div.bar")).to_contain_text("11 rows")
    assert names(page) == [*(f"queue-0012{digit}" for digit in "9876543210"), "queue-00012"]
    page.get_by_label("Find a queue").fill("")
    expect(page.locator("div.bar")).to_contain_text("500 of 10,000 rows")
    page.get_by_role("button", name="Show more queues").click()
    expect(page.locator("div.bar")).to_contain_text("1,000 of 10,000 rows")


def test_a_link_leads_to_a_search(opened: Open) -> None:
    page = opened("queues?q=queue-0777&sort=-name&broker=large")
    expect(page.locator("tbody tr")).to_have_count(10)
    assert names(page) == [f"queue-0777{digit}" for digit in "9876543210"]
    expect(page.get_by_label("Sort by")).to_have_value("-name")
    expect(page.locator("details.same")).to_contain_text("gateway queues find queue-0777 --broker large --sort=-name")


def test_what_is_missing_stands_beside_the_broker(opened: Open, brokers: Brokers) -> None:
    page = opened("queues")
    sources = page.locator("details", has_text="1 of 2 brokers with a list that is not complete")
    expect(sources).to_contain_text("The management API refuses the login (401).")
    expect(sources.locator("li", has_text="large")).to_contain_text("from its management API, read")
    brokers.large.answer = lambda _: (503, {})
    try:
        sources = page.locator("details", has_text="2 of 2 brokers with a list that is not complete")
        expect(sources).to_contain_text("What is listed is as it was at")
        expect(page.locator("div.bar")).to_contain_text("500 of 10,000 rows")
        options = {"runOnly": {"type": "tag", "values": TAGS}}
        assert Axe().run(page, options=options).response["violations"] == []
    finally:
        brokers.large.answer = fake.rabbitmq(ROWS)


def test_a_key_for_one_queue_shows_that_one(opened: Open) -> None:
    page = opened("queues", client="one")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert names(page) == ["queue-00007"]
    expect(page.get_by_role("navigation", name="Views")).to_contain_text("Queues")
    expect(page.get_by_role("link", name="Declare a queue")).to_have_count(0)


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_the_window(opened: Open, width: int) -> None:
    page = opened("queues", width=width, height=844)
    page.locator("tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    options = {"runOnly": {"type": "tag", "values": TAGS}}
    assert Axe().run(page, options=options).response["violations"] == []
