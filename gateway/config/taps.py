"""Settings of taps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.config.base import Settings, too_long
from gateway.config.ledger import RetentionSettings


class TapSettings(Settings, frozen=True):
    """``[taps.NAME]``, and the body of ``PUT /v1/taps/{name}``: a queue whose messages go into the message log."""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"routing_key": "binding_key"}
    EXCHANGES: ClassVar[tuple[str, ...]] = ("dead_letter_exchange",)

    broker: str
    """A broker's name."""
    queue: str = ""
    """The queue that is consumed. With ``exchange``: the name of the own queue; empty: ``gateway.tap.NAME``."""
    exchange: str = ""
    """An exchange: the tap declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    routing_key: str | UnsetType = UNSET
    """Another name of ``binding_key``, which is what it is shown as."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most messages taken from the queue that are not in the log yet."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of their bodies."""
    until: Literal["never", "depth"] = "never"
    """``depth``: the tap ends when it has taken the number of messages that the queue held when it began, and leaves
    the rest there."""
    log_octets: Annotated[int, Meta(ge=0)] = 0
    """Most octets of the message log that no reader has passed yet. Beyond that this tap takes nothing more. Less than
    ``retention.log_octets``, beyond which they would go unread; 0: half of that."""
    dedupe_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 3_600
    """How long a message with an id is remembered, so that its redelivery is dropped; 0: not."""
    dead_letter_broker: str = ""
    """Broker of the dead-letter place; empty: the tap's own."""
    dead_letter_exchange: str = ""
    """Where messages go that the ledger cannot hold; empty: the default exchange."""
    dead_letter_routing_key: str = ""
    """Routing key there; empty with the default exchange: the queue ``gateway.dead.tap.NAME``, which the tap declares
    when it needs it."""
    paused: bool = False
    """It takes nothing until it is resumed."""


def check_tap(tap: TapSettings, retention: RetentionSettings) -> str | None:
    """What is wrong with a tap's settings, taken together and with how long its messages are kept; None: nothing."""
    if not tap.queue and not tap.exchange:
        return "queue: neither queue nor exchange is given"
    if not tap.exchange and (tap.binding_key or tap.arguments):
        return "exchange: binding_key and arguments belong to an exchange"
    to_itself = tap.dead_letter_broker in ("", tap.broker) and not tap.dead_letter_exchange
    if tap.log_octets >= (most := retention.log_octets):
        return f"log_octets: {tap.log_octets} is not less than retention.log_octets = {most}: messages would go unread"
    if tap.queue and to_itself and tap.dead_letter_routing_key == tap.queue:
        return f"dead_letter_routing_key: {tap.queue!r} is its own queue: what is dead-lettered there would come again"
    return too_long(
        queue=tap.queue,
        exchange=tap.exchange,
        binding_key=tap.binding_key,
        dead_letter_exchange=tap.dead_letter_exchange,
        dead_letter_routing_key=tap.dead_letter_routing_key,
    )
