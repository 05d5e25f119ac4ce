"""What a replay is asked to do: where messages come from, where they go, how fast.

These structs are the body of ``POST /v1/replays``, and are kept with the job as they came.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gateway.errors import EncodeError
from gateway.fidelity.deaths import CODES
from gateway.ledger import MessageState
from gateway.validation import Moment

DEFAULT_EXCHANGE: Final = "amq.default"
"""How the exchange without a name is written."""
IDS_MAX: Final = 1_000
"""Most ids that a source may list."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Ids = Annotated[tuple[str, ...], Meta(min_length=1, max_length=IDS_MAX)]
"""A list that is there and empty is refused: it would mean all."""
JobId = Annotated[str, Meta(max_length=128, pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$(?!\n)")]
"""An id of a replay, or none. It goes into the ``Location`` of an answer; ``$`` alone matches before the end of a line,
too."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of what is asked for."""


class MessagesSource(Request, frozen=True):
    """Messages that the ledger knows and whose bodies it keeps. All that is given must hold; what is newer than the
    replay is left alone."""

    broker: str = ""
    """Only messages of this broker; empty: of all."""
    exchange: str | None = None
    """Only messages of this exchange; ``amq.default`` is the default exchange."""
    routing_key: str | None = None
    """Only messages with this routing key."""
    state: str = ""
    """Only messages in this state; empty: in any."""
    client: str | None = None
    """Only messages that this API key published, by its name."""
    since: Moment | None = None
    """Only messages that the gateway first saw then or later."""
    until: Moment | None = None
    """Only messages that the gateway first saw before this time."""
    ids: Ids | None = None
    """These messages, and no other filter."""


class DeliveriesSource(Request, frozen=True):
    """Dead messages of subscriptions, which the ledger keeps. All that is given must hold. What is sent somewhere else
    is not dead any more: it is gone from the subscription."""

    subscription: str = ""
    """Only deliveries of this subscription; empty: of all."""
    endpoint: str = ""
    """Only deliveries of subscriptions that are pushed to this endpoint; empty: of all."""
    code: str = ""
    """Only deliveries that died with this code; empty: with any."""
    since: Moment | None = None
    """Only deliveries that arrived then or later."""
    until: Moment | None = None
    """Only deliveries that arrived before this time."""
    ids: Ids | None = None
    """These deliveries, dead or not, and no other filter. Of one that is not dead a copy is sent."""


class QueueSource(Request, frozen=True):
    """A queue of a broker, a dead-letter queue most likely: what was in it when the replay began."""

    broker: str
    """Name of the broker."""
    queue: Annotated[str, Meta(min_length=1, max_length=255)]
    """Name of the queue."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """Most messages that are taken."""


class ReplaySource(Request, frozen=True):
    """Where the messages come from: exactly one of these."""

    messages: MessagesSource | None = None
    """Messages whose bodies the ledger keeps."""
    deliveries: DeliveriesSource | None = None
    """Dead messages of subscriptions."""
    queue: QueueSource | None = None
    """A queue of a broker."""

    @property
    def kind(self) -> str:
        """The name of the one that is given."""
        return next(name for name in self.__struct_fields__ if getattr(self, name) is not None)


class ReplayTarget(Request, frozen=True):
    """Where they go. Nothing given: to the place that each came from. Broker, exchange and routing key stand for the
    ones it had; or they go to an endpoint, or to a URL."""

    broker: str = ""
    """Name of the broker; empty: the one that each message came from."""
    exchange: Annotated[str, Meta(max_length=255)] | None = None
    """The exchange; ``amq.default`` is the default exchange. Unless given: the one that each message had."""
    routing_key: Annotated[str, Meta(max_length=255)] | None = None
    """The routing key; unless given, the one that each message had."""
    endpoint: str = ""
    """Name of an endpoint to send the messages to."""
    url: Annotated[str, Meta(max_length=2048)] = ""
    """A URL to send the messages to, as to an endpoint without settings. These requests are not signed: name an
    endpoint to have them signed."""
    purge: bool = False
    """Delete the dead deliveries, and send nothing. Only for the source ``deliveries``."""

    @property
    def same_place(self) -> bool:
        """Each goes to where it came from."""
        return self == ReplayTarget()

    @property
    def over_http(self) -> bool:
        """They go to an endpoint or URL."""
        return bool(self.endpoint or self.url)


class ReplayRequest(Request, frozen=True, kw_only=True):
    """A replay."""

    id: JobId = ""
    """Id of the replay. Asking again with the same id sends nothing twice. Unless given, one is made."""
    source: ReplaySource
    """Where the messages come from."""
    target: ReplayTarget = ReplayTarget()
    """Where the messages go. Unless given: to the place that each came from."""
    rate: Annotated[float, Meta(ge=0)] = 0.0
    """Most messages a second; 0: no limit."""
    dry_run: bool = False
    """Only say what would be sent, how many messages and ten of them, and what cannot be, by reason."""


def check(request: ReplayRequest) -> None:
    """What the types cannot tell.

    Raises:
        EncodeError: a setting is wrong; the sentence begins with its dotted name.
    """
    source, target = request.source, request.target
    given = [name for name in source.__struct_fields__ if getattr(source, name) is not None]
    if len(given) != 1:
        raise EncodeError(f"source: exactly one of messages, deliveries and queue must be given, not {len(given)}")
    if source.messages is not None and source.messages.state and source.messages.state not in set(MessageState):
        raise EncodeError(f"source.messages.state: {source.messages.state!r:.40} is no state of a message")
    for name in ("messages", "deliveries"):
        part = getattr(source, name)
        if part is not None and part.ids and part != type(part)(ids=part.ids):
            raise EncodeError(f"source.{name}.ids: no other filter goes with it")
    if source.deliveries is not None:
        check_code(source.deliveries.code, "source.deliveries.code")
    if target.purge and (source.deliveries is None or target != ReplayTarget(purge=True)):
        raise EncodeError("target.purge: it takes the source deliveries, and no other target")
    if target.endpoint and target.url:
        raise EncodeError("target.url: an endpoint is given too")
    if "?" in target.url:
        raise EncodeError("target.url: it has a query, and is kept as it is: make it an endpoint, whose URL is sealed")
    if target.over_http and (target.broker or target.exchange is not None or target.routing_key is not None):
        raise EncodeError("target: broker, exchange and routing_key do not go with an endpoint or URL")
    if source.queue is not None and is_own_queue(source.queue, target):
        raise EncodeError(f"target: it leads back into the queue {source.queue.queue!r}")


def check_code(code: str, setting: str) -> None:
    """Whether it is the code of a dead letter, or empty. Raises EncodeError, which begins with ``setting``."""
    if code and code not in CODES:
        raise EncodeError(f"{setting}: {code!r:.40} is no code of a dead letter; expected one of {', '.join(CODES)}")


def is_own_queue(source: QueueSource, target: ReplayTarget) -> bool:
    """Whether what is taken from the queue would be put into it again."""
    return (
        not target.over_http
        and target.broker in ("", source.broker)
        and target.exchange is not None
        and exchange_name(target.exchange) == ""
        and target.routing_key == source.queue
    )


def exchange_name(given: str) -> str:
    """The exchange that is meant."""
    return "" if given == DEFAULT_EXCHANGE else given


def microseconds(time: datetime | None) -> int | None:
    """Since 1970."""
    return None if time is None else (time - _EPOCH) // _MICROSECOND
