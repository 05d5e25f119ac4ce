"""The last requests to endpoints: few, and without secrets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from gateway.config import EndpointAuth
from gateway.webhooks.attempts import recent as recent_module
from gateway.webhooks.attempts.excerpts import REDACTED
from gateway.webhooks.attempts.recent import BODY_MAX, RecentAttempts
from gateway.webhooks.attempts.sender import Sender
from tests.outbound.endpoint import Endpoint as Server
from tests.webhooks.receivers import SHARED, endpoint_of, message

PASSWORD = "pass-word-of-shop"


async def test_what_was_sent_and_answered(sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(
        server.url("/500"), headers={"X-Token": "token-of-shop"}, auth=EndpointAuth(kind="bearer", secret=PASSWORD)
    )
    items = [message(attempt=3)]
    outcome = await sender.send(endpoint, items, int(time.time()))
    (found,) = sender.recent.of("shop")
    assert (found.status, found.code, found.attempt, found.count) == (500, "", 3, 1)
    assert (found.messages, found.subscription, found.webhook_id) == (
        (items[0].message_id,), "billing", outcome.id,
    )  # fmt: skip
    assert abs(found.at - time.time()) < 60
    assert found.seconds == outcome.seconds
    headers = dict(found.headers)
    assert headers["X-Token"] == REDACTED
    assert headers["webhook-signature"] == REDACTED
    assert headers["webhook-id"] == outcome.id
    sent = server.requests[-1]
    assert found.sent.octets == len(sent.body)
    for secret in ("token-of-shop", PASSWORD, str(SHARED), sent.headers["webhook-signature"]):
        assert secret not in repr((found.headers, found.excerpt))
    await sender.send(endpoint_of(server.url("/hang-up")), [message()], int(time.time()))
    newest, _ = sender.recent.of("shop")
    assert (newest.status, newest.code) == (None, "answer_cut")
    assert newest.reason
    assert newest.id != found.id


def answered(recent: RecentAttempts, name: str, body: bytes, **settings: Any) -> str:
    """What is shown of an answer."""
    endpoint = replace(endpoint_of("https://example.com/", **settings), name=name)
    attempt = recent.begin(endpoint, [message()])
    attempt.status, attempt.body = 200, body
    recent.end(attempt)
    return recent.of(name)[0].excerpt


def test_an_answer_that_echoes_a_secret() -> None:
    recent = RecentAttempts()
    found = answered(recent, "shop", b"you sent token-of-shop\x1b[31m", headers={"X-Token": "token-of-shop"})
    assert found == f"you sent {REDACTED}\\x1b[31m"
    assert answered(recent, "shop", b"x" * (BODY_MAX + 1)) == f"(not kept: {BODY_MAX + 1:,} bytes of a success)"
    assert recent.of("shop")[0].body == b"", "it would only take room"
    assert answered(recent, "shop", b"x" * BODY_MAX).startswith("xxx")
    assert answered(recent, "shop", b"") == ""


def test_what_was_kept_of_an_answer_is_not_made_again() -> None:
    recent = RecentAttempts()
    attempt = recent.begin(endpoint_of("https://example.com/"), [message()])
    attempt.status, attempt.body, attempt.kept = 500, b"the answer", "what is kept"
    recent.end(attempt)
    assert recent.of("shop")[0].excerpt == "what is kept"


@pytest.mark.parametrize("tests", [(False,), (True,), (False, True)])
def test_a_request_with_a_test_message_says_so(tests: tuple[bool, ...]) -> None:
    items = [message() for _ in tests]
    for item, test in zip(items, tests, strict=True):
        item.test = test
    assert RecentAttempts().begin(endpoint_of("https://example.com/"), items).test == any(tests)


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_module, "ENDPOINTS_MAX", 2)
    recent = RecentAttempts()
    for number in range(recent_module.EACH_MAX + 5):
        answered(recent, "one", b"%d" % number)
    found = [each.excerpt for each in recent.of("one")]
    assert found == [str(number) for number in range(recent_module.EACH_MAX + 4, 4, -1)]
    answered(recent, "two", b"")
    answered(recent, "one", b"")
    answered(recent, "three", b"")
    assert [bool(recent.of(name)) for name in ("one", "two", "three")] == [True, False, True]
    recent.forget("one")
    assert recent.of("one") == []
    recent.end(recent.begin(replace(endpoint_of("https://example.com/"), name=""), [message()]))
    assert recent.of("") == [], "a URL is no endpoint"


async def test_hostile_headers_are_short(sender: Sender, server: Server) -> None:
    endpoint = endpoint_of(server.url("/200"), headers={f"X-{number}": "v" for number in range(60)})
    await sender.send(endpoint, [message()], int(time.time()))
    (found,) = sender.recent.of("shop")
    assert len(found.headers) <= recent_module.HEADERS_MAX
    assert all(len(value) <= recent_module.VALUE_MAX for _, value in found.headers)
