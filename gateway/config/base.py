"""What the tables of the configuration have in common."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

NAME_MAX: Final = 255
"""Most octets of a name of AMQP: it is a short string."""
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables."""


def too_long(**names: str) -> str | None:
    """The first of these names of AMQP that no broker can be told, since it is no short string; None: there is none.

    A name of the setting may have ``__`` for the dot in it.
    """
    for setting, name in names.items():
        if (size := len(name.encode("utf-8", "surrogatepass"))) > NAME_MAX:
            return f"{setting.replace('__', '.')}: it has {size} octets, the limit is {NAME_MAX}"
    return None
