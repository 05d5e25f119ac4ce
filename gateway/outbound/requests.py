"""One request as octets, head and body together.

Headers that frame the message, name the host or negotiate with the next hop belong to the gateway (:data:`OURS`): a
caller that gives one gets an error. Names are tokens and values hold no control characters, so that nothing a caller
passes on, be it taken from a message, can end a header or begin another request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from gateway import __version__
from gateway.errors import EncodeError
from gateway.outbound.hosts import Site

Headers = Sequence[tuple[bytes, bytes]]

METHODS: Final = {name: name.encode() + b" " for name in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")}
"""What we send; neither CONNECT nor TRACE."""
IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""RFC 9110 section 9.2.2."""
EMPTY_BODY_SAID: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods that say ``content-length: 0`` (RFC 9110 section 8.6)."""

OURS: Final = frozenset(
    {
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    }
)
"""Headers that no caller gives."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def request_line(site: Site, target: str) -> bytes:
    """What follows the method, and is the same for all requests to a URL: the rest of the line, and the gateway's
    headers."""
    return (
        f"{target} HTTP/1.1\r\nhost: {site.authority}\r\n"
        f"user-agent: amqp-gateway/{__version__}\r\naccept-encoding: identity\r\n"
    ).encode("ascii")


def request_octets(method: str, line: bytes, headers: Headers, body: bytes, head_max: int) -> bytes:
    """A whole request.

    Raises:
        EncodeError: a method that the gateway does not send, a reserved or malformed header, or a head over
        ``head_max``
            octets.
    """
    start = METHODS.get(method)
    if start is None:
        raise EncodeError(f"method is {method[:20]!r}, not one of {', '.join(METHODS)}")
    parts = [start, line]
    for name, value in headers:
        if _CONTROL.search(value):
            raise EncodeError(f"header {_shown(name)}: the value holds a control character")
        parts += (_start_of_header(name), value, b"\r\n")
    if body or method in EMPTY_BODY_SAID:
        parts.append(b"content-length: %d\r\n" % len(body))
    parts.append(b"\r\n")
    parts.append(body)
    octets = b"".join(parts)
    if len(octets) - len(body) > head_max:
        raise EncodeError(f"the head of the request has {len(octets) - len(body)} octets, the limit is {head_max}")
    return octets


@lru_cache(maxsize=1_024)
def _start_of_header(name: bytes) -> bytes:
    """The name with its colon. Few names are used, again and again."""
    if not _TOKEN.fullmatch(name):
        raise EncodeError(f"header {_shown(name)}: that is no name of a header")
    if name.lower() in OURS:
        raise EncodeError(f"header {_shown(name)}: it is the gateway's own")
    return name + b": "


def _shown(name: bytes) -> str:
    return repr(name[:80].decode("latin-1"))
