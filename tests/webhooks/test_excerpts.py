"""What is kept of the answer to a failed attempt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import EndpointAuth
from gateway.webhooks.attempts.excerpts import KEPT_MAX, REDACTED, excerpt, secrets_of
from tests.webhooks.receivers import SECRET, SHARED, endpoint_of


@pytest.mark.parametrize(
    ("body", "encoding", "kept"),
    [
        (b"", None, ""),
        (b"no such customer", None, "no such customer"),
        (b"no such customer", "Identity", "no such customer"),
        (b"a\r\n\x1b[31m\xff\xe2\x80\xae", None, "a\\r\\n\\x1b[31m\\xff\\u202e"),
        (b"a\0b", None, "(not kept: 3 bytes that are not text)"),
        (b"xyz", "gzip", "(not kept: 3 bytes with a content encoding)"),
        (b"x" * KEPT_MAX, None, "x" * KEPT_MAX),
        (b"x" * (KEPT_MAX + 1), None, "x" * (KEPT_MAX - 3) + "…"),
        (b"secret", None, REDACTED),
        (b"x" * (KEPT_MAX - 3) + b"secret", None, "x" * (KEPT_MAX - 3) + "…"),
        (b"secret" * 3_000 + b"secr", None, (REDACTED * 200)[: KEPT_MAX - 3] + "…"),
    ],
)
def test_what_is_kept(body: bytes, encoding: str | None, kept: str) -> None:
    assert excerpt(body, encoding, ["secret"]) == kept


@given(st.binary(max_size=3_000), st.lists(st.text(min_size=1, max_size=50), max_size=5))
def test_it_is_short_and_printable_whatever_comes(body: bytes, secrets: list[str]) -> None:
    found = excerpt(body, None, sorted(secrets, key=len, reverse=True))
    assert len(found.encode()) <= KEPT_MAX
    assert found.isprintable()


def test_every_secret_of_an_endpoint_is_one() -> None:
    endpoint = endpoint_of(
        "https://shop.example/hooks/T0123456789abcdef?token=query-secret",
        auth=EndpointAuth(kind="basic", user="u", secret="the-password"),
        headers={"x-token": 'a "quoted" value'},
    )
    found = secrets_of(endpoint, [b"Bearer a-token"])
    for secret in (
        "the-password", "a-token", "Bearer a-token", str(SHARED), str(SHARED).removeprefix("whsec_"), str(SECRET),
        'a "quoted" value', 'a \\"quoted\\" value', "/hooks/T0123456789abcdef?token=query-secret", "query-secret",
        "T0123456789abcdef",
    ):  # fmt: skip
        assert secret in found
        assert excerpt(secret.encode(), None, found) == REDACTED
    assert found == sorted(found, key=len, reverse=True)


@pytest.mark.parametrize(
    ("url", "secrets", "others"),
    [
        ("https://shop.example/", [], ["/"]),
        ("https://shop.example", [], ["/"]),
        ("https://shop.example/x", ["/x"], ["x", "/"]),
        ("https://shop.example/hooks/T01234567890", ["/hooks/T01234567890", "T01234567890"], ["hooks"]),
        ("https://shop.example/hooks/T0123456789", ["/hooks/T0123456789"], ["T0123456789"]),
        ("https://shop.example/?key=k1", ["/?key=k1", "key=k1", "k1"], ["/", "key"]),
        ("https://shop.example/hooks/34567?key=k1", ["/hooks/34567", "/hooks/34567?key=k1", "k1"], ["hooks", "34567"]),
        ("https://shop.example/hooks/3456?key=k1", ["/hooks/3456?key=k1"], ["/hooks/3456"]),
    ],
)
def test_what_a_url_has_behind_its_host_is_a_secret(url: str, secrets: list[str], others: list[str]) -> None:
    """But no short part of it, which would stand in many a text."""
    found = secrets_of(endpoint_of(url))
    assert [each for each in secrets if each not in found] == []
    assert [each for each in others if each in found] == []
