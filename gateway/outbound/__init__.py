"""Requests of the gateway's own, to URLs that somebody else chose.

:mod:`~gateway.outbound.hosts` reads a URL, :mod:`~gateway.outbound.addresses` judges where it leads,
:mod:`~gateway.outbound.dialer` connects to what was judged, :mod:`~gateway.outbound.requests` and
:mod:`~gateway.outbound.answers` are the octets, and :mod:`~gateway.outbound.transport` is the whole.
"""

from gateway.outbound.answers import HttpAnswer
from gateway.outbound.brokers import BrokerGuard
from gateway.outbound.hosts import OutboundRules
from gateway.outbound.limits import DEFAULT_OUTBOUND_LIMITS, OutboundLimits
from gateway.outbound.resolver import NOBODY
from gateway.outbound.transport import GuardedTransport, guarded_client

__all__ = [
    "DEFAULT_OUTBOUND_LIMITS",
    "NOBODY",
    "BrokerGuard",
    "GuardedTransport",
    "HttpAnswer",
    "OutboundLimits",
    "OutboundRules",
    "guarded_client",
]
