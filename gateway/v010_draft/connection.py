"""A connection of the draft: that of the classic versions, with other frames, tables and sessions.

Its protocol header is the final's, for both are 0-10: nothing tells them apart before the server has spoken. A listener
and a client learn which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from gateway.classic import methods
from gateway.classic.connection import ClassicSession, ConnectionPhase
from gateway.classic.dialect import Dialect
from gateway.classic.frames import FRAME_END, FRAME_HEADER, HEARTBEAT, METHOD, METHOD_KEY, OVERHEAD
from gateway.errors import FrameSyntaxError
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v010_draft.attached import IDS, METHODS, REQUEST, RESPONSE, Attached
from gateway.v010_draft.tables import Tables
from gateway.v010_draft.translate import DIALECT

NAME: Final = "transitional"
"""What the configuration calls the dialect."""

TRANSITIONAL: Final = Dialect(
    name=NAME,
    version=V0_10,
    start_version=(0, 10),
    methods=METHODS,
    connection_close=methods.ConnectionClose,
    connection_close_ok=methods.ConnectionCloseOk,
    channel_open_ok=methods.ChannelOpenOk,
    properties=DIALECT,
    query_binding=True,
    browse=True,
    capabilities_table=False,
)
"""What the connection of the classic versions asks of a dialect."""

FRAME_TYPES: Final = frozenset({METHOD, HEARTBEAT, REQUEST, RESPONSE})
"""The definition has seven more, for content and for traces, which belong to the classes that are not served."""


class Frames(ClassicSession[Any]):
    """What client and server connections share."""

    version: ClassVar[Version] = V0_10
    dialects: ClassVar[Mapping[str, Dialect]] = {NAME: TRANSITIONAL}

    attached: dict[int, Attached]
    """The sessions, by channel: the ``channels`` of the classic connection."""
    dirty: dict[int, Attached]
    """Those that have something to say at the end of a burst."""
    _key: int = 0
    """The method that came last."""

    def prepare(self) -> None:
        """To be called when the classic part is made."""
        self.tables = Tables(self.limits)
        self.attached = self.channels
        self.dirty = {}

    def use_dialect(self, dialect: Dialect) -> None:
        """There is only one."""

    def detach(self, channel: Attached) -> None:
        """The session is over."""
        channel.forget()
        self.attached.pop(channel.number, None)
        self.dirty.pop(channel.number, None)

    def _flush(self) -> None:
        if self.dirty:
            channels, self.dirty = self.dirty, {}
            for channel in channels.values():
                channel.flush()

    def _frames(self, data: bytes, at: int) -> int:
        """See :meth:`~gateway.classic.connection.ClassicSession._frames`, of which this is the plain form."""
        size = len(data)
        self._key = 0
        try:
            while size - at >= FRAME_HEADER.size:
                kind, number, length = FRAME_HEADER.unpack_from(data, at)
                if length > self._payload_max:
                    raise FrameSyntaxError(f"a frame of {length + OVERHEAD} octets is over {self.frame_max}")
                if kind not in FRAME_TYPES:
                    raise FrameSyntaxError(f"a frame of type {kind}, which has no place here")
                start = at + FRAME_HEADER.size
                end = start + length
                if end >= size:
                    self._need = length + OVERHEAD
                    return at
                if data[end] != FRAME_END:
                    raise FrameSyntaxError(f"a frame ends with {data[end]:#04x}")
                at = end + 1
                self._frame(kind, number, data, start, end)
                if self.phase is ConnectionPhase.CLOSED:
                    return at
        except FrameSyntaxError as error:
            self.violation(error, self._key)
            return size
        self._need = FRAME_HEADER.size
        return at

    def _frame(self, kind: int, number: int, data: bytes, start: int, end: int) -> None:
        if kind == HEARTBEAT:
            if number:
                raise FrameSyntaxError(f"a heartbeat on channel {number}")
            return
        ids = (0, 0, 0)
        if kind != METHOD:
            if end - start < IDS.size:
                raise FrameSyntaxError(f"a request or response of {end - start} octets", 502)
            ids = IDS.unpack_from(data, start)
            start += IDS.size
        if end - start < METHOD_KEY.size:
            raise FrameSyntaxError(f"a method of {end - start} octets", 502)
        (key,) = METHOD_KEY.unpack_from(data, start)
        self._key = key
        start += METHOD_KEY.size
        channel = self.attached.get(number)
        if channel is not None:
            channel.frame(kind, ids, key, data, start, end)
        elif number:
            self._unknown_channel(number, key, data, start, end)
        elif kind == METHOD:
            self._connection_method(key, data, start, end)
        else:
            raise FrameSyntaxError("a request or response on channel 0", 503)
