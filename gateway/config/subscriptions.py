"""Settings of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType

from gateway.config.base import Settings, too_long


class SubscriptionFilter(Settings, frozen=True):
    """``filter`` of a subscription: which messages it wants. All that is given must hold."""

    selector: str = ""
    """A JMS message selector over headers and properties."""
    routing_key: str = ""
    """A pattern for the routing key, as topic exchanges have it: words between dots, ``*`` for one, ``#`` for any
    number."""


class SubscriptionSettings(Settings, frozen=True):
    """``[subscriptions.NAME]``, and the body of ``PUT /v1/subscriptions/{name}``."""

    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"routing_key": "binding_key"}
    EXCHANGES: ClassVar[tuple[str, ...]] = ("dead_letter_exchange",)

    broker: str
    """A broker's name."""
    queue: str = ""
    """A queue of that broker. With ``exchange``: the name of the own queue; empty: ``gateway.subscription.NAME``."""
    exchange: str = ""
    """An exchange: the subscription declares a durable queue of its own and binds it there."""
    binding_key: str = ""
    """Routing key of that binding."""
    routing_key: str | UnsetType = UNSET
    """Another name of ``binding_key``, which is what it is shown as."""
    arguments: dict[str, str | int | bool] = {}
    """Arguments of that binding (a headers exchange)."""
    lease: Literal["broker", "ledger"] = "broker"
    """Who holds a message that is out: the broker, unacknowledged; or the ledger, which stores it first."""
    push: str = ""
    """Name of the endpoint that messages are pushed to; empty: consumers pull."""
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] = 200
    """Most messages taken from the queue of which the first attempt is not over (push), or that nobody has pulled yet
    (``order_key``)."""
    prefetch_octets: Annotated[int, Meta(ge=1 << 16)] = 64 << 20
    """Most octets of their bodies."""
    backlog_max: Annotated[int, Meta(ge=1)] = 100_000
    """Most messages that the ledger holds for it: those that are out, wait for a retry or are dead. Then nothing more
    is taken from the queue."""
    ack_deadline_seconds: Annotated[int, Meta(ge=10, le=600)] = 30
    """How long a message is leased unless the pull asks otherwise, in seconds."""
    max_deliveries: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Most times that a message is handed to a consumer that pulls; then it is dead. 0: no limit. Needs ``lease =
    "ledger"``."""
    dead_letter_native: bool = False
    """States that the queue itself dead-letters what is rejected, by a policy or by arguments that the gateway does not
    know. Without this statement the gateway rejects at the broker only where it knows the queue's dead-letter
    arguments: elsewhere a rejected message could be dropped."""
    dead_letter_broker: str = ""
    """Broker of the dead-letter place; empty: the subscription's own."""
    dead_letter_exchange: str = ""
    """Where rejected messages go if the broker does not dead-letter natively, or cannot say whether the queue does,
    and where dead ones of the ledger go. With an empty routing key too: rejected ones are only dead-lettered natively,
    dead ones of the ledger stay there."""
    dead_letter_routing_key: str = ""
    """Routing key at the dead-letter exchange; empty with a default exchange: none."""
    filter: SubscriptionFilter = SubscriptionFilter()
    """Which messages the subscription wants."""
    unmatched: Literal["", "dead-letter", "discard"] = ""
    """What becomes of messages that the filter does not want. Empty: ``discard`` where the queue is the subscription's
    own, else ``dead-letter``."""
    order_key: str = ""
    """``routing_key``, ``property:NAME`` or ``header:NAME``: messages with the same value are handed out one at a time
    and in order; one without it stands for itself. Needs ``lease = "ledger"``."""
    paused: bool = False
    """It takes and hands out nothing until it is resumed."""


def check_subscription(subscription: SubscriptionSettings) -> str | None:
    """What is wrong with a subscription's settings taken together; None: nothing."""
    if not subscription.queue and not subscription.exchange:
        return "queue: neither queue nor exchange is given"
    if not subscription.exchange and (subscription.binding_key or subscription.arguments):
        return "exchange: binding_key and arguments belong to an exchange"
    kind, _, name = subscription.order_key.partition(":")
    if subscription.order_key and (
        kind not in ("routing_key", "property", "header") or (kind == "routing_key") == bool(name)
    ):
        return f"order_key: it is {subscription.order_key!r}, not routing_key, property:NAME or header:NAME"
    if subscription.lease == "broker":
        for setting in ("order_key", "max_deliveries"):
            if getattr(subscription, setting):
                return f'{setting}: it needs lease = "ledger"'
        filtered = subscription.filter != SubscriptionFilter() and not subscription.push
        dead = subscription.unmatched == "dead-letter" or not (subscription.unmatched or subscription.exchange)
        if filtered and dead and not (subscription.dead_letter_exchange or subscription.dead_letter_routing_key):
            return (
                "unmatched: what the filter does not want needs a dead-letter place (dead_letter_exchange, "
                'dead_letter_routing_key), unmatched = "discard" or lease = "ledger"'
            )
    queue = subscription.queue
    dead_letters_to_itself = (
        subscription.dead_letter_broker in ("", subscription.broker)
        and not subscription.dead_letter_exchange
        and subscription.dead_letter_routing_key == queue
    )
    if queue and dead_letters_to_itself:
        return f"dead_letter_routing_key: {queue!r} is its own queue: what is dead-lettered there would come again"
    return too_long(
        queue=queue,
        exchange=subscription.exchange,
        binding_key=subscription.binding_key,
        dead_letter_exchange=subscription.dead_letter_exchange,
        dead_letter_routing_key=subscription.dead_letter_routing_key,
    )
