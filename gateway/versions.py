"""The registry of versions: which session speaks which, in either role, and how a listener tells them apart.

The only module that knows all three versions. Everything above asks it for a session by :class:`Version`, or,
with the 8 octets with which a client opened its connection, for the session that answers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway.session import PROTOCOL_HEADERS, ClientConfig, ServerConfig, Session, Version
from gateway.v010.session import ClientSession as ClientSession010
from gateway.v010.session import ServerSession as ServerSession010
from gateway.v010.transitional.session import ClientSession as ClientSessionTransitional
from gateway.v010.transitional.session import ServerSession as ServerSessionTransitional
from gateway.v08.session import ClientSession as ClientSession08
from gateway.v08.session import ServerSession as ServerSession08
from gateway.v091.session import ClientSession as ClientSession091
from gateway.v091.session import ServerSession as ServerSession091

CLIENT_SESSIONS: Mapping[Version, Callable[[ClientConfig], Session]] = {
    Version.V0_8: ClientSession08,
    Version.V0_9_1: ClientSession091,
    Version.V0_10: ClientSession010,
}

SERVER_SESSIONS: Mapping[Version, Callable[[ServerConfig], Session]] = {
    Version.V0_8: ServerSession08,
    Version.V0_9_1: ServerSession091,
    Version.V0_10: ServerSession010,
}

CLIENT_DIALECTS: Mapping[tuple[Version, str | None], Callable[[ClientConfig], Session]] = {
    (Version.V0_10, "transitional"): ClientSessionTransitional,
}
"""Version and ``dialect`` of a configuration -> session, where a dialect is so different that it has one of its own."""

SERVER_DIALECTS: Mapping[tuple[Version, str | None], Callable[[ServerConfig], Session]] = {
    (Version.V0_10, "transitional"): ServerSessionTransitional,
}

HEADER_SIZE: Final = 8
"""Octets of a protocol header; a listener reads so many before it can choose a session."""

HEADERS: Mapping[Version, bytes] = {version: header for header, version in PROTOCOL_HEADERS.items()}

FALLBACK_HEADER: Final = HEADERS[Version.V0_9_1]
"""What a listener answers, before it hangs up, to a header that is none of ours (0-9-1 section 4.2.2)."""

AUTO_ORDER: Final = (Version.V0_9_1, Version.V0_10, Version.V0_8)
"""The order in which ``version=auto`` tries; a header the server names instead goes first."""


def client_session(version: Version, config: ClientConfig) -> Session:
    """A new session in the client role; it has its protocol header to send."""
    return CLIENT_DIALECTS.get((version, config.dialect), CLIENT_SESSIONS[version])(config)


def server_session(version: Version, config: ServerConfig) -> Session:
    """A new session in the server role; it expects the protocol header among what it receives."""
    return SERVER_DIALECTS.get((version, config.dialect), SERVER_SESSIONS[version])(config)


def version_of_header(octets: bytes | bytearray | memoryview) -> Version | None:
    """The version that the first 8 octets of a connection ask for; None: none of ours, answer
    :data:`FALLBACK_HEADER` and hang up. Fewer than 8 octets are never a header."""
    return PROTOCOL_HEADERS.get(bytes(octets[:HEADER_SIZE]))


def may_be_header(octets: bytes | bytearray | memoryview) -> bool:
    """Whether ``octets``, fewer than 8 perhaps, can still become a header of ours: a listener hangs up on the
    first octet that cannot."""
    start = bytes(octets[:HEADER_SIZE])
    return any(header.startswith(start) for header in PROTOCOL_HEADERS)
