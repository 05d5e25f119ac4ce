"""Every view of the console: what axe-core says of it, and whether it fits its window."""

from __future__ import annotations

import os
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.console.conftest import BROKER, Open, Served

PICTURES = os.environ.get("GATEWAY_TEST_PICTURES", "")
"""Folder for pictures of every view; empty: none are kept."""
VIEWS = (
    "brokers", f"brokers/{BROKER}", "queues", f"queues/{BROKER}/orders", f"queues/{BROKER}/orders/messages?no=1",
    "queues/new", "messages", "messages/{id}", "publish", "dead", "dead?code=rejected", "schedules", "events",
    "subscriptions", "subscriptions/shipping", "endpoints", "endpoints/warehouse", "bridges", "bridges/to-0-10",
    "bridges/new", "taps", "replays", "keys", "audit", "me", "search?q=orders", "",
)  # fmt: skip
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def look(open_console: Open, served: Served, message: str, width: int, theme: str) -> list[str]:
    """Go through every view, and return what is wrong. ``message``: the id of one."""
    page = open_console(width=width, height={390: 844, 1280: 860, 2560: 1440}[width], theme=theme)
    axe = Axe()
    wrong: list[str] = []
    for view in VIEWS:
        page.goto(f"{served.url}/console#/{view.format(id=message)}")
        expect(page.locator("main .quiet", has_text="Loading…")).to_have_count(0)
        if view == "bridges/new":
            page.locator("#field-source-queue").wait_for()
        page.wait_for_timeout(150)
        if PICTURES:
            name = view.format(id="message").replace("/", "-") or "overview"
            page.screenshot(path=Path(PICTURES) / f"{name}-{width}-{theme}.png")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            wrong.append(f"{view}: {over} pixels wider than the window")
        options = {"runOnly": {"type": "tag", "values": TAGS}}
        found = axe.run(page, options=options).response["violations"]
        wrong += [f"{view}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
    return wrong
