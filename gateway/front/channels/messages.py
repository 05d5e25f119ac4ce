"""What a front looks at in messages: who published them, headers that would cost a connection, marks of repetition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gateway.amqp.message import Message, RawProperties
from gateway.classic.properties import USER_ID
from gateway.errors import FrameSyntaxError
from gateway.fidelity import annotate
from gateway.fidelity.forwarding import COPIES
from gateway.fidelity.reserved import RESERVED_OCTETS, passes_as_it_is, raw_annotations
from gateway.front.channels.refusals import refused

_may_be_endless: Final = re.compile(rb"d[\x7f\xff][\xf0-\xff]|f[\x7f\xff][\x80-\xff]").search
"""A floating-point header that is no finite number: RabbitMQ closes the whole connection over one (541). Octets that
only look like one cost a decoding."""
_may_copy: Final = re.compile(rb"\x02CC|\x03BCC").search


LOCAL: Final = "local"
"""Entry of the reserved header that says which connection of a front has published a message."""


def checked(message: Message, user: str, is_classic: bool) -> Message:
    """The message as it may go on a connection that others use.

    Raises:
        RemoteError: its user-id is not the client's, or its properties cannot be read.
    """
    raw = message.raw
    try:
        if raw is None or not is_classic or raw.octets[1] & USER_ID:
            _check_user(message.properties.user_id, user)
        if raw is None or RESERVED_OCTETS in raw.octets:
            _check_user(raw_annotations(message).get("user_id"), user)  # readers would take it for the publisher's
        if raw is not None and _may_be_endless(raw.octets):
            return message.altered(message.properties)  # encoded again, it is carried where the upstream takes it
    except FrameSyntaxError as error:
        raise refused(502, str(error)) from None
    return message


def _check_user(claimed: str | bytes | None, user: str) -> None:
    if claimed is not None and claimed not in (user, user.encode("utf-8", "surrogateescape")):
        name = claimed.decode("utf-8", "replace") if isinstance(claimed, bytes) else claimed
        raise refused(406, f"user_id property set to '{name}' but authenticated user was '{user}'")


def copies(message: Message) -> Iterator[str]:
    """The further routing keys that the headers CC and BCC name."""
    raw = message.raw
    if raw is not None and not _may_copy(raw.octets):
        return
    headers = message.properties.headers or {}
    for name in COPIES:
        keys = headers.get(name)
        if isinstance(keys, list):
            yield from (key for key in keys if isinstance(key, str))


def restored(message: Message) -> Message:
    """The message as its publisher meant it, where the gateway carries a part of it in its reserved header."""
    raw = message.raw
    if raw is None or passes_as_it_is(raw.octets):
        return message
    return message.altered(message.properties)


def marked(message: Message) -> Message:
    """The message, marked as one that may be there twice."""
    return noted(message, resent="1")


def noted(message: Message, **entries: str) -> Message:
    """The message with entries in the reserved header."""
    raw = message.raw
    if raw is not None and raw.seam is not None:
        octets = raw.seam.splice(raw.octets, entries)
        if octets is not None:
            return Message(message.body, None, RawProperties(octets, raw.dialect, raw.decode, raw.seam))
    return message.altered(annotate(message.properties, **entries))
