"""Settings of bridges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.config.base import Settings, too_long


class BridgeSource(Settings, frozen=True):
    """``source`` of a bridge: a queue, or an exchange and a binding key with a queue of the bridge's own."""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"routing_key": "binding_key"}

    broker: str
    """A broker's name."""
    queue: str = ""
    """The queue that is consumed. With ``exchange``: the name of the own queue; empty: ``gateway.bridge.NAME``."""
    exchange: str = ""
    """An exchange: the bridge declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    routing_key: str | UnsetType = UNSET
    """Another name of ``binding_key``, which is what it is shown as."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""


class BridgeTarget(Settings, frozen=True):
    """``target`` of a bridge."""

    EXCHANGES: ClassVar[tuple[str, ...]] = ("exchange",)

    broker: str
    """A broker's name."""
    exchange: str = ""
    """An exchange there; empty: the default exchange."""
    routing_key: str | None = None
    """Routing key of what is published. None: kept as it came. ``{routing_key}``, ``{exchange}``, ``{queue}`` and
    ``{header:NAME}`` are replaced; ``{{`` and ``}}`` are braces."""


class BridgePlace(Settings, frozen=True):
    """``dead_letter`` of a bridge: where poison goes."""

    EXCHANGES: ClassVar[tuple[str, ...]] = ("exchange",)

    broker: str = ""
    """A broker's name; empty: the source's."""
    exchange: str = ""
    """An exchange there; empty: the default exchange."""
    routing_key: str = ""
    """Routing key; empty with the default exchange: the queue ``gateway.dead.NAME``, which the bridge declares."""


class BridgeSettings(Settings, frozen=True):
    """``[bridges.NAME]``, and the body of ``PUT /v1/bridges/{name}``."""

    source: BridgeSource
    """Where messages come from."""
    target: BridgeTarget
    """Where they go."""
    mode: Literal["move", "mirror"] = "move"
    """``move`` takes messages from the source; ``mirror`` leaves them there and copies them."""
    acknowledge: Literal["on-confirm", "dtx", "unsafe-on-publish", "unsafe-no-ack"] = "on-confirm"
    """When a message is acknowledged to the source: when the target has confirmed it, or (``dtx``, to a target
    of version 0-10) has committed it in a distributed transaction, so that a crash leaves no second copy of a message
    with an id. With the other two messages are lost when something breaks."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 1_000
    """Most messages between source and target at a time."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of bodies between source and target at a time."""
    dead_letter: BridgePlace = BridgePlace()
    """Where messages go that cannot be forwarded."""
    on_loss: Literal["strict", "warn", "drop"] = "warn"
    """What becomes of a message that the target's version cannot carry whole: ``strict`` dead-letters it; ``warn``
    forwards it, records each loss and logs; ``drop`` forwards it and records each loss."""
    selector: str = ""
    """A JMS message selector over headers and properties; messages that do not match are not forwarded."""
    unmatched: Literal["", "dead-letter", "discard"] = ""
    """What becomes of those. Empty: ``discard`` where the queue is the bridge's own or keeps its messages (``mirror``),
    else ``dead-letter``."""
    set_headers: dict[str, str | int | float | bool] = {}
    """Headers that each message gets, in place of those of the same name."""
    remove_headers: tuple[str, ...] = ()
    """Headers that are taken out."""
    release_headers: tuple[str, ...] = ()
    """Headers that brokers act upon (``x-death``, ``CC``, ...) and that are passed on as they are all the same."""
    strip: bool = False
    """The last hop: the reserved header is taken off, and with it all that has no other home."""
    messages_per_second: Annotated[float, Meta(ge=0)] = 0.0
    """Most messages forwarded a second; 0: no limit."""
    octets_per_second: Annotated[float, Meta(ge=0)] = 0.0
    """Most octets of bodies forwarded a second; 0: no limit."""
    hops_max: Annotated[int, Meta(ge=1, le=100)] = 8
    """Most bridges that a message may have passed. One that has passed this bridge before is not forwarded again."""
    dedupe_seconds: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 3_600
    """How long a forwarded message with an id is remembered, so that its redelivery is dropped; 0: not."""
    delete_after: Literal["never", "queue-length"] | Annotated[int, Meta(ge=1)] = "never"
    """When the bridge ends automatically: after the number of messages that the source queue held at the start,
    or after this number."""
    paused: bool = False
    """It does not run until it is resumed."""


def check_bridge(bridge: BridgeSettings) -> str | None:
    """What is wrong with a bridge's settings taken together; None: nothing."""
    source = bridge.source
    if not source.queue and not source.exchange:
        return "source: neither queue nor exchange is given"
    if not source.exchange and (source.binding_key or source.arguments):
        return "source: binding_key and arguments belong to an exchange"
    place = bridge.dead_letter
    if source.queue and (place.broker or source.broker, place.exchange, place.routing_key) == (
        source.broker, "", source.queue,
    ):  # fmt: skip
        return f"dead_letter: {source.queue!r} is the source's own queue: what is dead-lettered there would come again"
    if bridge.acknowledge == "dtx" and not bridge.dedupe_seconds:
        return "acknowledge: 'dtx' needs dedupe_seconds > 0, by which a redelivery is known"
    if bridge.mode == "mirror" and bridge.acknowledge not in ("on-confirm", "dtx"):
        return f"acknowledge: it is {bridge.acknowledge!r}, and a mirror takes nothing from its source"
    key = bridge.target.routing_key or ""
    return too_long(
        source__queue=source.queue,
        source__exchange=source.exchange,
        source__binding_key=source.binding_key,
        target__exchange=bridge.target.exchange,
        target__routing_key="" if "{" in key else key,  # how long a template becomes is up to the message
        dead_letter__exchange=place.exchange,
        dead_letter__routing_key=place.routing_key,
    )
