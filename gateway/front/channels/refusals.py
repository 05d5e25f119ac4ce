"""With which code and words a client is refused: those that it expects of a broker."""

from __future__ import annotations

from gateway.amqp.operations import Publish, Request
from gateway.broker.refusals import REPLY_NAMES, reply_text
from gateway.errors import EncodeError, FrameSyntaxError, LimitExceeded, LocalError, RemoteError, Unsupported


def refused(code: int, detail: str) -> RemoteError:
    """The error to raise for a request that is refused."""
    return RemoteError(code, reply_text(code, detail) if code in REPLY_NAMES else detail)


def refusal_of(error: LocalError | FrameSyntaxError | LimitExceeded, request: Request) -> RemoteError:
    """What it means to a client that its request could not be sent."""
    if isinstance(error, Unsupported):
        if type(request) is Publish and request.immediate:
            return refused(540, "immediate=true")
        return refused(540, str(error))
    if isinstance(error, EncodeError):
        return refused(311 if error.frame_size else 406, str(error))
    if isinstance(error, LimitExceeded):
        return refused(506, str(error))
    return refused(406, str(error))
