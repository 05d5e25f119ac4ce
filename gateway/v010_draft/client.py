"""A client's connection over the draft: the handshake of the classic versions, and the sessions that are open."""

from __future__ import annotations

from gateway.amqp.operations import Operation
from gateway.classic import methods
from gateway.classic.client import ClassicClient
from gateway.errors import FrameSyntaxError, StateError
from gateway.session import ClientConfig, Confirms
from gateway.v010_draft.client_channel import ClientChannel
from gateway.v010_draft.connection import Frames


class ClientSession(Frames, ClassicClient):
    """AMQP 0-10, transitional, in the client role. See :class:`gateway.session.Session`."""

    def __init__(self, config: ClientConfig) -> None:
        super().__init__(config)
        self.prepare()

    def say(self, operation: Operation) -> None:
        """Return an operation from ``receive_data``. The list of events is another one after each."""
        self.emit(operation)

    def _learn(self, method: methods.ConnectionStart) -> None:
        super()._learn(method)
        known = self.capabilities
        known.confirms = Confirms.COMPLETION
        known.release_many = known.native_dead_letter = known.unbind_queue = True

    def _open_channel(self, number: int) -> int:
        if not 1 <= number <= self.channel_max:
            raise StateError(f"channel {number} is not within 1..{self.channel_max}")
        self.attached[number] = ClientChannel(self, number)
        return 1

    def _unknown_channel(self, number: int, key: int, data: bytes, at: int, end: int) -> None:
        raise FrameSyntaxError(f"a method on channel {number}, which is not open", 504)
