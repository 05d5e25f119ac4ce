"""The core: accept, route, lease, settle.

:class:`~gateway.core.gateway.Gateway` is what the HTTP API (and later bridges and push) work with. Its parts::

    gateway.py         the object graph of a running gateway: brokers, ledger, publisher, subscriptions
    publishing.py      messages to brokers, and what became of them, in the ledger
    keys.py            Idempotency-Key: one publish, one answer
    keyed_messages.py  ... a key for each message
    endings.py         ... how keys end
    in_doubt.py        what dead processes left open
    subscriptions.py   named queues for consumers: their settings, and whether they are paused
    own_queues.py      queues that belong to a subscription
    filters.py         which messages a subscription wants
    order_keys.py      what orders them
    consuming.py       pull and settle
    broker_leases.py   ... where the broker holds what is out
    leases.py          who holds which delivery until when
    ledger_pulls.py    ... where the ledger holds it: handed out
    ledger_settling.py ... and settled
    backlogs.py        whether anything may be due in the ledger
    arrivals.py        what a broker delivers, read once
    deduplicator.py    whether a delivery was seen before
    intake.py          from a queue into the ledger; intakes.py: for those who pull in order
    stored.py          a message as the ledger keeps it
    dead_letters.py    copies at dead-letter places
    streams.py         a stream of pulled messages
    pulled.py, parts.py, fetching.py    what these share
    ack_ids.py         the token that names a lease
    recorder.py        events that nobody waits for
    topology.py        queues, exchanges and bindings, and which of them we know
    envelopes.py       a message as octets, for intents
"""

from gateway.core.gateway import Gateway
from gateway.core.keys import KeyedAnswer, KeyedRequest
from gateway.core.publishing import Publication, PublishOutcome
from gateway.core.pulled import AckOutcome, Pulled
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
