"""What scopes are written like, and what they allow."""

from __future__ import annotations

import pytest

from gateway.access.scopes import DEVELOPER, FORMS, REMEMBERED, VISITOR, Grant, parse_scope, principal_of
from gateway.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "grant"),
    [
        ("admin", Grant("admin")),
        ("admin:*", Grant("admin")),
        ("history", Grant("history")),
        ("publish:b/ex", Grant("publish", "b", "ex")),
        ("publish:b/amq.default", Grant("publish", "b", "")),
        ("consume:b/amq.default", Grant("consume", "b", "amq.default")),
        ("consume:*/*", Grant("consume", "*", "*")),
        ("consume:b/a/b:c", Grant("consume", "b", "a/b:c")),
        ("broker:b", Grant("broker", "b")),
        ("endpoint:shop/a:b", Grant("endpoint", "*", "shop/a:b")),
        ("publish:b/a/b.*", Grant("publish", "b", "a/b.*")),
        ("publish:b/a%2Fb", Grant("publish", "b", "a%2Fb")),
        ("subscribe:b/a/b", Grant("subscribe", "b", "a/b")),
        ("route:b/ex/a.*.#", Grant("route", "b", "ex", "a.*.#")),
        ("route:*/*/#", Grant("route", "*", "*", "#")),
        ("route:b/amq.default/orders", Grant("route", "b", "", "orders")),
        ("route:b%2F1/a%2Fb/x%2Fy.%2A", Grant("route", "b/1", "a/b", "x/y.*")),
        ("route:b/a%2Ab/x", Grant("route", "b", "a*b", "x")),
        ("route:b/%FF/x", Grant("route", "b", "\udcff", "x")),
    ],
)
def test_scopes(text: str, grant: Grant) -> None:
    assert parse_scope(text) == grant


@pytest.mark.parametrize(
    "text",
    ["", "root", "publish", "publish:b", "publish:/x", "read:b/q", "admin:", "admin:b", "broker", "broker:",
     "endpoint:", "route", "route:", "route:b", "route:b/x", "subscribe:b",
     "route:b/\ud800/x", "history:", "history:*", "Admin", " admin", "publish:b/ex\x00".partition("/")[0]],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="scopes"):
        parse_scope(text)


@pytest.mark.parametrize(("text", "what"), [("publish:b/", "write amq.default"), ("consume:b/", "name a queue")])
def test_nothing_behind_the_slash(text: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scopes: '{text}' has nothing behind the slash: {what}"):
        parse_scope(text)


def test_every_kind_has_a_form_that_is_one() -> None:
    assert {parse_scope(form.text).kind for form in FORMS.values()} == set(FORMS)


def test_nothing_is_allowed_by_default() -> None:
    for nobody in (VISITOR, principal_of("none", ())):
        assert not nobody.admin
        assert not nobody.holds(FORMS)
        assert not any(nobody.may(kind, "b", "o") for kind in FORMS)
        assert not nobody.sees("b")


@pytest.mark.parametrize(
    ("scope", "allowed", "refused"),
    [
        ("publish:b/x", ("publish", "b", "x"), [("publish", "b", "y"), ("publish", "c", "x"), ("consume", "b", "x")]),
        ("publish:b/*", ("publish", "b", ""), [("publish", "c", ""), ("broker", "b", ""), ("admin", "b", "")]),
        ("consume:*/q", ("consume", "c", "q"), [("consume", "c", "r"), ("publish", "c", "q")]),
        ("broker:b", ("broker", "b", ""), [("broker", "c", ""), ("publish", "b", "x"), ("consume", "b", "q")]),
        ("endpoint:e", ("endpoint", "", "e"), [("endpoint", "", "f"), ("history", "", "")]),
        ("history", ("history", "", ""), [("admin", "", ""), ("consume", "b", "q")]),
        ("subscribe:b/q", ("subscribe", "b", "q"), [("subscribe", "b", "r"), ("consume", "b", "q")]),
        ("route:b/x/#", ("route", "b", "x"), [("publish", "b", "x"), ("broker", "b", ""), ("route", "b", "y")]),
    ],
)
def test_one_scope_allows_one_thing(
    scope: str, allowed: tuple[str, str, str], refused: list[tuple[str, str, str]]
) -> None:
    principal = principal_of("caller", (scope,))
    assert principal.may(*allowed)
    assert not any(principal.may(*other) for other in refused)


@pytest.mark.parametrize(
    ("scopes", "allowed", "refused"),
    [
        (["publish:b/x"], ["", "a", "a.b"], []),
        (["admin"], ["", "a", "a.b"], []),
        (["route:b/x/#"], ["", "a", "a.b", "k" * 255], ["k" * 256]),
        (["route:b/x/orders"], ["orders"], ["", "orders.a", "order", "Orders"]),
        (["route:b/x/eu.*"], ["eu.a", "eu.*", "eu."], ["eu", "eu.a.b", "us.a", "*"]),
        (["route:b/x/eu.#"], ["eu", "eu.a", "eu.a.b"], ["us.a", "#", "a.eu"]),
        (["route:b/x/a", "route:*/x/b", "route:b/*/c"], ["a", "b", "c"], ["d"]),
        (["route:b/y/#", "route:c/x/#", "consume:b/x", "broker:b"], [], ["", "a"]),
        ([], [], ["", "a"]),
    ],
)
def test_routing_keys(scopes: list[str], allowed: list[str], refused: list[str]) -> None:
    principal = principal_of("caller", scopes)
    for _ in range(2):  # also from memory
        keys = principal.routing_keys("b", "x")
        assert bool(keys) is bool(allowed)
        assert all(keys.allow(key) for key in allowed)
        assert not any(keys.allow(key) for key in refused)


def test_what_is_remembered_of_exchanges_is_bounded() -> None:
    principal = principal_of("caller", ["route:b/*/a"])
    for number in range(3 * REMEMBERED):
        assert principal.routing_keys("b", f"x{number}").allow("a")
        assert len(principal._keys) <= REMEMBERED


def test_admin_may_everything() -> None:
    for principal in (DEVELOPER, principal_of("root", ("admin",))):
        assert all(principal.may(kind, "b", "o") for kind in FORMS)
        assert principal.holds(())
        assert principal.sees("b")


def test_brokers_that_a_scope_names_are_seen() -> None:
    principal = principal_of("caller", ("publish:a/x", "endpoint:b", "history"))
    assert principal.sees("a")
    assert not principal.sees("b")
    assert principal_of("any", ("consume:*/q",)).sees("b")
