"""Declared classes: fields in the order of the wire, compiled to straight-line encode and decode.

::

    @declared(prefix=struct.pack(">HH", 60, 80))
    class BasicAck(Declared):
        delivery_tag: LongLong
        multiple: Bit = False

gives ``BasicAck(7)``, ``ack.encode(context) -> bytes`` (prefix and arguments) and ``BasicAck.decode(data, at, end,
context)``, which reads the arguments that lie in ``data`` from ``at`` to ``end``. Decoding raises
:class:`~gateway.errors.FrameSyntaxError` and nothing else; encoding raises :class:`~gateway.errors.EncodeError`
naming field, value and limit. That the arguments end where their frame ends is checked once, at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache, partial
from typing import Any, ClassVar, TypeVar, dataclass_transform, get_type_hints

from gateway.errors import EncodeError, FrameSyntaxError
from gateway.wire.emit import ESCAPED, STRICT, Reader, Writer
from gateway.wire.types import FieldType

_T = TypeVar("_T", bound="Declared")
DECODE_ERRORS = (IndexError, struct.error)
"""Errors that reading at an offset may raise; each is a FrameSyntaxError at the boundary."""
ENCODE_ERRORS = (struct.error, UnicodeEncodeError, AttributeError, TypeError, OverflowError)


class Declared:
    """Base of declared classes."""

    __slots__ = ()

    name: ClassVar[str] = ""
    """What error texts call it."""
    layout: ClassVar[tuple[tuple[str, FieldType], ...]] = ()
    """Field name and type, in the order of the wire."""
    decode: ClassVar[Callable[..., Any]]
    """``decode(data, at, end, context)``: the arguments that fill ``data[at:end]``."""

    def encode(self, context: Any = None) -> bytes:
        """Prefix and arguments. Raises :class:`~gateway.errors.EncodeError`."""
        raise NotImplementedError


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def declared(*, prefix: bytes = b"", name: str = "") -> Callable[[type[_T]], type[_T]]:
    """Declare a class: slots and an ``__init__`` as a dataclass has them, ``encode`` and ``decode`` compiled.

    ``prefix`` stands before the arguments when encoding; a decoder starts behind it.
    """

    def make(cls: type[_T]) -> type[_T]:
        made = dataclass(slots=True)(cls)
        made.name = name or cls.__name__
        made.layout = _layout(made)
        made.decode = staticmethod(_decoder(made, STRICT))
        made.encode = _encoder(made, prefix, STRICT)  # type: ignore[method-assign]
        return made

    return make


def misfit(message: Declared, error: Exception) -> EncodeError:
    """Which field of ``message`` could not be encoded, found after the fact."""
    for field_name, kind in message.layout:
        reason = kind.misfit(getattr(message, field_name))
        if reason is not None:
            return EncodeError(f"{message.name}.{field_name}: {reason}")
    return EncodeError(f"{message.name}: {error}")


def _layout(cls: type[Declared]) -> tuple[tuple[str, FieldType], ...]:
    hints = get_type_hints(cls, include_extras=True)
    result = []
    for item in fields(cls):  # type: ignore[arg-type]  # every declared class is a dataclass by now
        kinds = [extra for extra in getattr(hints[item.name], "__metadata__", ()) if isinstance(extra, FieldType)]
        if len(kinds) != 1:
            raise TypeError(f"{cls.__name__}.{item.name}: {hints[item.name]} is no field type")
        result.append((item.name, kinds[0]))
    return tuple(result)


def _decoder(cls: type[Declared], text: str) -> Callable[..., Any]:
    out = Reader(text)
    if text is STRICT:
        out.line("began = at")
    for field_name, kind in cls.layout:
        kind.emit_read(out, f"f_{field_name}")
    out.line("if at != end: raise surplus(at, end)")
    out.line("self = new(cls)")
    for field_name, _ in cls.layout:
        out.line(f"self.{field_name} = f_{field_name}")
    out.line("return self")

    def surplus(at: int, end: int) -> FrameSyntaxError:
        if at > end:
            return FrameSyntaxError(f"{cls.name} runs {at - end} octets past the end of its frame", 502)
        return FrameSyntaxError(f"{cls.name} is followed by {end - at} octets that belong to nothing", 502)

    def broken(error: Exception) -> FrameSyntaxError:
        return FrameSyntaxError(f"{cls.name} cannot be decoded: {error}", 502)

    epilogue = ["except DECODE_ERRORS as error:", "    raise broken(error) from None"]
    if text is STRICT:
        epilogue = ["except UnicodeDecodeError:", "    return escaped()(data, began, end, context)", *epilogue]
    return out.function(
        "decode(data, at, end, context=None)",
        epilogue,
        {
            "new": object.__new__,
            "cls": cls,
            "surplus": surplus,
            "broken": broken,
            "DECODE_ERRORS": DECODE_ERRORS,
            "escaped": cache(partial(_decoder, cls, ESCAPED)),
        },
    )


def _encoder(cls: type[Declared], prefix: bytes, text: str) -> Callable[..., bytes]:
    out = Writer(text)
    if prefix:
        if len(prefix) == 4:
            out.fixed("I", str(int.from_bytes(prefix, "big")))
        else:
            out.octets(repr(prefix))
    for field_name, kind in cls.layout:
        kind.emit_write(out, f"self.{field_name}")
    out.line(f"return {out.result()}")
    epilogue = ["except ENCODE_ERRORS as error:", "    raise misfit(self, error) from None"]
    if text is STRICT:
        epilogue = ["except UnicodeEncodeError:", "    return escaped()(self, context)", *epilogue]
    return out.function(
        "encode(self, context=None)",
        epilogue,
        {"misfit": misfit, "ENCODE_ERRORS": ENCODE_ERRORS, "escaped": cache(partial(_encoder, cls, prefix, ESCAPED))},
    )
