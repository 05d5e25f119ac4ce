"""Brokers that were put over HTTP: kept in the ledger, their secrets sealed, and used by every process on it.

::

    store.py   what there is, put and deleted, and what other processes changed
    uses.py    what works with a broker, so that it cannot be deleted

The document is in :mod:`gateway.core.broker_documents`; the change of a running broker, which a reload of the
configuration does as well, in :mod:`gateway.core.broker_change`; where such a broker may be, in
:mod:`gateway.outbound.brokers`.
"""

from gateway.broker_store.store import BROKERS_MAX, BrokerResource, BrokerStore
from gateway.broker_store.uses import DEPENDENT_WORK, users_in_ledger

__all__ = ["BROKERS_MAX", "DEPENDENT_WORK", "BrokerResource", "BrokerStore", "users_in_ledger"]
