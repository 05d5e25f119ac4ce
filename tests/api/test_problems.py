"""One table from errors to problems."""

from __future__ import annotations

import pytest

from gateway import errors
from gateway.api.problems import PROBLEMS, ApiProblem, printable, problem_headers, problem_of
from gateway.errors import BrokerUnavailable, GatewayError


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
