"""A call that another process answers stays in its trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.access.scopes import Principal
from gateway.api.history.traced import Trace
from gateway.api.resources.peers import forward
from gateway.tracing import TraceContext, Tracer
from tests.api.test_peers import Place, place

__all__ = ["place"]

CONTEXT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1, "a=1")


def call(place: Place, trace: Trace | None) -> Any:
    async def body() -> bytes:
        return b""

    return SimpleNamespace(
        scope={"method": "POST", "raw_path": b"/v1/bridges/b:pause", "query_string": b""},
        header={b"prefer": "x", b"traceparent": "the caller's"}.get,
        body=body,
        principal=Principal("ann", True, ()),
        gateway=SimpleNamespace(peers=place.one),
        trace=trace,
    )


@pytest.mark.parametrize("traced", [True, False])
async def test_what_is_passed_on_names_the_span_that_asked(place: Place, traced: bool) -> None:
    trace = Trace(Tracer(), CONTEXT, None) if traced else None
    answer = await forward(call(place, trace), place.two.me)
    assert answer.status_code == 201
    (scope,) = place.api.scopes
    told = [(b"traceparent", CONTEXT.traceparent.encode()), (b"tracestate", b"a=1")] if traced else []
    assert scope["headers"] == [(b"prefer", b"x"), *told]


async def test_what_is_part_of_no_trace_says_nothing(place: Place) -> None:
    await forward(call(place, Trace(Tracer(), None, None)), place.two.me)
    (scope,) = place.api.scopes
    assert scope["headers"] == [(b"prefer", b"x")]
