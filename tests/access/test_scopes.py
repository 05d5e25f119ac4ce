"""What scopes are written like, and what they allow."""

from __future__ import annotations

import pytest

from gateway.access.scopes import DEVELOPER, FORMS, VISITOR, Grant, parse_scope, principal_of
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
    ],
)
def test_scopes(text: str, grant: Grant) -> None:
    assert parse_scope(text) == grant


@pytest.mark.parametrize(
    "text",
    ["", "root", "publish", "publish:b", "publish:/x", "read:b/q", "admin:", "admin:b", "broker", "broker:",
     "endpoint:", "history:", "history:*", "Admin", " admin", "publish:b/ex\x00".partition("/")[0]],
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
    ],
)
def test_one_scope_allows_one_thing(
    scope: str, allowed: tuple[str, str, str], refused: list[tuple[str, str, str]]
) -> None:
    principal = principal_of("caller", (scope,))
    assert principal.may(*allowed)
    assert not any(principal.may(*other) for other in refused)


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
