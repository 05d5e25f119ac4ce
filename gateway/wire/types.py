"""Field types: objects that emit the code which reads and writes a field.

A declared class names its fields by the aliases at the end, which type checkers see as plain ``int``, ``str``,
``bool`` and ``bytes``. A version adds types of its own as further subclasses of :class:`FieldType`.

Short strings are decoded as UTF-8 with surrogate escapes: octets that are not UTF-8 come back as they were.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from gateway.amqp.values import Table
from gateway.errors import FrameSyntaxError
from gateway.wire.emit import Reader, Writer

SHORT_STRING_MAX = 255


class FieldType:
    """One type of field."""

    default: Any = None
    """The value of an absent or unset field of this type."""

    def emit_read(self, out: Reader, target: str) -> None:
        """Emit code that reads the field into the local variable ``target`` and moves ``at`` behind it."""
        raise NotImplementedError

    def emit_write(self, out: Writer, source: str) -> None:
        """Emit code that writes the value of the expression ``source``."""
        raise NotImplementedError

    def misfit(self, value: Any) -> str | None:
        """Why ``value`` cannot be written, with the limit; None where it can. Asked only after encoding
        failed, so that encoding itself need not look."""
        raise NotImplementedError


class Integer(FieldType):
    """An unsigned (lower case code: signed) integer of a struct code."""

    default = 0

    def __init__(self, code: str) -> None:
        self.code = code
        bits = 8 * {"B": 1, "H": 2, "I": 4, "L": 4, "Q": 8}[code.upper()]
        self.minimum, self.maximum = (0, (1 << bits) - 1) if code.isupper() else (-(1 << bits - 1), (1 << bits - 1) - 1)

    def emit_read(self, out: Reader, target: str) -> None:
        out.fixed(self.code, target)

    def emit_write(self, out: Writer, source: str) -> None:
        out.fixed(self.code, source)

    def misfit(self, value: Any) -> str | None:
        if not isinstance(value, int):
            return f"{value!r:.80} is no integer"
        if not self.minimum <= value <= self.maximum:
            return f"{value} is not within {self.minimum}..{self.maximum}"
        return None


class BitType(FieldType):
    """A bool; runs of them are packed into octets."""

    default = False

    def emit_read(self, out: Reader, target: str) -> None:
        out.bit(target)

    def emit_write(self, out: Writer, source: str) -> None:
        out.bit(source)

    def misfit(self, value: Any) -> str | None:
        return None if isinstance(value, bool) else f"{value!r:.80} is no bool"


class ShortString(FieldType):
    """Up to 255 octets of text behind a length of one octet."""

    default = ""

    def emit_read(self, out: Reader, target: str) -> None:
        # A string that claims more than is left moves ``at`` past ``end``, which the decoder checks once.
        if out.holds:
            length = out.temporary("n")
            out.fixed("B", length)
            out.line("start = at")
            out.line(f"at += {length}")
        else:
            out.line("start = at + 1")
            out.line("at = start + data[at]")
        out.line(f"{target} = data[start:at].decode({out.text})")

    def emit_write(self, out: Writer, source: str) -> None:
        octets = out.temporary("s")
        out.line(f"{octets} = {source}.encode({out.text})")
        # Over 255 octets, the struct refuses the length.
        out.fixed("B", f"len({octets})")
        out.octets(octets)

    def misfit(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{value!r:.80} is no string"
        try:
            size = len(value.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            return f"{value!r:.80} is no text: {error.reason}"
        return f"{size} octets are more than {SHORT_STRING_MAX}" if size > SHORT_STRING_MAX else None


class LongString(FieldType):
    """Octets behind a length of four octets."""

    default = b""

    def emit_read(self, out: Reader, target: str) -> None:
        length = out.temporary("n")
        out.fixed("I", length)
        out.line(f"if {length} > end - at: raise {out.name('overrun', overrun)}({length}, end - at)")
        out.line(f"{target} = data[at:at + {length}]")
        out.line(f"at += {length}")

    def emit_write(self, out: Writer, source: str) -> None:
        out.fixed("I", f"len({source})")
        out.octets(source)

    def misfit(self, value: Any) -> str | None:
        return None if isinstance(value, (bytes, bytearray)) else f"{value!r:.80} is no octets"


class TableType(FieldType):
    """A field table. The version's table codec is the ``context`` of encode and decode: an object with
    ``encode(table) -> bytes`` and ``read(data, at, end) -> (table, at)``, both with the length in front."""

    def emit_read(self, out: Reader, target: str) -> None:
        out.line(f"{target}, at = context.read(data, at, end)")

    def emit_write(self, out: Writer, source: str) -> None:
        out.octets(f"context.encode({source})")

    def misfit(self, value: Any) -> str | None:
        return None if isinstance(value, dict) else f"{value!r:.80} is no table"


def overrun(claimed: int, left: int) -> FrameSyntaxError:
    """The error for a length that runs past the end of its frame."""
    return FrameSyntaxError(f"a length of {claimed} octets where {left} are left", 502)


Bit: TypeAlias = Annotated[bool, BitType()]
Octet: TypeAlias = Annotated[int, Integer("B")]
Short: TypeAlias = Annotated[int, Integer("H")]
Long: TypeAlias = Annotated[int, Integer("I")]
LongLong: TypeAlias = Annotated[int, Integer("Q")]
ShortStr: TypeAlias = Annotated[str, ShortString()]
LongStr: TypeAlias = Annotated[bytes, LongString()]
FieldTable: TypeAlias = Annotated[Table, TableType()]
