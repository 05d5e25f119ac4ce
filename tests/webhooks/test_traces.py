"""The spans of a push: whose trace it belongs to, and what it is linked to."""

from __future__ import annotations

from gateway.tracing import TraceContext, Tracer, names
from gateway.webhooks.attempts.traces import PushTraces
from tests.webhooks.receivers import endpoint_of, message

ONE = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 1)
OTHER = TraceContext("1af7651916cd43dd8448eb211c80319c", "c7ad6b7169203331", 1)
UNSEEN = TraceContext("2af7651916cd43dd8448eb211c80319c", "d7ad6b7169203331", 0)


def spans(*contexts: TraceContext, sample: float = 1.0) -> list[tuple[str, str, tuple[tuple[str, str], ...]]]:
    """Name, trace and links of the spans of a push of a message of each context."""
    tracer = Tracer(sample=sample)
    items = [
        message(headers={"traceparent": f"00-{each.trace_id}-{each.span_id}-0{int(each.sampled)}"}) for each in contexts
    ]
    PushTraces(tracer, lambda name: None).begin(endpoint_of("https://e.example/"), items).end(200, None, resent=False)
    return [
        (span.name, span.context.trace_id, tuple((each.trace_id, each.span_id) for each in span.links))
        for span in tracer.fetch(10)
    ]


def test_messages_of_one_trace_are_pushed_in_it() -> None:
    for contexts in ((ONE,), (ONE, ONE)):
        found = spans(*contexts)
        assert [(trace, links) for _, trace, links in found] == [(ONE.trace_id, ())] * 2
        assert names.POST.name in [name for name, _, _ in found]


def test_messages_of_several_traces_are_pushed_in_one_of_their_own() -> None:
    process = spans(ONE, OTHER, UNSEEN, sample=0.0)[-1]  # seen since some of them are
    assert process[1] not in {each.trace_id for each in (ONE, OTHER, UNSEEN)}
    assert process[2] == tuple((each.trace_id, each.span_id) for each in (ONE, OTHER))


def test_messages_that_nobody_wants_seen_are_not() -> None:
    assert spans(UNSEEN) == spans(UNSEEN, UNSEEN, sample=0.0) == []


def test_a_span_says_which_attempt_it_is() -> None:
    tracer = Tracer(sample=1.0)
    items = [message(attempt=3)]
    items[0].redelivered = True
    PushTraces(tracer, lambda name: None).begin(endpoint_of("https://e.example/"), items).end(200, None, resent=False)
    (attributes,) = [span.attributes for span in tracer.fetch(10) if names.ATTEMPT in span.attributes]
    assert (attributes[names.ATTEMPT], attributes[names.SUBSCRIPTION]) == (3, "billing")
    assert attributes[names.REDELIVERED] is True
    assert names.BATCH_COUNT not in attributes
