"""The registry of versions."""

from __future__ import annotations

import os

import pytest

from gateway.session import PROTOCOL_HEADERS, ClientConfig, Role, ServerConfig, Version
from gateway.versions import (
    FALLBACK_HEADER,
    HEADER_SIZE,
    HEADERS,
    client_session,
    may_be_header,
    server_session,
    version_of_header,
)


@pytest.mark.parametrize("version", list(Version))
def test_sessions_of_both_roles(version: Version) -> None:
    client = client_session(version, ClientConfig(secure=True, random_octets=os.urandom))
    server = server_session(
        version, ServerConfig(lambda user, password: True, lambda user, host: True, random_octets=os.urandom)
    )
    assert (client.version, client.role) == (version, Role.CLIENT)
    assert (server.version, server.role) == (version, Role.SERVER)
    assert b"".join(client.data_to_send())[:HEADER_SIZE] == HEADERS[version]


def test_the_transitional_draft_is_chosen_by_the_configuration() -> None:
    client = client_session(Version.V0_10, ClientConfig(dialect="transitional"))
    config = ServerConfig(lambda user, password: True, lambda user, host: True, dialect="transitional")
    server = server_session(Version.V0_10, config)
    assert type(client).__module__ == "gateway.v010.transitional.client"
    assert type(server).__module__ == "gateway.v010.transitional.server"
    assert b"".join(client.data_to_send()) == HEADERS[Version.V0_10]  # so the header does not tell which it is
    assert type(client_session(Version.V0_9_1, ClientConfig(dialect="transitional"))).__module__.startswith(
        "gateway.v091"
    )


def test_headers() -> None:
    for header, version in PROTOCOL_HEADERS.items():
        assert version_of_header(header + b"more") is version
        assert all(may_be_header(header[:size]) for size in range(HEADER_SIZE + 1))
        assert version_of_header(header[:-1]) is None
    assert version_of_header(b"AMQP\x00\x01\x00\x00") is None
    assert not may_be_header(b"G")
    assert not may_be_header(b"AMQP\x02")
    assert version_of_header(FALLBACK_HEADER) is Version.V0_9_1
