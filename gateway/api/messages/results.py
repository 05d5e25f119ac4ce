"""What became of many messages: one result each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from gateway.api.about.schemas import BatchResult, BatchResults
from gateway.api.http.problems import ApiProblem, as_json, problem_of
from gateway.core import Publication, PublishOutcome
from gateway.errors import GatewayError


def batch_results(items: Sequence[Publication | ApiProblem], results: Sequence[PublishOutcome]) -> BatchResults:
    """One result per item: what became of those that were published, and why the others were not."""
    outcomes = iter(results)
    return BatchResults(
        results=[refused(item) if isinstance(item, ApiProblem) else batch_result(next(outcomes)) for item in items]
    )


def batch_result(result: PublishOutcome) -> BatchResult:
    """What became of one message of many."""
    if result.error is not None:
        problem = problem_of(result.error, id=result.id)
        return BatchResult(status=problem.status, id=result.id, key=_key(result), problem=as_json(problem))
    if result.scheduled:
        return BatchResult(status=202, id=result.id, state="scheduled")
    return BatchResult(
        status=200,
        id=result.id,
        state="confirmed" if result.routed else "unroutable",
        routed=result.routed,
        durable=result.durable,
        resent=result.resent,
        key=_key(result),
    )


def _key(result: PublishOutcome) -> Any:
    return result.key or UNSET


def refused(error: GatewayError) -> BatchResult:
    """One message of many that was not sent."""
    problem = problem_of(error)
    return BatchResult(status=problem.status, problem=as_json(problem))
