"""The core: accept, route, lease, settle.

:class:`~gateway.core.gateway.Gateway` is what the HTTP API, bridges and push work with: the object graph of a running
gateway. Its parts::

    gateway.py         brokers, ledger, publisher, subscriptions
    subscriptions.py   named queues for consumers: their settings, and whether they are paused
    topology.py        queues, exchanges and bindings, and which of them were made through the gateway
    traces.py          what spans say of a broker
    rates.py           how many a second
    broker_change.py   other brokers in the places of those that there are
    broker_documents.py  brokers as the ledger keeps them, and their secrets
    retired.py         brokers that others have taken the place of
    sources/           messages from a queue: read once, filtered, kept; dead letters
    publishing/        messages to brokers: now, later, under a key
    leasing/           pull and settle: leases that a broker or the ledger holds, streams
    work/              background work, and which process does it
"""

from gateway.core.gateway import Gateway
from gateway.core.leasing.pulled import AckOutcome, Pulled
from gateway.core.publishing.keys import KeyedAnswer, KeyedRequest
from gateway.core.publishing.publisher import Publication, PublishOutcome
from gateway.core.subscriptions import SubscriptionResource

__all__ = [
    "AckOutcome",
    "Gateway",
    "KeyedAnswer",
    "KeyedRequest",
    "Publication",
    "PublishOutcome",
    "Pulled",
    "SubscriptionResource",
]
