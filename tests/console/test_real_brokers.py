"""Queues of RabbitMQ in the console: it cannot show messages, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.attack.lab import Gateway
from tests.console.conftest import PATIENCE, WATCH, Served, key_of
from tests.servers import RabbitMQ

Name = Callable[[str], str]


@pytest.fixture(scope="module")
def over_rabbitmq(tmp_path_factory: pytest.TempPathFactory, rabbitmq40: RabbitMQ) -> Iterator[Served]:
    """A gateway over RabbitMQ 4.0, and a client that may do everything."""
    folder: Path = tmp_path_factory.mktemp("rabbitmq")
    management = f"http://127.0.0.1:{rabbitmq40.state.ports['management']}"
    gateway = Gateway(
        folder,
        {
            "data_dir": str(folder / "data"),
            "brokers": {"shop": {"url": rabbitmq40.url("0-9-1"), "management": management}},
            "api_keys": [{"name": "root", "key": key_of("root"), "scopes": ["admin"]}],
        },
    )
    gateway.start()
    url = f"http://127.0.0.1:{gateway.port}"
    headers = {"authorization": f"Bearer {key_of('root')}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        yield Served(url, client, gateway, None, "shop")
    gateway.terminate()
    gateway.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE)
    context.add_init_script(WATCH)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert (errors, page.evaluate("window.violations")) == ([], [])
    context.close()


def log_in(page: Page, served: Served, path: str) -> None:
    page.goto(f"{served.url}/console#/{path}")
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    page.locator("dialog").wait_for(state="detached")
    page.locator("main h1").wait_for()


def test_messages_are_taken_and_given_back_when_confirmed(
    page: Page, over_rabbitmq: Served, rabbitmq40: RabbitMQ, unique_name: Name
) -> None:
    queue = unique_name("taken")
    over_rabbitmq.queue(queue)
    over_rabbitmq.publish(queue, "first")
    log_in(page, over_rabbitmq, f"queues/shop/{queue}/messages")
    expect(page.locator("main")).to_contain_text("cannot show a message of a queue without handing it out")
    button = page.get_by_role("button", name="Take and give back")
    for _ in range(30):  # RabbitMQ tells the policy of a new queue after seconds
        page.get_by_role("button", name="Look again").click()
        page.wait_for_timeout(300)
        if button.count():
            break
    button.click()
    page.get_by_label("To confirm, type").fill(queue)
    page.locator("dialog").get_by_role("button", name="Take and give back").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("tbody a").first.click()
    expect(page.locator(".body pre")).to_contain_text("first")
    expect(page.locator("main")).to_contain_text("They are marked as redelivered now.")
    page.get_by_role("link", name="Messages published to this queue").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert rabbitmq40.queue_depth(queue) == 1
    rabbitmq40.delete_queue(queue)


def test_it_is_not_offered_where_returns_count(
    page: Page, over_rabbitmq: Served, rabbitmq40: RabbitMQ, unique_name: Name
) -> None:
    queue = unique_name("quorum")
    rabbitmq40.api("PUT", f"queues/%2F/{queue}", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    try:
        log_in(page, over_rabbitmq, f"queues/shop/{queue}/messages")
        expect(page.locator("main")).to_contain_text("Take and give back is not offered: It is a quorum queue")
        expect(page.get_by_role("button", name="Take and give back")).to_have_count(0)
    finally:
        rabbitmq40.delete_queue(queue)
