"""The 14 content properties of class basic, the same in 0-8 and 0-9-1 (0-9-1 section 4.2.6.1).

A property list is a word of flags, most significant first, and the values of those that are set, in order. Bit 0
says that another word of flags follows; as basic has 14 properties it never does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from gateway.amqp.message import Properties
from gateway.classic.tables import TableCodec
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.wire.declare import DECODE_ERRORS, ENCODE_ERRORS
from gateway.wire.emit import ESCAPED, STRICT, Emitter
from gateway.wire.types import FieldType, Integer, ShortString, TableType

_FLAGS = struct.Struct(">H")

ORDER: Final = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""In the order of the wire; the first has flag bit 15."""
FLAG: Final = {name: 1 << (15 - index) for index, name in enumerate(ORDER)}
_UNKNOWN_FLAGS: Final = 0xFFFF ^ sum(FLAG.values())
USER_ID: Final = FLAG["user_id"]
CLUSTER_ID: Final = FLAG["cluster_id"]


TYPES: Final[Mapping[str, FieldType]] = {
    **dict.fromkeys(ORDER, ShortString()),
    "headers": TableType(),
    "delivery_mode": Integer("B"),
    "priority": Integer("B"),
    "timestamp": Integer("Q"),
}


_GROUPS: Final = (
    *((name,) for name in ORDER[:5]), ORDER[5:8], ("message_id",), ORDER[9:],
)  # fmt: skip
"""Properties that are looked for together: few messages have any of the others."""


def _misfit(properties: Properties, error: Exception) -> EncodeError:
    """Which property could not be encoded, found after the fact."""
    for name in ORDER:
        value = getattr(properties, name)
        if value is not None and (reason := TYPES[name].misfit(value)) is not None:
            return EncodeError(f"{name}: {reason}")
    return EncodeError(f"properties: {error}")


def _compile_encode(text: str, unless_text: list[str]) -> Callable[[Properties, TableCodec], bytes]:
    """Straight-line code that asks for each property once. ``text`` says how strings become octets, ``unless_text``
    what to do where they do not."""
    out = Emitter(text)
    out.line("flags = 0")
    out.line("parts = [b'']")
    for name, flag in FLAG.items():
        out.line(f"v = properties.{name}")
        with out.block("if v is not None:"):
            out.line(f"flags |= {flag}")
            if name == "headers":
                out.line("parts.append(tables.encode(v))")
            elif isinstance(kind := TYPES[name], Integer):
                out.line(f"parts.append({out.name('pack', struct.Struct('>' + kind.code).pack)}(v))")
            else:
                out.line(f"v = v.encode({text})")
                out.line("parts.append(lengths[len(v)])")  # there is none over 255
                out.line("parts.append(v)")
    out.line("parts[0] = flags_of(flags)")
    out.line("return join(parts)")
    names = {
        "lengths": [bytes((size,)) for size in range(256)],
        "flags_of": _FLAGS.pack,
        "join": b"".join,
        "misfit": _misfit,
        "ENCODE_ERRORS": (*ENCODE_ERRORS, IndexError),
        "escaped": lambda *arguments: _encode_escaped(*arguments),
    }
    epilogue = [*unless_text, "except ENCODE_ERRORS as error:", "    raise misfit(properties, error) from None"]
    return out.function("encode(properties, tables)", epilogue, names)


def _emit_read(out: Emitter, name: str) -> None:
    if name == "headers":
        out.line("made.headers, at = tables.read(octets, at, len(octets))")
    elif isinstance(kind := TYPES[name], Integer):
        layout = struct.Struct(">" + kind.code)
        if layout.size == 1:
            out.line(f"made.{name} = octets[at]")
        else:
            out.line(f"made.{name}, = {out.name('unpack', layout.unpack_from)}(octets, at)")
        out.line(f"at += {layout.size}")
    else:
        out.line("start = at + 1")
        out.line("at = start + octets[at]")
        out.line(f"made.{name} = octets[start:at].decode({out.text})")


def _compile_decode(text: str, unless_text: list[str]) -> Callable[[bytes, TableCodec], Properties]:
    """Straight-line code that looks at each flag once. ``text`` says how octets become strings, ``unless_text`` what
    to do where they do not."""
    out = Emitter(text)
    out.line("flags, = flags_of(octets)")
    out.line(f"if flags & {_UNKNOWN_FLAGS}: raise unknown(flags)")
    out.line("at = 2")
    out.line("made = new(Properties)")
    for group in _GROUPS:
        with out.block(f"if flags & {sum(FLAG[name] for name in group)}:"):
            for name in group:
                if len(group) == 1:
                    _emit_read(out, name)
                    continue
                with out.block(f"if flags & {FLAG[name]}:"):
                    _emit_read(out, name)
                out.line(f"else: made.{name} = None")
        out.line(f"else: {' = '.join(f'made.{name}' for name in group)} = None")
    out.line("if at != len(octets): raise surplus(at, octets)")
    out.line("return made")
    names = {
        "flags_of": _FLAGS.unpack_from,
        "new": object.__new__,
        "Properties": Properties,
        "unknown": _unknown,
        "surplus": _surplus,
        "broken": _broken,
        "DECODE_ERRORS": DECODE_ERRORS,
        "escaped": lambda *arguments: _decode_escaped(*arguments),
    }
    epilogue = [*unless_text, "except DECODE_ERRORS as error:", "    raise broken(error) from None"]
    return out.function("decode(octets, tables)", epilogue, names)


def _unknown(flags: int) -> FrameSyntaxError:
    return FrameSyntaxError(f"content properties: flags {flags:#06x} name a property that basic has not", 502)


def _surplus(at: int, octets: bytes) -> FrameSyntaxError:
    return FrameSyntaxError(f"content properties end at octet {at} of {len(octets)}", 502)


def _broken(error: Exception) -> FrameSyntaxError:
    return FrameSyntaxError(f"content properties cannot be decoded: {error}", 502)


encode: Final = _compile_encode(STRICT, ["except UnicodeEncodeError:", "    return escaped(properties, tables)"])
"""``encode(properties, tables) -> bytes``: the flags and values of the properties that are present.

Raises:
    EncodeError: naming the property, its length and the limit.
"""
decode: Final = _compile_decode(STRICT, ["except UnicodeDecodeError:", "    return escaped(octets, tables)"])
"""``decode(octets, tables) -> Properties``: the properties of a complete list.

Raises:
    FrameSyntaxError: malformed, or followed by anything.
"""
_encode_escaped: Final = _compile_encode(ESCAPED, [])
_decode_escaped: Final = _compile_decode(ESCAPED, [])
