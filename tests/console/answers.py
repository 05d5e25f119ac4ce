"""Bad answers, made up in the browser (``page.route``), and what views and actions have to say of them.

Where a page would wait, its clock is set forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Locator, Page, Route, expect

from tests.console.conftest import BROKER, Open, Served, key_of, wait_until

API: Final = re.compile(r"/v1/|/openapi\.json")
WITHOUT_FEED: Final = ("me", "events")
"""Views that read nothing again and again, or follow a stream."""


@dataclass(frozen=True)
class Bad:
    """An answer that is not the one that was asked for."""

    says: str
    """What the page says of it."""
    status: int = 0
    """0: there is no answer."""
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    unknown: bool = True
    """Whether it leaves open what the gateway did."""

    def give(self, route: Route) -> None:
        """Answer with it."""
        if self.status:
            route.fulfill(status=self.status, body=self.body, headers=self.headers)
        else:
            route.abort("connectionreset")


HTML: Final = "<html><body><h1>Bad Gateway</h1></body></html>"
PROBLEM: Final = '{"code": "overloaded", "title": "Too much is under way", "detail": "busy: 9 of 9", "status": 503}'
PROBLEM_JSON: Final = {"content-type": "application/problem+json"}
ANSWERED: Final = "The gateway, or a proxy in front of it, answered"
ANSWERS: Final = {
    "503": Bad("busy: 9 of 9", 503, PROBLEM, PROBLEM_JSON, unknown=False),
    "503-later": Bad("Wait 7 s before you try again.", 503, PROBLEM, {**PROBLEM_JSON, "retry-after": "7"}, False),
    "503-html": Bad(f"{ANSWERED} 503 Service Unavailable", 503, HTML, {"content-type": "text/html"}),
    "500": Bad(f"{ANSWERED} 500 Internal Server Error", 500, "Internal Server Error"),
    "500-problem": Bad("The gateway failed", 500, '{"code": "internal", "title": "The gateway failed"}', PROBLEM_JSON),
    "429": Bad("Wait 9 s before you try again.", 429, "", {"retry-after": "9"}, unknown=False),
    "502": Bad(f"{ANSWERED} 502 Bad Gateway", 502, HTML, {"content-type": "text/html"}),
    "502-json": Bad(
        f"{ANSWERED} 502 Bad Gateway", 502, '{"error": {"code": 502}}', {"content-type": "application/json"}
    ),
    "broken": Bad("The gateway cannot be reached."),
    "not-json": Bad("the console cannot read it", 200, HTML, {"content-type": "text/html"}),
    "half-json": Bad(
        "the console cannot read it", 200, '{"queues": [{"name": "ord', {"content-type": "application/json"}
    ),
    "null": Bad("the console cannot read it", 200, "null", {"content-type": "application/json"}),
    "empty": Bad("The answer is empty.", 200),
}

READ_ONCE: Final = (f"queues/{BROKER}/orders/messages?no=1",)
"""Views that read when somebody asks, and not again and again."""
SOME: Final = ("503-later", "502", "broken", "empty")
"""Those that differ most; the suite ``console-answers`` has the others."""


def few(place: int) -> list[str]:
    """Of the answers as many as of :data:`SOME`, other ones for each place: all views read in one way, and all actions
    ask in one way, so that each answer need not come everywhere."""
    names = [*ANSWERS]
    return [names[(place * len(SOME) + number) % len(names)] for number in range(len(SOME))]


@dataclass
class Spoiled:
    """A page whose requests get a bad answer while there is one."""

    page: Page
    url: str
    id: str
    """Of a message."""
    bad: Bad | None = None
    wanted: Callable[[str], bool] = lambda _: True
    """Whether a request, ``METHOD /path``, gets it."""
    seen: list[str] = field(default_factory=list)
    """The requests that got it."""
    keys: list[str] = field(default_factory=list)
    """Their idempotency keys."""

    def __post_init__(self) -> None:
        self.page.route(API, self._answer)

    def _answer(self, route: Route) -> None:
        asked = f"{route.request.method} {route.request.url.removeprefix(self.url)}"
        if self.bad is None or not self.wanted(asked):
            route.continue_()
            return
        self.seen.append(asked)
        self.keys.append(route.request.headers.get("idempotency-key", ""))
        self.bad.give(route)

    def open(self, view: str) -> None:
        """Show a view, with all that it reads."""
        self.page.goto(f"{self.url}/console#/{view.format(id=self.id)}")
        self.page.locator("main h1").wait_for()
        expect(self.page.locator("main .quiet", has_text="Loading…")).to_have_count(0)

    def wait_for(self, count: int) -> None:
        """Wait until so many requests got the bad answer."""
        wait_until(lambda: len(self.seen) == count, self.page)

    def pass_time(self, seconds: float) -> None:
        """Have the timers of the page go off that are due within this time."""
        self.page.clock.fast_forward(int(seconds * 1000))

    def shown(self) -> list[str]:
        """What the view shows of the gateway: every name."""
        return self.page.locator("main bdi.name").all_inner_texts()


def problems(page: Page) -> Locator:
    """What a view or a dialog says of failures."""
    return page.locator("main .problem, dialog .problem")


def fill(page: Page) -> dict[str, str]:
    """Type into every text field of the form of a view; what each has then."""
    fields = page.locator("main form.edit input:not([type]), main form.edit textarea")
    typed = {}
    for number in range(fields.count()):
        one = fields.nth(number)
        if one.is_visible():
            words = '{"typed": 1}' if one.evaluate("each => each.tagName") == "TEXTAREA" else "typed"
            one.fill(words)
            typed[str(one.get_attribute("id"))] = words
    return typed


def have(page: Page, typed: dict[str, str]) -> None:
    """What was typed is still there."""
    for id, words in typed.items():
        expect(page.locator(f"#{id}")).to_have_value(words)


def spoiled_page(open_console: Open, served: Served, id: str) -> Spoiled:
    """A page that is logged in. ``id``: of a message."""
    page = open_console(client="")
    page.clock.install()
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    page.locator("main h1").wait_for()
    return Spoiled(page, served.url, id)


def check_view(spoiled: Spoiled, view: str, answers: Iterable[str]) -> None:
    """A view says once what is wrong, keeps what it shows and what was typed, and *Try again* helps."""
    page = spoiled.page
    spoiled.open(view)
    typed = fill(page)
    before = spoiled.shown()
    wrong = []
    for name in answers:
        bad = spoiled.bad = ANSWERS[name]
        if view in READ_ONCE:
            page.get_by_role("button", name="Look again").click()
        else:
            spoiled.pass_time(61)
        note = problems(page)
        try:
            expect(note.filter(has_text=bad.says)).to_have_count(1, timeout=8_000)
            expect(note).to_have_count(1, timeout=8_000)
            expect(note).to_contain_text("Not up to date: last read")
            expect(page.locator(".liveness")).to_have_text("Stale")
            assert spoiled.shown() == before
            have(page, typed)
            spoiled.bad = None
            note.get_by_role("button", name="Try again").click()
            expect(note).to_have_count(0, timeout=8_000)
            spoiled.pass_time(5)
            expect(page.locator(".liveness")).to_have_text("Live", timeout=8_000)
            assert spoiled.shown() == before
        except AssertionError as error:
            wrong.append(f"{name}: {str(error)[:300]}")
            spoiled.bad = None
            spoiled.pass_time(61)
    assert wrong == []


# -------------------------------------------------------------------------------------------------- actions


@dataclass(frozen=True)
class Deed:
    """Something that can be done, as far as the press that asks the gateway."""

    view: str
    press: Callable[[Page], None]
    """Up to where the last button can be pressed."""
    button: Callable[[Page], Locator]
    """The last button."""
    asks: str
    """The request, as a part of ``METHOD /path``."""
    typed: Callable[[Page], None] = lambda _: None
    """What was typed is still there."""
    reads: bool = False
    """Whether it changes nothing: then nothing is unknown."""


def _main(name: str) -> Callable[[Page], Locator]:
    return lambda page: page.locator("main").get_by_role("button", name=name, exact=True).first


def _dialog(name: str) -> Callable[[Page], Locator]:
    pattern = re.compile(f"^({re.escape(name)}|Try again)$")
    return lambda page: page.locator("dialog .buttons").get_by_role("button", name=pattern)


def _ask(name: str, word: str = "", row: str = "") -> Callable[[Page], None]:
    def press(page: Page) -> None:
        place = page.locator("main tbody tr", has_text=row) if row else page.locator("main")
        place.get_by_role("button", name=name, exact=True).first.click()
        if word:
            page.locator("dialog input").fill(word)

    return press


def _has(selector: str, words: str) -> Callable[[Page], None]:
    return lambda page: expect(page.locator(selector)).to_have_value(words)


def _fills(fields: dict[str, str], first: str = "") -> Callable[[Page], None]:
    def press(page: Page) -> None:
        if first:
            page.locator("main").get_by_role("button", name=first, exact=True).click()
        for selector, words in fields.items():
            page.locator(selector).fill(words)

    return press


def _nothing(_: Page) -> None:
    """Nothing comes before the press."""


def _pick(page: Page) -> None:
    page.locator("main tbody input[type=checkbox]").first.check()
    page.locator(".selection").get_by_role("button", name="Redrive").click()


def _open_dead(page: Page) -> None:
    page.get_by_role("region", name="Dead letters", exact=True).locator("tbody a").first.click()
    expect(page.locator("main h1")).to_have_text("Dead letter")


def _open_dead_and_delete(page: Page) -> None:
    _open_dead(page)
    page.locator(".head").get_by_role("button", name="Delete").click()
    page.locator("dialog input").fill(page.locator("dialog code").inner_text())


def _bind(page: Page) -> None:
    page.get_by_text("Bind a queue or an exchange to it").click()
    page.locator("details.other input").first.fill("orders")


QUEUE: Final = f"queues/{BROKER}/orders"
RETURNS: Final = "dead?code=rejected&subscription=returns"
DEEDS: Final = {
    "publish": Deed("publish", _fills({"#publish-routing_key": "orders", "#publish-payload": "a long letter"}),
                    _main("Publish"), ":publish", _has("#publish-payload", "a long letter")),
    "empty a queue": Deed(QUEUE, _ask("Empty", "orders"), _dialog("Empty"), ":purge", _has("dialog input", "orders")),
    "delete a queue": Deed(QUEUE, _ask("Delete", "orders"), _dialog("Delete"), "DELETE",
                           _has("dialog input", "orders")),
    "declare a queue": Deed("queues/new", _fills({"#declare-name": "fresh"}), _main("Declare a queue"), "PUT",
                            _has("#declare-name", "fresh")),
    "declare an exchange": Deed("exchanges/new", _fills({"#declare-name": "fresh"}), _main("Declare an exchange"),
                                "PUT", _has("#declare-name", "fresh")),
    "delete an exchange": Deed(f"exchanges/{BROKER}/orders.events", _ask("Delete", "orders.events"), _dialog("Delete"),
                               "DELETE", _has("dialog input", "orders.events")),
    "bind": Deed(f"exchanges/{BROKER}/orders.events", _bind, _main("Bind"), "POST",
                 _has("details.other input >> nth=0", "orders")),
    "unbind": Deed(f"exchanges/{BROKER}/orders.events", _ask("Unbind", row="orders.dead"), _dialog("Unbind"), "DELETE"),
    "probe a broker": Deed(f"brokers/{BROKER}", _nothing, _main("Probe versions"), ":probe"),
    "pause an endpoint": Deed("endpoints/warehouse", _nothing, _main("Pause"), ":pause"),
    "test an endpoint": Deed("endpoints/warehouse", _nothing, _main("Send a test"), ":test"),
    "rotate keys": Deed("endpoints/warehouse", _ask("Rotate keys"), _dialog("Rotate keys"), ":rotate"),
    "delete an endpoint": Deed("endpoints/warehouse", _ask("Delete", "warehouse"), _dialog("Delete"), "DELETE",
                               _has("dialog input", "warehouse")),
    "try a replay": Deed("endpoints/warehouse", _nothing, _main("Dry run"), "POST /v1/replays", reads=True),
    "save a bridge": Deed("bridges/to-0-10/edit", _fills({"#field-source-queue": "typed"}), _main("Save"), "PUT",
                          _has("#field-source-queue", "typed")),
    "pause a bridge": Deed("bridges/to-0-10", _nothing, _main("Pause"), ":pause"),
    "drain a bridge": Deed("bridges/to-0-10", _nothing, _main("Drain"), ":drain"),
    "compare": Deed("bridges/to-0-10", _nothing, _main("Compare by the ledger"), ":compare", reads=True),
    "pause a subscription": Deed("subscriptions/shipping", _nothing, _main("Pause"), ":pause"),
    "redrive some": Deed(RETURNS, _pick, _dialog("Redrive"), "POST /v1/replays"),
    "count all": Deed(RETURNS, _nothing, _main("Redrive all"), "POST /v1/replays", reads=True),
    "redrive one": Deed(RETURNS, _open_dead, _main("Redrive"), ":retry"),
    "delete one": Deed(RETURNS, _open_dead_and_delete, _dialog("Delete"), ":purge"),
    "pause a replay": Deed("replays/returns-again", _nothing, _main("Pause"), ":pause"),
    "cancel a replay": Deed("replays/returns-again", _ask("Cancel", "returns-again"), _dialog("Cancel the replay"),
                            ":cancel", _has("dialog input", "returns-again")),
    "move a schedule": Deed("schedules", _ask("Change the time"), _dialog("Save"), "PATCH"),
    "cancel a schedule": Deed("schedules", _ask("Cancel"), _dialog("Cancel the message"), "DELETE"),
    "make a key": Deed("keys", _fills({"#key-client": "night-shift", "#key-scopes": "history"}, "Make a key"),
                       _dialog("Make a key"), "POST /v1/keys", _has("#key-client", "night-shift")),
    "replace a key": Deed("keys", _ask("Replace", row="late-shift"), _dialog("Replace"), ":rotate"),
    "revoke a key": Deed("keys", _ask("Revoke", "late-shift", row="late-shift"), _dialog("Revoke"), ":revoke",
                         _has("dialog input", "late-shift")),
}  # fmt: skip


def check_deed(spoiled: Spoiled, name: str, answers: Iterable[str]) -> None:
    """An action says what is known, once, and keeps what was typed; another try asks once more."""
    deed, page = DEEDS[name], spoiled.page
    spoiled.open(deed.view)
    deed.press(page)
    spoiled.wanted = lambda asked: deed.asks in asked and not asked.startswith("GET ")
    for kind in answers:
        bad = spoiled.bad = ANSWERS[kind]
        spoiled.seen.clear()
        spoiled.keys.clear()
        for count in (1, 2):  # the second one is another try
            button = deed.button(page)
            expect(button).to_be_enabled()
            button.click()
            spoiled.wait_for(count)
            expect(button).to_be_enabled()
        assert len(spoiled.seen) == 2, kind
        note = problems(page)
        expect(note).to_have_count(1)
        expect(note).to_contain_text(bad.says)
        unknown = bad.unknown and not deed.reads
        expect(note.get_by_text("It is not known whether this was done.")).to_have_count(int(unknown))
        if unknown and name not in ("publish", "redrive some"):
            expect(note.get_by_text("look whether it was done before you do it again")).to_have_count(1)
            expect(note.get_by_role("link", name="audit log")).to_have_count(1)
        elif unknown:
            expect(note).to_contain_text("the gateway does it only once")
        deed.typed(page)
        if name == "publish":
            assert all(spoiled.keys), "each has an idempotency key"
            assert (spoiled.keys[0] == spoiled.keys[1]) == bad.unknown, kind
