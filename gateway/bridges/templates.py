"""Routing-key templates: text with names in braces that each message fills in.

::

    orders.{routing_key}        the routing key with which it came
    {exchange}  {queue}         the exchange it was published to, the queue it was taken from
    {header:region}             a header: text, a whole number, true or false
    {{  }}                      a brace
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.amqp.message import Message
from gateway.amqp.values import Typed
from gateway.errors import EncodeError, FrameSyntaxError

_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")


class TemplateSource(Protocol):
    """What a template may speak of."""

    @property
    def exchange(self) -> str: ...

    @property
    def routing_key(self) -> str: ...

    @property
    def queue(self) -> str: ...

    @property
    def message(self) -> Message: ...


Part = Callable[[Any], str]

_NAMES: Final[dict[str, Part]] = {
    "routing_key": lambda source: str(source.routing_key),
    "exchange": lambda source: str(source.exchange),
    "queue": lambda source: str(source.queue),
}


class Template:
    """A compiled template.

    Raises:
        EncodeError: the text is malformed; it says where.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts: list[str | Part] = []
        at = 0
        for found in _PART.finditer(text):
            self._parts.append(text[at : found.start()])
            at = found.end()
            if found[2] is not None:
                raise EncodeError(
                    f"template {text!r}: the {found[2]!r} at {found.start()} stands alone; write it twice"
                )
            self._parts.append(found[0][0] if found[1] is None else _part(text, found[1]))
        self._parts.append(text[at:])
        self.constant = None if any(callable(part) for part in self._parts) else "".join(map(str, self._parts))
        """What it always gives; None: that depends on the message."""

    def fill(self, source: TemplateSource) -> str:
        """The routing key of a message.

        Raises:
            EncodeError: the message has no such header, or one that is no text.
        """
        return "".join([part if isinstance(part, str) else part(source) for part in self._parts])


def _part(text: str, name: str) -> Part:
    part = _NAMES.get(name)
    if part is not None:
        return part
    kind, colon, header = name.partition(":")
    if kind == "header" and colon and header:
        return lambda source: _header(source.message, header)
    known = ", ".join([*_NAMES, "header:NAME"])
    raise EncodeError(f"template {text!r}: there is no {{{name}}}, only {known}")


def _header(message: Message, name: str) -> str:
    try:
        headers = message.properties.headers
    except FrameSyntaxError as error:
        raise EncodeError(f"routing key: the header {name!r} cannot be read: {error}") from None
    value = headers.get(name) if headers else None
    if isinstance(value, Typed):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    if value is None:
        raise EncodeError(f"routing key: the message has no header {name!r}")
    raise EncodeError(f"routing key: the header {name!r} is neither text nor a whole number")
