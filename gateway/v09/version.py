"""AMQP 0-9, by its name and its protocol header."""

from __future__ import annotations

from typing import Final

from gateway.session import Version

V0_9: Final = Version("0-9", b"AMQP\x01\x01\x00\x09")
