"""Every view of the console: what axe-core says of it, and whether it fits its window."""

from __future__ import annotations

import os
import re
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.console.conftest import BROKER, Open, Served

PICTURES = os.environ.get("GATEWAY_TEST_PICTURES", "")
"""Folder for pictures of every view; ``docs``: those that the documentation shows, in place; empty: none are kept."""
REFERENCE = Path(__file__).parents[2] / "docs/reference"
VIEWS = (
    "", "brokers", f"brokers/{BROKER}", f"exchanges/{BROKER}/orders.events", "exchanges/new", "queues",
    f"queues/{BROKER}/orders", f"queues/{BROKER}/orders/messages?no=1", "queues/new", "messages", "messages/{id}",
    "publish", "dead", "dead?code=rejected&subscription=returns", "schedules", "events", "subscriptions",
    "subscriptions/shipping", "endpoints", "endpoints/warehouse", "bridges", "bridges/to-0-10", "bridges/new", "taps",
    "fronts", "fronts/legacy", "replays", "replays/returns-again", "keys", "audit", "me", "search?q=orders",
)  # fmt: skip
FORMS = {"bridges/new": "#field-source-queue", "exchanges/new": "#field-type", "queues/new": "details.more"}
"""View -> a part of its form, which comes last."""
HEIGHTS = {390: 844, 1280: 860, 2560: 1440}
"""Width of a window -> its height, in pixels."""
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def picture(page: Page, view: str, width: int, theme: str) -> None:
    """Keep a picture of a view, where somebody wants it."""
    name = re.sub(r"[^\w.-]+", "-", view.format(id="message")) or "overview"
    file = f"{name}-{width}-{theme}.png"
    if PICTURES == "docs":
        if any(f"(images/{file})" in each.read_text("utf-8") for each in REFERENCE.glob("console*.md")):
            page.screenshot(path=REFERENCE / "images" / file)
    elif PICTURES:
        page.screenshot(path=Path(PICTURES) / file)


def look(open_console: Open, served: Served, message: str, width: int, theme: str) -> list[str]:
    """Go through every view, and return what is wrong. ``message``: the id of one."""
    page = open_console(width=width, height=HEIGHTS[width], theme=theme)
    return look_at(page, served.url, message, width, theme)


def look_at(page: Page, url: str, message: str, width: int, theme: str, state: str = "") -> list[str]:
    """Go through every view of a page that is logged in, and return what is wrong. ``state``: what its pictures are
    called; with one, a view may have less than usual.
    """
    page.mouse.move(1, 1)  # nothing is lit up as under a pointer
    axe = Axe()
    wrong: list[str] = []
    for view in VIEWS:
        page.goto(f"{url}/console#/{view.format(id=message)}")
        expect(page.locator("main .quiet", has_text="Loading…")).to_have_count(0)
        if view in FORMS and not state:
            page.locator(FORMS[view]).wait_for()
        page.wait_for_timeout(150)
        picture(page, f"{state}-{view}" if state else view, width, theme)
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            wrong.append(f"{view}: {over} pixels wider than the window")
        if not page.locator("main h1").inner_text():
            wrong.append(f"{view}: it has no title")
        options = {"runOnly": {"type": "tag", "values": TAGS}}
        found = axe.run(page, options=options).response["violations"]
        wrong += [f"{view}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in found]
    return wrong
