"""The registry of versions."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

import gateway
from gateway.session import PROTOCOL_HEADERS, ClientConfig, Role, ServerConfig, Version
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import (
    AUTO_ORDER,
    FALLBACK_HEADER,
    HEADER_SIZE,
    VERSION_NAMES,
    VERSIONS,
    client_session,
    may_be_header,
    server_session,
    version_named,
    version_of_header,
)


@pytest.mark.parametrize("version", list(VERSIONS))
def test_sessions_of_both_roles(version: Version) -> None:
    client = client_session(version, ClientConfig(secure=True, random_octets=os.urandom))
    server = server_session(
        version, ServerConfig(lambda user, password: True, lambda user, host: True, random_octets=os.urandom)
    )
    assert (client.version, client.role) == (version, Role.CLIENT)
    assert (server.version, server.role) == (version, Role.SERVER)
    assert b"".join(client.data_to_send())[:HEADER_SIZE] == version.header


def test_the_transitional_draft_is_chosen_by_the_configuration() -> None:
    client = client_session(V0_10, ClientConfig(dialect="transitional"))
    config = ServerConfig(lambda user, password: True, lambda user, host: True, dialect="transitional")
    server = server_session(V0_10, config)
    assert type(client).__module__ == "gateway.v010_draft.client"
    assert type(server).__module__ == "gateway.v010_draft.server"
    assert b"".join(client.data_to_send()) == V0_10.header  # so the header does not tell which it is
    assert type(client_session(V0_9_1, ClientConfig(dialect="transitional"))).__module__.startswith("gateway.v091")


def test_headers() -> None:
    for header, version in PROTOCOL_HEADERS.items():
        assert version_of_header(header + b"more") is version
        assert all(may_be_header(header[:size]) for size in range(HEADER_SIZE + 1))
        assert version_of_header(header[:-1]) is None
    assert version_of_header(b"AMQP\x00\x01\x00\x00") is None
    assert not may_be_header(b"G")
    assert not may_be_header(b"AMQP\x02")
    assert version_of_header(FALLBACK_HEADER) is V0_9_1


def test_the_names_are_those_that_urls_have() -> None:
    assert VERSION_NAMES == ("0-8", "0-9", "0-9-1", "0-10")
    assert [version_named(name).value for name in VERSION_NAMES] == list(VERSION_NAMES)
    assert [version.value for version in AUTO_ORDER] == ["0-9-1", "0-10", "0-8", "0-9"]
    with pytest.raises(ValueError, match=r"version is '1-0', not one of 0-8, 0-9, 0-9-1, 0-10"):
        version_named("1-0")


def test_only_the_registry_lists_the_versions() -> None:
    """A module outside the version folders that names one would need an edit for each new version."""
    named = []
    for path in sorted(Path(gateway.__file__).parent.rglob("*.py")):
        place = path.relative_to(Path(gateway.__file__).parent)
        if place.parts[0] in ("v08", "v09", "v091", "v010", "v010_draft", "versions.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and re.match(r"gateway\.v\d", node.module or ""):
                named.append(f"{place} imports {node.module}")
            elif isinstance(node, ast.Constant) and node.value in VERSION_NAMES:
                named.append(f"{place}:{node.lineno} names {node.value}")
    assert [each for each in named if not each.startswith("translation.py imports gateway.v010")] == []
