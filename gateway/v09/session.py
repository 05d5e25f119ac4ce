"""AMQP 0-9: client and server sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gateway.classic.client import ClassicClient
from gateway.classic.dialect import Dialect
from gateway.classic.server import ClassicServer
from gateway.session import Version
from gateway.v09.dialect import DIALECTS
from gateway.v09.version import V0_9


class ClientSession(ClassicClient):
    """A client of 0-9."""

    version: ClassVar[Version] = V0_9
    dialects: ClassVar[Mapping[str, Dialect]] = DIALECTS


class ServerSession(ClassicServer):
    """A server of 0-9."""

    version: ClassVar[Version] = V0_9
    dialects: ClassVar[Mapping[str, Dialect]] = DIALECTS
