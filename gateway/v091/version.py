"""AMQP 0-9-1, by its name and its protocol header."""

from __future__ import annotations

from typing import Final

from gateway.session import Version

V0_9_1: Final = Version("0-9-1", b"AMQP\x00\x00\x09\x01")
