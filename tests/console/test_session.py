"""Login, scopes, the state of what is shown, and the keyboard."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Route, expect

from tests.console.conftest import BROKER, Open, Served, key_of


def test_a_wrong_key_opens_nothing(open_console: Open) -> None:
    page = open_console(client="")
    page.get_by_label("API key or token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    expect(page.get_by_label("API key or token")).to_have_value("")


def test_the_key_is_in_no_store_and_in_no_address(open_console: Open) -> None:
    page = open_console("messages")
    found = page.evaluate(
        "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href]"
    )
    assert not any(key_of("root") in each for each in found)
    page.reload()
    expect(page.get_by_label("API key or token")).to_be_visible()


def test_what_a_key_may_not_do_is_not_offered(open_console: Open, served: Served) -> None:
    served.queue("seen")
    page = open_console(client="publisher")
    views = page.get_by_role("navigation", name="Views")
    expect(views).to_contain_text("Publish")
    for name in ("API keys", "Bridges", "Dead letters", "Messages", "Endpoints"):
        expect(views.get_by_role("link", name=name)).to_have_count(0)
    page = open_console(f"queues/{BROKER}/seen", client="reader")
    expect(page.get_by_role("button", name="Empty")).to_be_visible()
    expect(page.locator(".actions").get_by_role("link", name="Publish")).to_have_count(0)
    page = open_console("keys", client="reader")
    expect(page.get_by_role("alert")).to_contain_text("lacks the scope admin")
    expect(page.get_by_role("button", name="Make a key")).to_have_count(0)
    page = open_console(client="publisher")
    expect(page.locator(".verdict")).to_have_text("Everything that your key may see runs.")
    for view, scope in (("bridges/new", "admin"), ("subscriptions/new", "subscribe"), ("queues/new", "broker:BROKER")):
        page.goto(f"{served.url}/console#/{view}")
        expect(page.locator("main .empty")).to_have_text(f"This needs the scope {scope}, which your key does not have.")


def test_input_is_kept_while_one_logs_in_again(open_console: Open, served: Served) -> None:
    made = served.call("POST", "/v1/keys", {"client": "typist", "scopes": [f"publish:{BROKER}/amq.default"]})
    page = open_console(client="")
    page.get_by_label("API key or token").fill(made["key"])
    page.get_by_role("button", name="Log in").click()
    page.locator("main h1").wait_for()
    page.goto(f"{served.url}/console#/publish")
    page.get_by_label("Body", exact=True).fill("a long letter")
    served.call("POST", f"/v1/keys/{made['id']}:revoke")
    page.get_by_role("button", name="Publish", exact=True).click()
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.get_by_label("Body", exact=True)).to_have_value("a long letter")


@pytest.mark.parametrize("hours", [-3, 3])
def test_ages_count_by_the_clock_of_the_gateway(open_console: Open, served: Served, hours: int) -> None:
    served.queue("dated")
    id = served.publish("dated", "x")
    page = open_console("messages", client="")
    page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=hours))
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    row = page.locator("tbody tr").first
    expect(row).to_contain_text(re.compile("just now|[0-9] s ago"))
    expect(page.locator(".clock")).to_contain_text("off. Ages count by the gateway's.")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text(id)


def test_numbers_that_stopped_say_so(open_console: Open) -> None:
    page = open_console("brokers")
    expect(page.locator(".liveness")).to_have_text("Live")
    page.keyboard.press(".")
    expect(page.locator(".liveness")).to_have_text("Paused")
    page.keyboard.press(".")
    expect(page.locator(".liveness")).to_have_text("Live")
    problem = '{"code": "overloaded", "title": "Busy", "detail": "busy for a while", "status": 503, "errors": []}'
    page.route("**/v1/brokers?*", lambda route: route.fulfill(status=503, body=problem))
    expect(page.locator(".liveness")).to_have_text("Stale")
    expect(page.locator(".stale-note")).to_contain_text("Not up to date")
    expect(page.locator("tbody")).to_contain_text(BROKER)
    page.unroute("**/v1/brokers?*")
    page.locator(".stale-note button").click()
    expect(page.locator(".liveness")).to_have_text("Live")


def test_a_list_of_queues_that_is_being_read_is_not_called_empty(open_console: Open) -> None:
    def unread(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        (queues,) = [each for each in found["kinds"] if each["kind"] == "queue"]
        queues |= {"count": 0, "well": 0, "more": True}
        route.fulfill(response=answer, json=found)

    page = open_console("brokers")
    page.route("**/v1/overview", unread)
    page.goto(page.url.partition("#")[0] + "#/")
    tile = page.locator(".tile", has_text="Queues")
    expect(tile).to_contain_text("0+")
    expect(tile).to_contain_text("being read")
    page.unroute("**/v1/overview")
    expect(tile).not_to_contain_text("being read", timeout=15_000)
    expect(page.locator("main h2")).to_have_text("The last 24 hours")


def test_events_come_by_themselves(open_console: Open, served: Served) -> None:
    served.queue("lively")
    page = open_console("events")
    expect(page.locator("main .state").first).to_have_text("live")
    served.publish("lively", "now")
    expect(page.locator("tbody")).to_contain_text("confirmed")


def test_the_keyboard_leads_everywhere(open_console: Open, served: Served) -> None:
    served.queue("keyboard")
    page = open_console()
    page.keyboard.press("?")
    expect(page.locator("dialog[open]")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    for letter, title in (("o", "Brokers"), ("b", "Bridges"), ("k", "API keys"), ("h", "Overview"), ("q", "Queues")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page.locator("h1")).to_have_text(title)
    page.locator("div.bar select").first.select_option(BROKER)
    page.keyboard.press("/")
    page.keyboard.type("keyboard")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.get_by_role("region", name="Queues").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"queues/{BROKER}/keyboard$"))


def test_an_address_that_is_no_view(open_console: Open) -> None:
    page = open_console("nothing/here")
    expect(page.locator("h1")).to_have_text("No such view")
