"""Writing Python: what a field type needs to emit the code that reads or writes it.

A decoder walks ``data`` from ``at`` towards ``end`` and never slices the rest. Consecutive fixed-size pieces,
over the borders of fields, share one precompiled :class:`struct.Struct`: the type of a field says
``out.fixed("H", target)`` and the emitter puts neighbors together. An encoder collects the pieces of a
``b"".join`` in the same way.

Names the generated code may use: ``self``, ``data``, ``at``, ``start``, ``end``, ``context`` (the context that the
caller of encode and decode passes on: the table codec, say), and what :meth:`Emitter.name` and
:meth:`Emitter.temporary` return.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

STRICT: Final = ""
ESCAPED: Final = "'utf-8', 'surrogateescape'"
"""How text and octets become one another, as arguments of ``encode`` and ``decode``. The first is quicker; the other
one keeps octets that are not UTF-8."""


class Emitter:
    """Source text of one function under construction, and the objects it refers to."""

    def __init__(self, text: str = ESCAPED) -> None:
        self.text = text
        """STRICT or ESCAPED."""
        self.names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 2
        self._temporaries = 0

    def name(self, prefix: str, value: Any) -> str:
        """A name by which the generated code can refer to ``value``."""
        for known, other in self.names.items():
            if other is value and known.startswith(prefix):
                return known
        chosen = f"{prefix}_{len(self.names)}"
        self.names[chosen] = value
        return chosen

    def temporary(self, prefix: str = "t") -> str:
        """A local variable that no other piece of the function uses."""
        self._temporaries += 1
        return f"{prefix}{self._temporaries}"

    def line(self, text: str) -> None:
        """One statement, after everything emitted so far."""
        self.flush()
        self._append(text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """``header`` and, indented, what is emitted inside the ``with``."""
        self.line(header)
        self._depth += 1
        start = len(self._lines)
        yield
        self.flush()
        if len(self._lines) == start:
            self._append("pass")
        self._depth -= 1

    def flush(self) -> None:
        """Emit what is still held back."""

    def function(self, signature: str, epilogue: list[str], names: dict[str, Any]) -> Callable[..., Any]:
        """Compile: ``def signature: try: <lines>`` and ``epilogue`` (the ``except`` clauses; without them, no
        ``try``)."""
        self.flush()
        body = "\n".join(self._lines) or "        pass"
        head = "try" if epilogue else "if True"
        source = f"def {signature}:\n    {head}:\n{body}\n" + "".join(f"    {text}\n" for text in epilogue)
        scope = {**names, **self.names}
        exec(compile(source, f"<{signature}>", "exec"), scope)  # noqa: S102  # source is built from declared classes only
        made: Callable[..., Any] = scope[signature.partition("(")[0]]
        made.__doc__ = source
        return made

    def _append(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)


class Reader(Emitter):
    """The emitter of a decoder."""

    def __init__(self, text: str = ESCAPED) -> None:
        super().__init__(text)
        self._fixed: list[tuple[str, str]] = []
        self._after: list[str] = []
        self._bits: tuple[str, int] | None = None

    @property
    def holds(self) -> bool:
        """Whether fixed-size pieces are held back, which the next one would share a struct with."""
        return bool(self._fixed)

    def fixed(self, code: str, target: str) -> None:
        """Read one value of struct code ``code`` (big-endian) into ``target``."""
        self._bits = None
        self._fixed.append((code, target))

    def bit(self, target: str) -> None:
        """Read the next bit of a run of bits, least significant first; eight share an octet."""
        if self._bits is None or self._bits[1] == 8:
            octet = self.temporary("bits")
            self._fixed.append(("B", octet))
            self._bits = (octet, 0)
        octet, position = self._bits
        self._after.append(f"{target} = {octet} & {1 << position} != 0")
        self._bits = (octet, position + 1)

    def flush(self) -> None:
        """Emit the fixed-size pieces held back, as one struct."""
        self._bits = None
        fixed, self._fixed = self._fixed, []
        after, self._after = self._after, []
        if not fixed:
            return
        if len(fixed) == 1 and fixed[0][0] == "B":
            self._append(f"{fixed[0][1]} = data[at]")
            self._append("at += 1")
        else:
            layout = struct.Struct(">" + "".join(code for code, _ in fixed))
            unpack = self.name("unpack", layout.unpack_from)
            self._append(f"{', '.join(target for _, target in fixed)}, = {unpack}(data, at)")
            self._append(f"at += {layout.size}")
        for text in after:
            self._append(text)


class Writer(Emitter):
    """The emitter of an encoder. What is written becomes the arguments of one ``b"".join``."""

    def __init__(self, text: str = ESCAPED) -> None:
        super().__init__(text)
        self._parts: list[str] = []
        self._fixed: list[tuple[str, str]] = []
        self._bits = 8

    def fixed(self, code: str, expression: str) -> None:
        """Write the value of ``expression`` as struct code ``code``."""
        self._bits = 8
        self._fixed.append((code, expression))

    def bit(self, expression: str) -> None:
        """Write a bool as the next bit of a run."""
        if self._bits == 8:
            self._fixed.append(("B", expression))
            self._bits = 1
            return
        code, before = self._fixed[-1]
        self._fixed[-1] = (code, f"{before} | {expression} << {self._bits}")
        self._bits += 1

    def octets(self, expression: str) -> None:
        """Write octets as they are. ``expression`` must not have side effects on later ones."""
        self._pack()
        self._parts.append(expression)

    def result(self) -> str:
        """The expression for all that was written."""
        self._pack()
        if not self._parts:
            return "b''"
        return self._parts[0] if len(self._parts) == 1 else f"b''.join(({', '.join(self._parts)}))"

    def _pack(self) -> None:
        self._bits = 8
        fixed, self._fixed = self._fixed, []
        if fixed:
            pack = self.name("pack", struct.Struct(">" + "".join(code for code, _ in fixed)).pack)
            self._parts.append(f"{pack}({', '.join(expression for _, expression in fixed)})")
