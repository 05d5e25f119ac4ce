"""A gateway that answers late, badly or not at all: what each view says, what it keeps, and how it comes back.

Answers that are made up come from the browser; those that are late, cut or never come, from a proxy in front of the
gateway. The suite ``console-answers`` has every kind of answer, every view and every action.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.console.answers import (
    API,
    DEEDS,
    HTML,
    SOME,
    Bad,
    Spoiled,
    check_deed,
    check_view,
    problems,
    spoiled_page,
)
from tests.console.conftest import BROKER, Open, Served, console_at, key_of, wait_until
from tests.console.spoiling import SpoilingProxy, Spoils, spoiling

SAYS_SO_SECONDS: Final = 16.0
"""Most seconds after which a page says that the gateway is silent, and after which it is live again: the page looks
every 4 s, and waits 10 s; the rest is for a machine that is busy."""


@pytest.fixture
def spoiled(open_console: Open, served: Served, something: str) -> Spoiled:
    return spoiled_page(open_console, served, something)


# ----------------------------------------------------------------------------------------- answers that are made up


@pytest.mark.parametrize("view", ["", "dead", f"queues/{BROKER}/orders", "bridges/new"])
def test_a_view_says_what_is_wrong_and_keeps_what_it_shows(spoiled: Spoiled, view: str) -> None:
    check_view(spoiled, view, SOME)


@pytest.mark.parametrize("name", ["publish", "delete a queue", "redrive some", "make a key"])
def test_an_action_says_what_is_known_and_keeps_what_was_typed(spoiled: Spoiled, name: str) -> None:
    check_deed(spoiled, name, SOME)


def test_an_answer_of_another_shape_is_no_blank_page(spoiled: Spoiled) -> None:
    page = spoiled.page
    spoiled.open("me")
    for view in ("brokers", "", f"queues/{BROKER}/orders", "dead", "messages/{id}"):
        spoiled.bad = Bad("the console cannot read it", 200, '{"fine": true}', {"content-type": "application/json"})
        spoiled.wanted = lambda asked: "/v1/caller" not in asked
        page.goto(f"{spoiled.url}/console#/{view.format(id=spoiled.id)}")
        expect(problems(page)).to_contain_text("the console cannot read it")
        spoiled.bad = None
        page.get_by_role("button", name="Try again").click()
        expect(problems(page)).to_have_count(0)
        expect(page.locator("main h1")).not_to_have_text("This view cannot be shown")


@pytest.mark.parametrize("name", ["publish", "pause an endpoint", "make a key", "declare a queue"])
def test_a_double_click_acts_once(spoiled: Spoiled, served: Served, name: str) -> None:
    deed, page = DEEDS[name], spoiled.page
    asked: list[str] = []

    def count(request: Request) -> None:
        if request.method != "GET":
            asked.append(request.url)

    page.on("request", count)
    spoiled.open(deed.view)
    deed.press(page)
    deed.button(page).dblclick()
    page.wait_for_timeout(700)
    assert len(asked) == 1, asked
    served.call("POST", "/v1/endpoints/warehouse:resume")


# ---------------------------------------------------------------------------------------------- the real thing


@pytest.fixture
def proxy(served: Served) -> Iterator[SpoilingProxy]:
    with spoiling(served.process.port) as found:
        yield found


@pytest.fixture
def behind(browser: Browser, proxy: SpoilingProxy, something: str) -> Iterator[Open]:
    """Pages behind the proxy."""
    with console_at(browser, proxy.url) as opened:
        yield opened


def seconds_until(what: Callable[[], Any], page: Page) -> float:
    """How long it takes."""
    began = time.monotonic()
    wait_until(what, page)
    return time.monotonic() - began


@pytest.mark.parametrize("view", ["queues", "events", "me"])
def test_a_silent_gateway_shows_in_time_and_comes_back(behind: Open, proxy: SpoilingProxy, view: str) -> None:
    page = behind(view)
    expect(page.locator(".liveness")).to_have_text("Live")
    page.wait_for_timeout(1000)
    proxy.spoil(Spoils.SILENT)
    assert seconds_until(lambda: page.locator(".liveness").inner_text() == "Stale", page) < SAYS_SO_SECONDS
    if view == "queues":
        expect(problems(page)).to_contain_text("Not up to date: last read")
        expect(page.locator("main tbody")).to_contain_text("orders.dead")
    proxy.heal()
    assert seconds_until(lambda: page.locator(".liveness").inner_text() == "Live", page) < SAYS_SO_SECONDS
    expect(problems(page)).to_have_count(0)


def test_a_stream_that_stops_is_stale_and_goes_on(behind: Open, proxy: SpoilingProxy, served: Served) -> None:
    """Nothing but the stream of events is silent."""
    served.queue("streamed")
    page = behind("events")
    state = page.locator("main p .state")
    expect(state).to_have_text("live")
    proxy.spoil(Spoils.SILENT, "/v1/events")
    served.publish("streamed", "unheard")
    assert seconds_until(lambda: state.inner_text() == "stale", page) < SAYS_SO_SECONDS + 4, (
        "a stream may be silent for 15 s"
    )
    expect(page.locator("main")).to_contain_text("The gateway has stopped sending events.")
    expect(page.locator("main")).to_contain_text("last heard of")
    expect(page.locator(".liveness")).to_have_text("Stale")
    proxy.heal()
    expect(state).to_have_text("live")
    served.publish("streamed", "heard")
    expect(page.locator("main tbody")).to_contain_text("confirmed")
    expect(page.locator(".liveness")).to_have_text("Live")


@pytest.mark.parametrize(
    "view", ["queues", f"queues/{BROKER}/orders", "messages", "endpoints/warehouse", "bridges/new"]
)
def test_an_answer_that_is_cut_or_reset(behind: Open, proxy: SpoilingProxy, view: str) -> None:
    page = behind(view)
    expect(page.locator("main .quiet", has_text="Loading…")).to_have_count(0)
    for spoils in (Spoils.CUT, Spoils.BROKEN):
        proxy.spoil(spoils, " /v1/")
        expect(page.locator(".liveness")).to_have_text("Stale")
        page.reload()  # the page itself is not spoiled
        expect(page.locator("main .problem")).to_contain_text(re.compile("broke off|cannot be reached"))
        proxy.heal()
        page.get_by_label("API key or token").fill(key_of("root"))
        page.get_by_role("button", name="Log in").click()
        page.locator("main h1").wait_for()
        expect(problems(page)).to_have_count(0)


def test_a_slow_gateway_is_slow_and_nothing_else(behind: Open, proxy: SpoilingProxy) -> None:
    page = behind()
    proxy.spoil(Spoils.LATE, "/v1/", 2.0)
    page.goto(f"{proxy.url}/console#/queues")
    expect(page.locator("main .quiet", has_text="Loading…")).to_have_count(1)
    expect(page.locator("main tbody")).to_contain_text("orders.dead")
    expect(problems(page)).to_have_count(0)
    proxy.requests.clear()
    page.wait_for_timeout(8000)
    assert sum("/v1/queues?" in each for each in proxy.requests) <= 2
    expect(page.locator(".liveness")).to_have_text("Live")


def test_an_old_answer_is_not_shown_over_a_newer_view(behind: Open, proxy: SpoilingProxy, served: Served) -> None:
    served.queue("late-one")
    served.queue("soon-one")
    page = behind("queues")
    proxy.spoil(Spoils.LATE, "search=late", 3.0)
    search = page.get_by_label("Find a queue")
    search.fill("late-one")
    page.wait_for_timeout(500)
    search.fill("soon-one")
    rows = page.get_by_role("region", name="Queues", exact=True).locator("tbody tr")
    expect(rows).to_have_count(1)
    proxy.spoil(Spoils.LATE, "queues/late-one", 3.0)
    page.wait_for_timeout(4000)
    expect(rows).to_contain_text("soon-one")
    # An action that ends after the reader went elsewhere does not take them back.
    page.goto(f"{proxy.url}/console#/queues/{BROKER}/late-one")
    page.get_by_role("button", name="Delete", exact=True).click()
    page.locator("dialog input").fill("late-one")
    page.locator("dialog .buttons").get_by_role("button", name="Delete").click()
    page.keyboard.press("Escape")
    page.goto(f"{proxy.url}/console#/me")
    expect(page.locator(".notices")).to_contain_text("The queue is deleted.")
    expect(page.locator("main h1")).to_have_text("My access")


def test_a_publish_whose_answer_never_comes_is_done_once(behind: Open, proxy: SpoilingProxy, served: Served) -> None:
    served.queue("once")
    page = behind("publish")
    page.get_by_label("Routing key").fill("once")
    page.get_by_label("Body", exact=True).fill("a long letter")
    for spoils in (Spoils.BROKEN, Spoils.CUT):
        proxy.spoil(spoils, ":publish")
        page.get_by_role("button", name="Publish", exact=True).click()
        expect(problems(page)).to_contain_text("It is not known whether this was done.")
        expect(problems(page)).to_contain_text("the gateway does it only once")
    proxy.heal()
    expect(page.get_by_label("Body", exact=True)).to_have_value("a long letter")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".result")).to_contain_text("The broker has it")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/once")["messages"] == 1
    page.get_by_role("button", name="Publish", exact=True).click()  # what is known to be done is done again
    wait_until(lambda: served.call("GET", f"/v1/brokers/{BROKER}/queues/once")["messages"] == 2, page)


def test_an_action_whose_answer_never_comes_says_so(behind: Open, proxy: SpoilingProxy, served: Served) -> None:
    """And the view shows what was done."""
    page = behind("", client="")
    page.clock.install()
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    page.goto(f"{proxy.url}/console#/endpoints/warehouse")
    proxy.spoil(Spoils.BROKEN, ":pause")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".lead .state")).to_have_text("paused")
    proxy.spoil(Spoils.SILENT, ":resume")
    page.get_by_role("button", name="Resume", exact=True).click()
    page.wait_for_timeout(300)
    page.clock.fast_forward(46_000)
    expect(problems(page)).to_contain_text("It is not known whether this was done.")
    expect(problems(page)).to_contain_text("The gateway did not answer within 45 seconds.")
    problems(page).get_by_role("link", name="audit log").click()
    expect(page.locator("h1")).to_have_text("Audit log")
    expect(page.get_by_label("On which path")).to_have_value("/v1/endpoints/warehouse:resume")
    served.call("POST", "/v1/endpoints/warehouse:resume")


# ---------------------------------------------------------------------------------------------------- login


@dataclass
class Typist:
    """A client with two keys, one of which is revoked in time."""

    served: Served
    keys: list[Any]

    def revoke(self) -> None:
        """End the first one."""
        self.served.call("POST", f"/v1/keys/{self.keys[0]['id']}:revoke")


@pytest.fixture
def typist(served: Served) -> Iterator[Typist]:
    scopes = [f"publish:{BROKER}/*", f"broker:{BROKER}", f"consume:{BROKER}/*"]
    keys = [served.call("POST", "/v1/keys", {"client": "typist-twice", "scopes": scopes}) for _ in range(2)]
    yield Typist(served, keys)
    served.call("POST", f"/v1/keys/{keys[1]['id']}:revoke")


def _log_in(page: Page, key: str) -> None:
    page.get_by_label("API key or token").fill(key)
    page.get_by_role("button", name="Log in").click()


def test_an_action_goes_on_after_a_login_that_expired(open_console: Open, served: Served, typist: Typist) -> None:
    served.queue("typed")
    page = open_console(client="")
    _log_in(page, typist.keys[0]["key"])
    page.locator("main h1").wait_for()
    page.goto(f"{served.url}/console#/publish")
    page.get_by_label("Routing key").fill("typed")
    page.get_by_label("Body", exact=True).fill("a long letter")
    typist.revoke()
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator("dialog")).to_contain_text("Log in to go on")
    _log_in(page, typist.keys[1]["key"])
    expect(page.locator(".result")).to_contain_text("The broker has it")
    expect(page.get_by_label("Body", exact=True)).to_have_value("a long letter")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/typed")["messages"] == 1


def test_a_dialog_stays_over_a_login_that_expired(open_console: Open, served: Served, typist: Typist) -> None:
    served.queue("asked")
    served.publish("asked", "x")
    page = open_console(client="")
    _log_in(page, typist.keys[0]["key"])
    page.locator("main h1").wait_for()
    page.goto(f"{served.url}/console#/queues/{BROKER}/asked")
    page.get_by_role("button", name="Empty", exact=True).click()
    page.locator("dialog input").fill("asked")
    typist.revoke()
    page.locator("dialog").get_by_role("button", name="Empty").click()
    page.get_by_label("API key or token").fill(key_of("root"))  # somebody else
    page.get_by_role("button", name="Log in").click()
    expect(problems(page)).to_contain_text("You have logged in as another client. Nothing was done")
    expect(page.locator("dialog input")).to_have_value("asked")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/asked")["messages"] == 1
    page.locator("dialog .buttons").get_by_role("button", name="Try again").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/asked")["messages"] == 0


def test_a_login_without_an_answer_keeps_the_key(open_console: Open, served: Served) -> None:
    page = open_console(client="")
    expect(page.get_by_label("API key or token")).to_be_visible()
    page.route(API, lambda route: route.fulfill(status=502, body=HTML))
    _log_in(page, key_of("root"))
    expect(page.locator("dialog .problem")).to_contain_text("answered 502 Bad Gateway")
    page.unroute(API)
    page.get_by_role("button", name="Log in").click()
    page.locator("main h1").wait_for()
    expect(page.locator("dialog")).to_have_count(0)
