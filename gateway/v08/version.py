"""AMQP 0-8, by its name and its protocol header."""

from __future__ import annotations

from typing import Final

from gateway.session import Version

V0_8: Final = Version("0-8", b"AMQP\x01\x01\x08\x00")
