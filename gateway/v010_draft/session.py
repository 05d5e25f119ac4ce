"""The way into the draft: the two sessions that implement :class:`gateway.session.Session`."""

from gateway.v010_draft.client import ClientSession
from gateway.v010_draft.server import ServerSession

__all__ = ["ClientSession", "ServerSession"]
