"""What becomes of one message: rules without I/O.

A :class:`BridgeRoute` is a bridge's settings, compiled. :meth:`BridgeRoute.look` reads what the message brings along
(its reserved header, its message id), asks loop check and selector, and fills in the routing key;
:meth:`BridgeRoute.message` makes the message as it is sent on.

The *origin id* identifies a message: the reserved header's ``origin``; else the reserved header's
``id``; else the publisher's message id, behind the name of the source broker; else it has none.

A bridge knows that a message has passed it by a token in the reserved header's ``via``: its name and the id of its
gateway, since two gateways may well have bridges of one name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from gateway.amqp.message import Message
from gateway.amqp.selectors import Selector, SelectorError
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.templates import Template
from gateway.config import BridgeSettings, check_bridge
from gateway.errors import EncodeError, FrameSyntaxError
from gateway.fidelity import HELD, HELD_PREFIX, RESERVED, forward, is_bare, is_held, raw_annotations, strip

KEY_MAX: Final = 512
"""Longest origin id, in characters; a longer one in a reserved header is not the gateway's."""
VIA_MAX: Final = 4_096
"""Longest list of bridges passed, in characters; a longer one is not the gateway's."""
HOPS_DIGITS: Final = 4


class RouteOutcome(Enum):
    """What becomes of a message."""

    FORWARD = "forward"
    FILTERED = "filtered"
    """The selector does not want it."""
    LOOPED = "looped"
    """It has passed this bridge before, or too many bridges."""
    POISON = "poison"
    """It cannot be forwarded."""


class BridgeRoute:
    """A bridge's settings, ready for use.

    Raises:
        EncodeError: a setting is wrong; it names the setting.
    """

    def __init__(
        self, name: str, settings: BridgeSettings, token: str, own_id: Callable[[str | None], bytes | None]
    ) -> None:
        """``token`` is this bridge in ``via``; ``own_id`` reads an id of a gateway's."""
        if (wrong := check_bridge(settings)) is not None:
            raise EncodeError(wrong)
        self.name = name
        self.settings = settings
        self.token = token
        self.own_queue = bool(settings.source.exchange)
        """The source's queue is the bridge's own."""
        self.queue = settings.source.queue or f"gateway.bridge.{name}"
        """The source's queue."""
        stays = self.own_queue or settings.mode == "mirror"
        self.discards_unmatched = settings.unmatched == "discard" or (not settings.unmatched and stays)
        self._own_id = own_id
        self._prefix = f"{settings.source.broker}/"
        self._selector = _selector(settings.selector)
        self._template: Template | None = None
        self._constant: str | None = None
        if settings.target.routing_key is not None:
            self._template = _template(settings.target.routing_key)
            self._constant = self._template.constant
        self._release = frozenset(settings.release_headers)
        _check_headers(settings)
        self._set_headers = settings.set_headers or None
        self._remove_headers = settings.remove_headers
        self._leaves_headers = not settings.set_headers and not settings.remove_headers
        self._strip = settings.strip
        self._hops_max = settings.hops_max

    def look(self, item: BridgeDelivery) -> RouteOutcome:
        """Read what the message brings along, and decide. Fills in the item."""
        delivery = item.delivery
        message = delivery.message
        try:
            notes = raw_annotations(message)
        except FrameSyntaxError:
            notes = {}  # octets that are no property list pass through as they are, where they can
        if notes:
            self._read(item, notes)
            if item.hops >= self._hops_max:
                item.reason = f"it has passed {item.hops} bridges, and hops_max is {self._hops_max}"
                item.code = "looped"
                return RouteOutcome.LOOPED
            if self.token in item.via and self.token in item.via.split(","):
                item.reason = f"it has passed {self.token} before"
                item.code = "looped"
                return RouteOutcome.LOOPED
        try:
            if not item.key:
                message_id = message.properties.message_id
                if message_id:
                    item.key = _printable(self._prefix + message_id)
                    item.new = True
            if self._selector is not None and not self._selector.matches(message.properties):
                item.reason = "the selector does not match"
                item.code = "filtered"
                return RouteOutcome.FILTERED
        except FrameSyntaxError as error:
            if self._selector is not None:
                item.reason = f"its properties cannot be read for the selector: {error}"
                return RouteOutcome.POISON
        if self._template is not None:
            if self._constant is not None:
                item.routing_key = self._constant
            else:
                try:
                    item.routing_key = self._template.fill(delivery)
                except EncodeError as error:
                    item.reason = str(error)
                    return RouteOutcome.POISON
        return RouteOutcome.FORWARD

    def message(self, item: BridgeDelivery, annotated: bool) -> Message:
        """The message as it is sent on. ``annotated``: the target's messages get the reserved header; where they do
        not, it is stripped.

        Raises:
            GatewayError: it cannot be made.
        """
        message = item.delivery.message
        strips = self._strip or not annotated
        if strips and self._leaves_headers and is_bare(message):
            return strip(message)
        message = forward(
            message,
            self.entries(item),
            release=self._release,
            set_headers=self._set_headers,
            remove_headers=self._remove_headers,
        )
        return strip(message) if strips else message

    def entries(self, item: BridgeDelivery) -> dict[str, str]:
        """What the bridge writes into the reserved header."""
        entries = {
            "id": item.text,
            "hops": str(item.hops + 1),
            "via": f"{item.via},{self.token}" if item.via else self.token,
        }
        if item.new:
            entries["origin"] = item.key
        if item.resent:
            entries["resent"] = "1"
        return entries

    def _read(self, item: BridgeDelivery, notes: Mapping[str, str]) -> None:
        """Take over what the reserved header says, as far as a gateway can have written it."""
        text = notes.get("id")
        item.id = self._own_id(text)
        if item.id is not None and text is not None:
            item.text = item.key = text
        origin = notes.get("origin")
        if origin and len(origin) <= KEY_MAX:
            item.key = _printable(origin)
        hops = notes.get("hops", "")
        if hops.isascii() and hops.isdigit() and len(hops) <= HOPS_DIGITS:
            item.hops = int(hops)
        via = notes.get("via", "")
        if len(via) <= VIA_MAX:
            item.via = via
        item.resent = notes.get("resent") == "1"


def _printable(text: str) -> str:
    """``text`` without lone surrogates and NUL, which not every database takes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _selector(text: str) -> Selector | None:
    try:
        return Selector(text) if text else None
    except SelectorError as error:
        raise EncodeError(f"selector: {text!r:.200}: {error}") from None


def _template(text: str) -> Template:
    try:
        return Template(text)
    except EncodeError as error:
        raise EncodeError(f"target.routing_key: {error}") from None


def _check_headers(settings: BridgeSettings) -> None:
    for setting, names in (("set_headers", settings.set_headers), ("remove_headers", settings.remove_headers)):
        for name in names:
            if name == RESERVED:
                raise EncodeError(f"{setting}: {RESERVED} belongs to the gateway; strip takes it off")
            if not 1 <= len(name.encode()) <= 255:
                raise EncodeError(f"{setting}: {name!r:.80} is no header's name of 1 to 255 octets")
    for name in settings.release_headers:
        if not is_held(name):
            held = ", ".join([*sorted(HELD), f"{HELD_PREFIX}*"])
            raise EncodeError(f"release_headers: {name!r:.80} is passed on in any case; only {held} are held")
