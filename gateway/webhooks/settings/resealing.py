"""All sealed secrets of a ledger: which keys they are sealed with, and how they come under another one.

Secrets are in three kinds of documents. Of an endpoint (:mod:`gateway.webhooks.settings.documents`): its settings'
secrets as one text, and its signing keys one by one. Of a broker (:mod:`gateway.core.broker_documents`): its settings'
secrets as one text. A document that somebody else changes meanwhile is read again. The MACs of API keys, whose keys are
derived from the same, are made again with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from gateway.core.broker_documents import BROKER_RESOURCE, BrokerDocument, purpose_of_broker
from gateway.errors import ConfigurationError, EtagMismatch
from gateway.ledger import Ledger, ResourceRecord, resources
from gateway.ledger.access.api_keys import mac_keys
from gateway.webhooks.settings.documents import EndpointStateDocument, Spec, purposes_of
from gateway.webhooks.settings.endpoints import ENDPOINT_RESOURCE, STATE
from gateway.webhooks.settings.keys import purpose_of
from gateway.webhooks.settings.secrets import Seals, key_of

KINDS: Final = (ENDPOINT_RESOURCE, STATE, BROKER_RESOURCE)
"""Resources that have secrets."""
PAGE: Final = 100
TRIES: Final = 10
"""How often a document is tried that others change."""
Renew = Callable[[Sequence[str], str], str]
"""Purposes, of which the first one counts now, and sealed text -> the text sealed again."""


def used(connection: sa.Connection) -> Counter[str]:
    """Name of a key -> how many secrets are sealed with it. Raises ConfigurationError: a document cannot be read."""
    found: Counter[str] = Counter()

    def count(_: Sequence[str], sealed: str) -> str:
        found[key_of(sealed)] += 1
        return sealed

    for kind in KINDS:
        cursor: str | None = None
        while True:
            page, cursor = resources.page(connection, kind, cursor, PAGE)
            for resource in page:
                _renewed(kind, resource, count)
            if cursor is None:
                break
    found.update(mac_keys(connection))
    return found


async def rotate(ledger: Ledger, seals: Seals) -> tuple[int, list[str]]:
    """Bring all secrets under the key that seals; how many were not, and of which endpoints and brokers
    some could not be opened: these stay as they are.

    Raises:
        LedgerUnavailable: some are done, and it can be begun again.
    """
    done, failed = 0, []
    async for kind, resource in _all(ledger):
        try:
            done += await _rotate(ledger, seals, kind, resource)
        except (ConfigurationError, EtagMismatch) as error:
            failed.append(f"{resource.name}: {error}")
    keys, wrong = await ledger.api_keys.reseal()
    return done + keys, failed + [f"API key {key_id}: its row does not count" for key_id in wrong]


async def _rotate(ledger: Ledger, seals: Seals, kind: str, resource: ResourceRecord | None) -> int:
    for _ in range(TRIES):
        if resource is None:
            return 0
        changed = 0

        def renew(purposes: Sequence[str], sealed: str) -> str:
            nonlocal changed
            text = seals.renew(purposes, sealed)
            changed += text != sealed
            return text

        document = _renewed(kind, resource, renew)
        if not changed:
            return 0
        try:
            await ledger.put_resource(kind, resource.name, document, resource.etag)
            return changed
        except EtagMismatch:
            resource = await ledger.get_resource(kind, resource.name)
    raise EtagMismatch(f"others changed it {TRIES} times meanwhile; repeat")


def _renewed(kind: str, resource: ResourceRecord, renew: Renew) -> dict[str, Any]:
    """A document with its secrets sealed again. Raises ConfigurationError."""
    try:
        if kind == ENDPOINT_RESOURCE:
            spec = msgspec.convert(resource.spec, Spec)
            if spec.sealed:
                spec.sealed = renew(purposes_of(resource.name, spec.settings), spec.sealed)
                return {**resource.spec, "sealed": spec.sealed}
            return dict(resource.spec)
        if kind == BROKER_RESOURCE:
            broker = msgspec.convert(resource.spec, BrokerDocument)
            if not broker.sealed:
                return dict(resource.spec)
            return {
                **resource.spec,
                "sealed": renew((purpose_of_broker(resource.name, broker.settings),), broker.sealed),
            }
        state = msgspec.convert(resource.spec, EndpointStateDocument)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"it is of another release: {error}") from None
    keys = [renew((purpose_of(resource.name, key.scheme, key.id),), key.sealed) for key in state.keys]
    stored = resource.spec.get("keys", [])
    return {
        **resource.spec,
        "keys": [{**key, "sealed": sealed} for key, sealed in zip(stored, keys, strict=True)],
    }


async def _all(ledger: Ledger) -> AsyncIterator[tuple[str, ResourceRecord]]:
    for kind in KINDS:
        async for resource in ledger.all_resources(kind):
            yield kind, resource
