"""The command segment of AMQP 0-10 (specification section 3.2): class, command, session header, fields.

Each class of the specification declares its commands in a module of its own or in ``commands.py``, which knows them
all and is what the rest of the package imports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, TypeVar, dataclass_transform

from gateway.errors import FrameSyntaxError
from gateway.limits import DEFAULT_LIMITS, Limits
from gateway.session import Role
from gateway.v010.fields import EITHER, SERVER, Fields, declare
from gateway.v010.structs import Struct


class Command(Fields):
    """Anything on the command track."""

    __slots__ = ()
    to: ClassVar[frozenset[Role]] = EITHER
    """The ends that have to understand it."""
    answers: ClassVar[tuple[str, ...]] = ()
    """The commands of which one answers it, as the specification spells them; none: completion does."""
    result: ClassVar[type[Struct] | None] = None
    """What its execution.result holds; None: it has none."""
    header: ClassVar[tuple[int, ...] | None] = None
    """The codes of the structs in the header segment that follows, with a body segment behind it; None: neither."""
    header_required: ClassVar[bool] = False
    """The header segment may not be missing."""

    def encode(self, sync: bool = False) -> bytes:
        """The whole command segment. Raises :class:`~gateway.errors.EncodeError`."""
        return b"%b\x01%c%b" % (self.code.to_bytes(2, "big"), sync, self.encode_fields())


COMMANDS: Final[dict[int, type[Command]]] = {}
"""(class << 8 | command) -> declared class."""

_C = TypeVar("_C", bound=Command)


@dataclass_transform(frozen_default=True)
def command(
    code: int,
    name: str,
    *,
    to: frozenset[Role] = SERVER,
    answers: tuple[str, ...] = (),
    result: type[Struct] | None = None,
    header: tuple[int, ...] | None = None,
    header_required: bool = False,
) -> Callable[[type[_C]], type[_C]]:
    """Declare a command: its class and code in one number, its name in the specification, and what :class:`Command`
    says of it."""

    def make(cls: type[_C]) -> type[_C]:
        made = declare(cls, name, code)
        made.to = to
        made.answers = answers
        made.result = result
        made.header = header
        made.header_required = header_required
        COMMANDS[code] = made
        return made

    return make


def decode_command(segment: bytes, limits: Limits = DEFAULT_LIMITS) -> tuple[Command | None, bool]:
    """The command in a segment, None where its code is unknown, and its sync bit. Raises
    :class:`~gateway.errors.FrameSyntaxError`."""
    if len(segment) < 3 or len(segment) < (at := 3 + segment[2]):
        raise FrameSyntaxError(f"no command begins with {segment[:4].hex() or 'nothing'}")
    sync = segment[2] > 0 and segment[3] & 1 != 0
    kind = COMMANDS.get(segment[0] << 8 | segment[1])
    if kind is None:
        return None, sync
    return kind.decode_fields(segment, at, len(segment), limits), sync
