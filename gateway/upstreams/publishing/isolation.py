"""Isolation: who is to blame when a broker closes a channel, or the connection, with a thousand publishes in flight.

A broker answers a message that it dislikes with a close: one reason, no name, and no outcome for the others. Some of
these are safe, some were never looked at. Their callers still wait and their messages are still in memory, so::

    a channel dies, many in its window    all without an outcome are suspects; they go to the head of the line
    suspects                              are sent again one at a time, marked as possible duplicates
    a channel dies, one in its window     that one is the culprit: its caller gets the broker's words; the window of
                                          those behind it opens step by step, for there may be another culprit
    the connection dies with a code       as above, over all channels of the link: nothing else is in flight then
    the connection is cut, without a code nobody is to blame and nothing is sent again: each outcome is unknown

So a publish is stored at most twice (in its window, and alone), and at most a window of them is; only where a queue
that confirms nothing is among the suspects, so that more of them are sent at a time (:data:`PATIENCE`), it may be
once more. The mark is the entry ``resent`` of the reserved header, and ``resent`` in the receipt.

Refusals of a broker for every message (there is no such exchange, the login may not write to it) are found with one
publish in flight, since the first publish of a lane goes alone, and are remembered for :data:`REFUSED_FOR` seconds: a
flood of them does not kill a channel each.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gateway.amqp.message import Message
from gateway.errors import FrameSyntaxError, GatewayError, OutcomeUnknown, PublishRefused, RemoteError, remote_error
from gateway.fidelity import annotate
from gateway.upstreams.publishing.receipts import ROUTED, Entry, PublishReceipt, Waiting

FIRST_WINDOW = 1
"""Most publishes in flight on a new lane; every one that is confirmed lets one more in, up to ``publish_window``."""
PATIENCE: Final = 1.0
"""Seconds without an outcome after which a window that is not proved yet is doubled: a queue that confirms nothing
must not hold up its neighbors."""
REFUSED_FOR: Final = 2.0
"""Seconds for which it is remembered that the broker refuses an exchange, or a routing key there."""
REFUSED_FOR_LONG: Final = 15.0
"""The same where it closes the connection for that, and so all channels of all callers."""
REFUSALS_MAX: Final = 1_000
"""Most refusals that are remembered; the oldest go."""
MARK: Final = {"resent": "1"}
"""The entry of the reserved header that marks a possible duplicate."""

RESENT: Final = replace(ROUTED, resent=True)
_INTERNAL_ERROR: Final = 541
_ACCESS_REFUSED: Final = 403
_NOT_FOUND: Final = 404
_WHOLE_EXCHANGE: Final = re.compile(r"access to exchange |publish to internal exchange ")
"""How RabbitMQ says that it is the exchange which is refused, and not a routing key there."""
_SIZE: Final = re.compile(r"message size \d+ is larger than configured max size (\d+)")
"""How RabbitMQ says what its ``max_message_size`` is."""
_PARTIAL: Final = "partial tx completion"
"""RabbitMQ's only word in a transaction for a queue that refuses a message (``x-overflow: reject-publish``)."""


class Again(asyncio.Future[PublishReceipt]):
    """The outcome of a publish that is sent again. What comes of it is passed on to its caller."""

    def __init__(self, caller: asyncio.Future[PublishReceipt], cause: GatewayError) -> None:
        super().__init__(loop=caller.get_loop())
        self.caller = caller
        self.cause = cause
        """Why the channel of the first attempt died."""
        self.add_done_callback(_pass_on)
        caller.add_done_callback(self._abandon)

    def _abandon(self, caller: asyncio.Future[PublishReceipt]) -> None:
        if not self.done():  # nobody waits for it any more
            self.cancel()


def _pass_on(again: asyncio.Future[PublishReceipt]) -> None:
    assert isinstance(again, Again)
    caller = again.caller
    if caller.done() or again.cancelled():
        return
    error = again.exception()
    if error is None:
        receipt = again.result()
        caller.set_result(RESENT if receipt is ROUTED else replace(receipt, resent=True))
        return
    assert isinstance(error, GatewayError)
    # What says nothing of the first attempt leaves its outcome unknown.
    if error.outcome == "not_sent" or error.retryable or (isinstance(error, RemoteError) and whole_exchange(error)):
        error = OutcomeUnknown(
            f"the channel died before the message had an outcome: {again.cause}; it was to be sent again: {error}"
        )
    error.resent = True
    caller.set_exception(error)


def repeats(pending: Sequence[Entry], cause: RemoteError, named: int | None, mark: bool) -> tuple[list[Waiting], int]:
    """Publishes that a dead channel has left, for the line, and how many of them are suspects: all, or those before the
    one that the broker ``named``. Callers that have left are left out."""
    items: list[Waiting] = []
    suspects = 0
    for index, (future, _, deadline, publish) in enumerate(pending):
        if future.done():
            continue
        suspects += named is None or index < named
        message = publish.message
        if isinstance(future, Again):
            future.cause = cause
        else:
            future = Again(future, cause)
            message = marked(message) if mark else message
        items.append((future, deadline, publish.routing_key, message, publish.immediate, None))
    return items, suspects


def copy(error: RemoteError) -> RemoteError:
    """The same, for somebody else: an exception that is raised twice collects tracebacks."""
    return remote_error(error.reply_code, error.reply_text)


def marked(message: Message) -> Message:
    """The message as a possible duplicate; as it is where the reserved header, which would say so, is left out."""
    if message.left_out is not None:
        return message
    try:
        return message.altered(annotate(message.properties, **MARK))
    except FrameSyntaxError:  # its properties are octets that only pass through
        return message


def whole_exchange(error: RemoteError) -> bool:
    """Whether any message to the exchange is refused so, and not only the one at hand."""
    if error.reply_code == _NOT_FOUND:
        return True
    return error.reply_code == _ACCESS_REFUSED and _WHOLE_EXCHANGE.search(error.reply_text) is not None


def error_of(error: RemoteError) -> GatewayError:
    """Text for the caller of a publish that was alone on its channel when the broker closed that."""
    if error.reply_code == _INTERNAL_ERROR:  # it does not know itself what it did
        return OutcomeUnknown(f"the broker failed over the message: {error}")
    if error.reply_text.endswith(_PARTIAL):
        return PublishRefused(f"the broker refused the message: {error}")
    return error


def size_limit(error: RemoteError) -> int | None:
    """The largest body that this broker takes, where it says so."""
    found = _SIZE.search(error.reply_text)
    return int(found[1]) if found else None


class Refusals:
    """Refusals of the broker for every message, kept for some seconds each."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], tuple[float, RemoteError]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, exchange: str, routing_key: str, error: RemoteError, until: float) -> None:
        """The broker refused a publish; whether that says anything of others, ``error`` tells."""
        if error.reply_code not in (_ACCESS_REFUSED, _NOT_FOUND):
            return
        if len(self._known) >= REFUSALS_MAX:
            del self._known[next(iter(self._known))]
        self._known[exchange, None if whole_exchange(error) else routing_key] = until, error

    def find(self, exchange: str, routing_key: str, now: float) -> RemoteError | None:
        """What a publish would be answered with."""
        for name in ((exchange, None), (exchange, routing_key)):
            found = self._known.get(name)
            if found is not None:
                if found[0] > now:
                    return copy(found[1])
                del self._known[name]
        return None

    def forget(self, exchange: str) -> None:
        """The exchange was declared or deleted: ask again."""
        for name in [name for name in self._known if name[0] == exchange]:
            del self._known[name]
