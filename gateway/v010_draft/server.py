"""A server's end of a connection over the draft: the handshake of the classic versions, and the sessions of clients."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from gateway.classic.connection import ConnectionPhase
from gateway.classic.server import ClassicServer
from gateway.errors import FrameSyntaxError
from gateway.session import ServerConfig
from gateway.v010_draft import methods
from gateway.v010_draft.attached import METHODS, Attached
from gateway.v010_draft.connection import NAME, Frames
from gateway.v010_draft.server_channel import WAYS, ServerChannel

NO_SUCH_SESSION: Final = "NOT_FOUND - sessions do not outlive their channels here"


class ServerSession(Frames, ClassicServer):
    """AMQP 0-10, transitional, in the server role. See :class:`gateway.session.Session`."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config)
        self.prepare()
        self.capabilities.dialect = NAME
        self._ended: set[int] = set()
        """Channels whose session we have ended: what the client has sent before it knew is passed over."""
        self._opened = 0

    def fresh_name(self) -> UUID:
        """The id of a new session."""
        self._opened += 1
        random = self.config.random_octets
        return UUID(int=self._opened) if random is None else UUID(bytes=random(16), version=4)

    def detach(self, channel: Attached, by_client: bool = False) -> None:
        """See :class:`~gateway.v010_draft.connection.Frames`."""
        super().detach(channel)
        if not by_client:
            self._ended.add(channel.number)

    def _unknown_channel(self, number: int, key: int, data: bytes, at: int, end: int) -> None:
        if self.phase is ConnectionPhase.CLOSING:
            return
        if self.phase is not ConnectionPhase.OPEN:
            raise FrameSyntaxError(f"a method on channel {number} before the connection is open", 503)
        way = WAYS.get(key)
        if way is not None:
            METHODS[key].decode(data, at, end, self.tables)
            if len(self.attached) >= self.channel_max:
                raise FrameSyntaxError(f"more than {self.channel_max} sessions are open", 530)
            self._ended.discard(number)
            self.attached[number] = ServerChannel(self, number, way)
        elif key == methods.SessionResume.key:
            methods.SessionResume.decode(data, at, end, self.tables)
            self.send_method(number, methods.SessionClosed(404, NO_SUCH_SESSION))
        elif number not in self._ended:
            raise FrameSyntaxError(f"channel {number} has no session", 504)
