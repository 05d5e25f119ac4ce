"""What RFC 9110 and RFC 9112 demand of the head of a request, and the parser lets pass.

A proxy that reads such a head in another way than the gateway would let one caller speak for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

TARGET_MAX: Final = 8_192
"""Most bytes of a request target. RFC 9112 section 3 asks for 8,000 at least."""
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
"""uri-host and port (RFC 3986 section 3.2)."""


class Refusal(NamedTuple):
    """Why a head is refused, as status and ASCII text."""

    status: int
    text: str


NO_HOST: Final = Refusal(400, "The request has no Host header; HTTP/1.1 needs exactly one (RFC 9112 section 3.2).")
TWO_HOSTS: Final = Refusal(400, "The request has more than one Host header (RFC 9112 section 3.2).")
BAD_HOST: Final = Refusal(400, "The Host header is not a host and port (RFC 9112 section 3.2).")
TWO_CREDENTIALS: Final = Refusal(400, "The request has more than one Authorization header (RFC 9110 section 5.3).")
UNKNOWN_CODING: Final = Refusal(501, "The only transfer coding here is chunked (RFC 9112 section 6.1).")


def refusal_of(headers: Sequence[tuple[bytes, bytes]], version: str) -> Refusal | None:
    """Return why a head is refused, None if it is not.

    Args:
        headers: names in lower case, and values.
        version: of HTTP, such as ``1.1``.
    """
    hosts = credentials = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                return BAD_HOST
        elif name == b"authorization":
            credentials += 1
        elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
            return UNKNOWN_CODING
    if hosts > 1:
        return TWO_HOSTS
    if not hosts and version == "1.1":
        return NO_HOST
    return TWO_CREDENTIALS if credentials > 1 else None
