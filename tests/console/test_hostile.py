"""Names, headers and bodies that want to be more than text."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.console.conftest import BROKER, Open, Served

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
NAMES = {
    "markup": MARKUP,
    "quotes": "\"'`--></style></title><svg onload=alert(1)>",
    "template": "${alert(1)}{{7*7}}<%= 7 %>",
    "bidi": "invoice\u202efdp.exe",
    "controls": "a\u0007b\u001b[31mred",
    "invisible": "a\u200bb\ufeffc",
    "path": "../../v1/keys?x=1#y/%2e%2e",
    "scripts": "日本語 עברית العربية हिन्दी 🐇",
    "long": "é" * 127,
}
SHOWN = {"bidi": "invoice\\u202efdp.exe", "controls": "a\\u0007b\\u001b[31mred", "invisible": "a\\u200bb\\ufeffc"}
"""What is shown where that is not the name itself."""


def untouched(page: Any) -> None:
    """Nothing of the text became a part of the page."""
    assert page.locator("main img, main script, main svg").count() == 0


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_is_text_wherever_it_stands(open_console: Open, served: Served, kind: str) -> None:
    name = NAMES[kind]
    served.queue(quote(name, safe=""))
    headers = {name[:60]: name}
    id = served.publish(name, MARKUP, properties={"message_id": name[:100]}, headers=headers)
    page = open_console("queues?broker=" + BROKER)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.get_by_label("Find a queue").fill(SHOWN.get(kind, name)[:7])
    row = page.get_by_role("link", name=SHOWN.get(kind, name), exact=True)
    row.wait_for()
    untouched(page)
    row.click()
    expect(page.locator("h1")).to_have_text(SHOWN.get(kind, name))
    expect(page.locator(".tile").first).to_contain_text("1")
    page.get_by_role("link", name="Show its messages").click()
    page.get_by_role("region", name="Messages").locator("tbody a").first.click()
    expect(page.locator(".body pre")).to_contain_text("<img src=x")
    untouched(page)
    page.goto(f"{served.url}/console#/messages/{id}")
    expect(page.locator(".facts")).to_contain_text(SHOWN.get(kind, name)[:20])
    untouched(page)
    page.get_by_role("button", name="Publish one like it").click()
    expect(page.locator("#publish-routing_key")).to_have_value(name)


BODIES = {
    "markup": MARKUP,
    "almost JSON": '{"a": 1, "b": [1, 2,, "c": "</script>"}',
    "one line": "x" * 1_000_000,
    "controls": "a\u0000b\u001b]0;title\u0007\u202eabc",
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_is_text(open_console: Open, served: Served, kind: str) -> None:
    name = f"body-{kind.replace(' ', '-')}"
    served.queue(name)
    served.call("PUT", f"/v1/subscriptions/{name}", {"broker": BROKER, "queue": name, "lease": "ledger"})
    served.publish(name, BODIES[kind])
    pulled: list[Any] = []
    while not pulled:
        pulled = served.call("POST", f"/v1/subscriptions/{name}:pull", {"wait_seconds": 5})["messages"]
    body = {"ack_ids": [each["ack_id"] for each in pulled], "reason": MARKUP}
    served.call("POST", f"/v1/subscriptions/{name}:reject", body)
    page = open_console(f"dead?subscription={name}")
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page.get_by_role("region", name="Dead letters", exact=True).locator("tbody a").first.click()
    shown = page.locator(".body pre")
    expect(shown).to_contain_text({"controls": "a\\u0000b"}.get(kind, BODIES[kind][:20]))
    for form in ("JSON", "Hex", "Text"):
        page.locator(".tabs").get_by_role("button", name=form).click()
        shown.wait_for()
    if kind == "one line":
        expect(page.locator(".part")).to_contain_text("The first 64 KiB of 1,000,000 bytes")
    untouched(page)
