"""What is kept of the answer to a failed attempt: a short text without the secrets of the endpoint.

A receiver may send anything, its own request included. So the text has at most :data:`KEPT_MAX` bytes, nothing in it
moves a cursor, and every text that equals a secret of the endpoint is replaced by :data:`REDACTED`: passwords, tokens,
signing keys, values of its headers, the private key, and what its URL has behind the host, for many a receiver knows
its senders by that alone. A body that is no text, or compressed, is not kept: a secret in it could not be found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from gateway.webhooks.endpoint import Endpoint
from gateway.webhooks.settings import checks

KEPT_MAX: Final = 1_024
"""Most bytes of the text, in UTF-8."""
REDACTED: Final = "[redacted]"
MORE: Final = "…"
"""At the end where something was left out."""
PART_MIN: Final = 12
"""Shortest part of a path that counts as a secret of its own, in characters."""


def excerpt(body: bytes, encoding: str | None, secrets: Sequence[str]) -> str:
    """Return what is kept of an answer's body; empty where it has none.

    Args:
        body: as it came, or the beginning of it.
        encoding: its ``Content-Encoding``.
        secrets: of :func:`secrets_of`.
    """
    if not body:
        return ""
    if encoding and encoding.strip().lower() != "identity":
        return f"(not kept: {len(body):,} bytes with a content encoding)"
    if b"\0" in body:
        return f"(not kept: {len(body):,} bytes that are not text)"
    text = body.decode("utf-8", "backslashreplace")
    kept = "".join(map(_visible, _redacted(text, secrets))).encode()
    if len(text) <= KEPT_MAX >= len(kept):
        return kept.decode()
    return kept[: KEPT_MAX - len(MORE.encode())].decode(errors="ignore") + MORE


def _visible(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _redacted(text: str, secrets: Sequence[str]) -> str:
    """The beginning of a text. Nothing that stands behind :data:`KEPT_MAX` moves into it, however short it becomes: a
    secret may be cut off at the end of what was read."""
    begin, pieces = 0, []
    if secrets:
        for match in re.finditer("|".join(map(re.escape, secrets)), text):
            if match.start() >= KEPT_MAX:
                break
            pieces += [text[begin : match.start()], REDACTED]
            begin = match.end()
    return "".join(pieces) + text[begin:KEPT_MAX]


def secrets_of(endpoint: Endpoint, authorizations: Iterable[bytes] = ()) -> list[str]:
    """Return every text that must not be kept, the longest first.

    Args:
        authorizations: values of ``Authorization`` that were sent.
    """
    found = set(checks.take_out(endpoint.settings)[1].values())
    for key in endpoint.keys:
        found |= {str(key.key), str(key.key).partition("_")[2]}
    for value in authorizations:
        text = value.decode("latin-1")
        found |= {text, text.partition(" ")[2]}
    url = urlsplit(endpoint.settings.url)
    if len(url.path) > 1 or url.query:
        found |= {url.path + (f"?{url.query}" if url.query else ""), url.query}
        found |= {value for _, value in parse_qsl(url.query)}
        found |= {part for part in url.path.split("/") if len(part) >= PART_MIN}
    found |= {url.path} if len(url.path) >= PART_MIN else set()
    spelled = {other for text in found for other in (text, json.dumps(text)[1:-1], quote(text, safe=""))}
    return sorted(filter(None, spelled), key=len, reverse=True)
