"""What RFC 9110 and RFC 9112 demand of the head of a request, and the parser lets pass.

A proxy that reads such a head in another way than the gateway would let one caller speak for another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

TARGET_MAX: Final = 8_192
"""Most bytes of a request target. RFC 9112 section 3 asks for 8,000 at least."""
_NAME = rb"[A-Za-z0-9._~!$&'()*+,;=-]*"
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|" + _NAME + rb"(?:%[0-9A-Fa-f]{2}" + _NAME + rb")*)(?::[0-9]*)?")
"""uri-host and port (RFC 3986 section 3.2)."""
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)/[^#]*", re.IGNORECASE)
"""absolute-form (RFC 9112 section 3.2.2)."""


class HeadRefusal(NamedTuple):
    """Why a head is refused, as status and ASCII text."""

    status: int
    text: str


NO_HOST: Final = HeadRefusal(400, "The request has no Host header; HTTP/1.1 needs exactly one (RFC 9112 section 3.2).")
BAD_HOST: Final = HeadRefusal(400, "The Host header is not a host and port (RFC 9112 section 3.2).")
UNKNOWN_CODING: Final = HeadRefusal(501, "The only transfer coding here is chunked (RFC 9112 section 6.1).")
OLD_CODING: Final = HeadRefusal(400, "HTTP/1.0 has no transfer codings (RFC 9112 section 6.1).")
BAD_TARGET: Final = HeadRefusal(
    400, "The request target is neither a path nor the URL of this host (RFC 9112 section 3.2)."
)
UNKNOWN_VERSION: Final = HeadRefusal(505, "The only versions here are HTTP/1.1 and HTTP/1.0.")
TOO_LONG: Final = HeadRefusal(414, f"Path and query have more than {TARGET_MAX} bytes.")
SINGLE: Final[Mapping[bytes, HeadRefusal]] = {
    name.lower().encode(): HeadRefusal(400, f"The request has more than one {name} header ({rule}).")
    for name, rule in {
        "Host": "RFC 9112 section 3.2",
        "Authorization": "RFC 9110 section 5.3",
        "X-Api-Key": "one credential",
        "Content-Type": "RFC 9110 section 5.3",
        "Idempotency-Key": "one key",
        "Origin": "RFC 6454 section 7.3",
        "Sec-Fetch-Site": "one site",
    }.items()
}
"""Header -> detail of the problem where it occurs twice. A proxy that takes the other one would read another request
than the gateway."""


def refusal_of(headers: Sequence[tuple[bytes, bytes]], version: str) -> HeadRefusal | None:
    """Return why a head is refused, None if it is not.

    Args:
        headers: names in lower case, and values.
        version: of HTTP, such as ``1.1``.
    """
    if version not in ("1.1", "1.0"):
        return UNKNOWN_VERSION
    seen: list[bytes] = []
    for name, value in headers:
        if name in SINGLE:
            if name in seen:
                return SINGLE[name]
            seen.append(name)
            if name == b"host" and _HOST.fullmatch(value) is None:
                return BAD_HOST
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                return UNKNOWN_CODING
            if version == "1.0":
                return OLD_CODING
    return NO_HOST if version == "1.1" and b"host" not in seen else None


def refusal_of_target(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> HeadRefusal | None:
    """Return why a request target that is not a plain path is refused, None if it is not: it is ``*`` of OPTIONS, a
    path, or a URL whose host is the one that ``Host`` names."""
    if target.startswith(b"/"):
        return BAD_TARGET if b"#" in target else None
    if target == b"*":
        return None if method == "OPTIONS" else BAD_TARGET
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return BAD_TARGET
    host = next((value for name, value in headers if name == b"host"), match[1])
    return None if match[1].lower() == host.lower() and _HOST.fullmatch(match[1]) is not None else BAD_TARGET


def target_length(scope: Mapping[str, Any]) -> int:
    """Return how many bytes path and query of a request have, by its ASGI scope."""
    return len(scope.get("raw_path") or b"") + len(scope["query_string"])
