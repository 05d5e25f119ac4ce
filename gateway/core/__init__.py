"""The core: accept, route, lease, settle.

:class:`~gateway.core.gateway.Gateway` is what the HTTP API (and later bridges and push) work with. Its parts::

    gateway.py         the object graph of a running gateway: brokers, ledger, publisher, subscriptions
    publishing.py      messages to brokers, and what became of them, in the ledger
    keys.py            Idempotency-Key: one publish, one answer
    subscriptions.py   named queues for consumers: their settings
    consuming.py       pull and settle
    leases.py          who holds which delivery until when
    ack_ids.py         the token that names a lease
    recorder.py        events that nobody waits for
    topology.py        queues, exchanges and bindings, and which of them we know
    envelopes.py       a message as octets, for intents
"""

from gateway.core.consuming import Pulled, Settled
from gateway.core.gateway import Gateway
from gateway.core.keys import Answer, KeyedRequest
from gateway.core.publishing import Outgoing, Published
from gateway.core.subscriptions import Subscription

__all__ = ["Answer", "Gateway", "KeyedRequest", "Outgoing", "Published", "Pulled", "Settled", "Subscription"]
