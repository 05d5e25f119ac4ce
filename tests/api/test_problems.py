"""One table from errors to problems."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.api.http.problems import PROBLEMS, ApiProblem, printable, problem_headers, problem_of
from gateway.errors import BrokerUnavailable, EncodeError, GatewayError


def every(kind: type[GatewayError]) -> list[type[GatewayError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in every(child))]


@pytest.mark.parametrize("kind", every(GatewayError), ids=lambda kind: kind.__name__)
def test_every_error_has_its_problem(kind: type[GatewayError]) -> None:
    if kind.__module__ == errors.__name__:
        assert kind.code in PROBLEMS


def test_a_problem() -> None:
    error = errors.remote_error(404, "no exchange '\udcff'")
    problem = problem_of(error, "/v1/x", "id")
    assert (problem.status, problem.code, problem.outcome, problem.id) == (404, "not_found", "refused", "id")
    assert problem.detail == "404 no exchange '\\udcff'"


def test_headers() -> None:
    assert problem_headers(BrokerUnavailable("x", 0.1)) == {"retry-after": "1"}
    assert problem_headers(errors.LedgerUnavailable("x")) == {"retry-after": "1"}
    assert problem_headers(errors.Unroutable("x")) == {}
    assert problem_headers(ApiProblem("unauthorized", "x", headers={"www-authenticate": "y"})) == {
        "www-authenticate": "y"
    }


def test_statuses_are_statuses() -> None:
    assert all(400 <= kind.status < 600 for kind in PROBLEMS.values())
    assert printable("é\udcff") == "é\\udcff"


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ("message_id: 300 octets are more than 255", "/properties/message_id", "300 octets are more than 255"),
        ("user_id: 'bob' is not the login of broker b", "/properties/user_id", "'bob' is not the login of broker b"),
        ("routing_key: 256 octets are more than 255: 'a'", "/routing_key", "256 octets are more than 255: 'a'"),
        ("headers.CC: 'a' is no array of routing keys", "/headers/CC", "'a' is no array of routing keys"),
        ("table field 'a': 5 does not fit int8", "/headers", "table field 'a': 5 does not fit int8"),
        ("something else", "", "something else"),
    ],
)
def test_what_does_not_fit_on_the_wire_has_its_place_in_the_message(text: str, pointer: str, detail: str) -> None:
    (error,) = problem_of(EncodeError(text), id="m").errors
    assert (error.pointer, error.detail) == (pointer, detail)
    assert problem_of(EncodeError(text)).errors == [], "of something else than a message"
