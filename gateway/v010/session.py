"""The way into AMQP 0-10: the two sessions that implement :class:`gateway.session.Session`."""

from gateway.v010.client import ClientSession
from gateway.v010.server import ServerSession

__all__ = ["ClientSession", "ServerSession"]
