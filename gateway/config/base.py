"""What the tables of the configuration have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import UNSET, Meta
from msgspec.structs import force_setattr

from gateway.validation import WrongField

NAME_MAX: Final = 255
"""Most octets of a name of AMQP: it is a short string."""
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


DEFAULT_EXCHANGE: Final = "amq.default"
"""How the default exchange, whose name is empty, is written."""
OLD_NAME: Final = Meta(extra_json_schema={"deprecated": True})
"""Marks the old name of a field (:attr:`Settings.RENAMED`)."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all tables."""

    RENAMED: ClassVar[Mapping[str, str]] = {}
    """Old name of a field -> its name. Either is read, and both are shown. The code reads the old one."""
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    """Another name of a field -> the field. It is read, and not shown."""

    EXCHANGES: ClassVar[tuple[str, ...]] = ()
    """Fields that name an exchange, where ``amq.default`` is read as the empty name that AMQP has for it."""

    def __post_init__(self) -> None:
        """Read a field under either of its names. Raises WrongField where both are given and differ."""
        for field in self.EXCHANGES:
            if getattr(self, field) == DEFAULT_EXCHANGE:
                force_setattr(self, field, "")
        for old, new in self.RENAMED.items():
            given, default = getattr(self, old), _defaults(type(self))[old]
            value = getattr(self, new)
            if value is UNSET:
                force_setattr(self, new, given)
            elif given is not default and given != value:  # a value that was read is no constant of ours
                raise WrongField(old, f"this is the old name of {new}, which has another value; give {new} alone")
            else:
                force_setattr(self, old, value)
        for other, name in self.OTHER_NAMES.items():
            if (value := getattr(self, other)) is not UNSET:
                if getattr(self, name) not in (value, _defaults(type(self))[name]):
                    raise WrongField(other, f"this is another name of {name}, which has another value; give one")
                force_setattr(self, name, value)
                force_setattr(self, other, UNSET)


@cache
def _defaults(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


def too_long(**names: str) -> str | None:
    """The first of these names of AMQP that no broker can be told, since it is no short string; None: there is none.

    A name of the setting may have ``__`` for the dot in it.
    """
    for setting, name in names.items():
        if (size := len(name.encode("utf-8", "surrogatepass"))) > NAME_MAX:
            return f"{setting.replace('__', '.')}: it has {size} octets, the limit is {NAME_MAX}"
    return None
