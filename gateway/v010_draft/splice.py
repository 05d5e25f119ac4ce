"""The reserved header, read and added in undecoded properties. See :class:`gateway.amqp.message.Seam`.

What is there already is left to a decoder: nobody is known to speak the draft fast enough for that to matter.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from gateway.amqp.values import Table
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import RESERVED, RESERVED_OCTETS
from gateway.limits import DEFAULT_LIMITS
from gateway.v010_draft.layout import headers_at
from gateway.v010_draft.tables import Tables

_LENGTH: Final = struct.Struct(">I")
_tables: Final = Tables()


class DraftSeam:
    """See the module."""

    __slots__ = ()

    def read(self, octets: bytes) -> Mapping[str, str] | None:
        """The strings in the reserved header."""
        headers = self._headers(octets)
        if headers is None:
            return None
        entry = headers.get(RESERVED)
        return {key: value for key, value in entry.items() if isinstance(value, str)} if isinstance(entry, dict) else {}

    def splice(self, octets: bytes, entries: Mapping[str, str]) -> bytes | None:
        """The octets with ``entries`` in the reserved header."""
        headers = self._headers(octets)
        if headers is None or RESERVED_OCTETS in octets or len(headers) >= DEFAULT_LIMITS.table_entries:
            return None
        try:
            added = _tables.encode({RESERVED: dict(entries)})[_LENGTH.size :]
        except EncodeError:
            return None
        at = headers_at(octets)
        kept = octets[at + _LENGTH.size :]
        return b"".join((octets[:at], _LENGTH.pack(len(kept) + len(added)), kept, added))

    def _headers(self, octets: bytes) -> Table | None:
        try:
            return _tables.read(octets, headers_at(octets), len(octets))[0]
        except FrameSyntaxError:
            return None


SEAM: Final = DraftSeam()
"""The one there is."""
