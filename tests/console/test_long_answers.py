"""Bad answers in every view, and to every action, each kind in several; and a silent gateway, for every view."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

import pytest
from playwright.sync_api import Route, expect

from tests.console.answers import (
    ANSWERS,
    API,
    DEEDS,
    READ_ONCE,
    WITHOUT_FEED,
    Spoiled,
    check_deed,
    check_view,
    few,
    problems,
    spoiled_page,
)
from tests.console.conftest import Open, Served
from tests.console.views import FORMS, VIEWS

READ: Final = [each for each in VIEWS if each not in WITHOUT_FEED]
"""Views that ask the gateway for what they show."""


@pytest.fixture
def spoiled(open_console: Open, served: Served, something: str) -> Spoiled:
    return spoiled_page(open_console, served, something)


@pytest.mark.parametrize("view", READ)
def test_a_view(spoiled: Spoiled, view: str) -> None:
    check_view(spoiled, view, few(READ.index(view)))


@pytest.mark.parametrize("name", DEEDS)
def test_an_action(spoiled: Spoiled, name: str) -> None:
    check_deed(spoiled, name, few([*DEEDS].index(name)))


def test_every_answer_comes_to_several_views_and_actions() -> None:
    for places in (READ, DEEDS):
        counted = Counter(name for number in range(len(places)) for name in few(number))
        assert counted.keys() == ANSWERS.keys()
        assert min(counted.values()) > 1


@pytest.mark.parametrize("view", READ)
def test_a_view_that_was_never_read_says_so(spoiled: Spoiled, view: str) -> None:
    """Opened while the gateway answers badly; it comes back without a press."""
    page = spoiled.page
    spoiled.open("me")
    for name in ("502", "empty", "503-later"):
        spoiled.bad = ANSWERS[name]
        page.goto(f"{spoiled.url}/console#/{view.format(id=spoiled.id)}")
        expect(problems(page)).to_have_count(1)
        expect(problems(page)).to_contain_text(ANSWERS[name].says)
        expect(page.locator("main .quiet", has_text="Loading…")).to_have_count(0)
        spoiled.bad = None
        spoiled.pass_time(11)
        expect(problems(page)).to_have_count(0)
        spoiled.open("me")
        expect(page.locator("main h1")).to_have_text("My access")


@pytest.mark.parametrize("view", [each for each in VIEWS if each != "events"])
def test_a_view_whose_gateway_is_silent_says_so_and_asks_once(spoiled: Spoiled, view: str) -> None:
    page = spoiled.page
    spoiled.open(view)
    before = spoiled.shown()
    held: list[Route] = []
    page.route(API, lambda route: held.append(route))
    for _ in range(9):
        spoiled.pass_time(3)
    expect(page.locator(".liveness")).to_have_text("Stale")
    asked = [each.request.url for each in held]
    assert len(asked) <= 3 * len(set(asked)), "a look at the gateway is given up after 10 s, and then there is another"
    paths = [each for each in asked if not each.endswith("/v1/caller")]
    assert sorted(paths) == sorted(set(paths)), "a view does not ask again while it waits"
    if view not in (*READ_ONCE, *WITHOUT_FEED, *FORMS):  # a form reads its choices every minute: none is due yet
        expect(problems(page)).to_have_count(1)
        expect(problems(page)).to_contain_text(re.compile("has not answered for [0-9]+ s|cannot be reached"))
    assert spoiled.shown() == before
    page.unroute(API)
    for _ in range(4):
        spoiled.pass_time(3)
    expect(page.locator(".liveness")).to_have_text("Live")
    expect(problems(page)).to_have_count(0)
