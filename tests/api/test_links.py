"""Where answers lead: every link names an operation, fills all of its path, and only from what is there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.api.about.links import BODIES, IDS, links, names_of
from gateway.api.app import ROUTES

BY_OPERATION = {route.operation: route for route in ROUTES}
LINKED = [(route, status, name, link) for route in ROUTES for status, found in links(route, ROUTES).items()
          for name, link in found.items()]  # fmt: skip


@pytest.mark.parametrize("each", LINKED, ids=lambda each: f"{each[0].operation}-{each[1]}-{each[2]}")
def test_a_link(each: Any) -> None:
    route, status, operation, link = each
    assert status in route.answers
    other = BY_OPERATION[operation]
    assert link["operationId"] == operation
    assert {key[5:] for key in link["parameters"]} == set(names_of(other.path))
    for expression in link["parameters"].values():
        found = re.fullmatch(r"\$request\.path\.(\w+)|\$response\.body#(/[\w/]+)", expression)
        assert found is not None, expression
        assert found[1] is None or found[1] in names_of(route.path)


def test_what_is_named_is_there() -> None:
    assert IDS.keys() | BODIES.keys() <= BY_OPERATION.keys()
    linked = {(route.operation, name) for route, _, name, _ in LINKED}
    assert ("put_queue", "delete_queue") in linked
    assert ("put_subscription", "pull") in linked
    assert ("pull", "acknowledge") in linked
    assert ("publish", "get_message") in linked
    assert ("create_key", "revoke_key") in linked
    assert ("put_queue", "put_exchange") not in linked


def test_bodies_fit_the_operations_that_they_are_for() -> None:
    import msgspec

    for found in BODIES.values():
        for operation, body in found.items():
            kind = BY_OPERATION[operation].body
            assert kind is not None
            msgspec.convert(dict(body), kind)
