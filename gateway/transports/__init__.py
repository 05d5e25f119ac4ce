"""Octets over TCP, TLS or memory.

A :class:`~gateway.transports.stream.Stream` joins one asyncio transport to one
:class:`~gateway.transports.stream.StreamUser`: octets that come are handed over as they come, octets to send are
fetched once per turn of the event loop and written in one call. :mod:`~gateway.transports.dial` opens streams to
brokers; :mod:`~gateway.transports.memory` joins two streams inside the process.
"""

from gateway.transports.dial import dial
from gateway.transports.memory import memory_pair
from gateway.transports.stream import Stream, StreamUser
from gateway.transports.tls import client_context

__all__ = ["Stream", "StreamUser", "client_context", "dial", "memory_pair"]
