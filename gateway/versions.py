"""The registry of versions: which session speaks which, in either role, and how a listener tells them apart.

:data:`PROTOCOLS` is the only place that lists the versions. Everything above asks it for a session by
:class:`~gateway.session.Version`, or, with the 8 octets with which a client opened its connection, for the session that
answers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.amqp.protocol import Protocol
from gateway.session import PROTOCOL_HEADERS, ClientConfig, ServerConfig, Session, Version
from gateway.v010.protocol import AMQP_0_10
from gateway.v010_draft.protocol import AMQP_0_10_DRAFT
from gateway.v08.protocol import AMQP_0_8
from gateway.v09.protocol import AMQP_0_9
from gateway.v091.protocol import AMQP_0_9_1

PROTOCOLS: Final[tuple[Protocol, ...]] = (AMQP_0_8, AMQP_0_9, AMQP_0_9_1, AMQP_0_10)
"""Every version, the oldest first."""

DRAFTS: Final[tuple[Protocol, ...]] = (AMQP_0_10_DRAFT,)
"""Drafts of a version, each with sessions of its own; only a configuration asks for them."""

VERSIONS: Final[tuple[Version, ...]] = tuple(protocol.version for protocol in PROTOCOLS)
VERSION_NAMES: Final[tuple[str, ...]] = tuple(protocol.name for protocol in PROTOCOLS)
"""As URLs, the API and the ledger have them."""

HEADER_SIZE: Final = 8
"""Octets of a protocol header; a listener reads so many before it can choose a session."""

AUTO_ORDER: Final[tuple[Version, ...]] = tuple(
    protocol.version for protocol in sorted(PROTOCOLS, key=lambda protocol: protocol.auto_rank)
)
"""The order in which ``version=auto`` tries; a header the server names instead goes first."""

FALLBACK_HEADER: Final = AUTO_ORDER[0].header
"""What a listener answers, before it hangs up, to an unknown header (0-9-1 section 4.2.2)."""

_BY_VERSION: Final[Mapping[Version, Protocol]] = {protocol.version: protocol for protocol in PROTOCOLS}
_BY_NAME: Final[Mapping[str, Version]] = {version.value: version for version in VERSIONS}
_BY_DRAFT: Final[Mapping[tuple[Version, str], Protocol]] = {(draft.version, draft.draft): draft for draft in DRAFTS}


def version_named(name: str) -> Version:
    """Return the version of a name.

    Raises:
        ValueError: there is no such version; the text lists those that there are.
    """
    version = _BY_NAME.get(name)
    if version is None:
        raise ValueError(f"version is {name!r}, not one of {', '.join(VERSION_NAMES)}")
    return version


def protocol_of(version: Version, dialect: str | None = "") -> Protocol:
    """Return the protocol of a version; where ``dialect`` is the name of a draft of it, the draft's."""
    return _BY_DRAFT.get((version, dialect or "")) or _BY_VERSION[version]


def client_session(version: Version, config: ClientConfig) -> Session:
    """A new session in the client role; it has its protocol header to send."""
    return protocol_of(version, config.dialect).client(config)


def server_session(version: Version, config: ServerConfig) -> Session:
    """A new session in the server role; it expects the protocol header among what it receives."""
    return protocol_of(version, config.dialect).server(config)


def version_of_header(octets: bytes | bytearray | memoryview) -> Version | None:
    """The version that the first 8 octets of a connection ask for; None: unknown, answer
    :data:`FALLBACK_HEADER` and hang up. Fewer than 8 octets are never a header."""
    return PROTOCOL_HEADERS.get(bytes(octets[:HEADER_SIZE]))


def may_be_header(octets: bytes | bytearray | memoryview) -> bool:
    """Whether ``octets``, fewer than 8 perhaps, can still become a known header: a listener hangs up on the
    first octet that cannot."""
    start = bytes(octets[:HEADER_SIZE])
    return any(header.startswith(start) for header in PROTOCOL_HEADERS)
