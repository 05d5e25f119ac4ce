"""What the ledger keeps of an endpoint, and the endpoint that it makes.

Two documents: :class:`Spec` is what was put, with its secrets sealed; an endpoint of the configuration file has none.
URLs count as secrets from their path on, for many a receiver knows its senders by that alone.
:class:`EndpointStateDocument` is what became of it. An endpoint whose documents cannot be read here, for want of a key,
say, is disabled: its messages wait, and it says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from gateway.config import EndpointSettings
from gateway.core.work.resources import etag_of
from gateway.errors import GatewayError
from gateway.ledger import ResourceRecord
from gateway.validation import explain
from gateway.webhooks.endpoint import Endpoint, EndpointState
from gateway.webhooks.settings import checks, keys
from gateway.webhooks.settings.keys import HeldKey, StoredKey
from gateway.webhooks.settings.secrets import Seals


class Spec(msgspec.Struct):
    """The document ``endpoint``."""

    settings: EndpointSettings
    sealed: str = ""
    """Its secrets: JSON, path -> text."""


class Disabled(msgspec.Struct):
    """That it is disabled, as long as it has this URL."""

    reason: str
    url: str
    """As :func:`mark_of` makes it."""
    at: float


class Verified(msgspec.Struct):
    """That it allowed us to call it at this URL under this name."""

    url: str
    """As :func:`mark_of` makes it."""
    origin: str
    at: float
    rate: float
    """Requests a second; 0: any number."""


class EndpointStateDocument(msgspec.Struct):
    """The document ``endpoint-state``."""

    keys: list[StoredKey] = []
    paused: bool | None = None
    """None: as the settings say."""
    disabled: Disabled | None = None
    verified: Verified | None = None


class StoredEndpoint(msgspec.Struct):
    """An endpoint, and the documents that it was made from."""

    endpoint: Endpoint
    state: EndpointStateDocument
    state_etag: str
    """Empty: there is no such document."""
    trouble: str = ""
    """Why its settings or keys cannot be read here."""


class Documents:
    """Reads and writes them."""

    def __init__(self, seals: Seals, configured: Mapping[str, EndpointSettings], origin: str) -> None:
        """``origin``: the gateway's name in handshakes; empty: a permission holds for any name."""
        self._seals = seals
        self._configured = configured
        self._origin = origin
        self.refused: dict[str, str] = {}
        """Of an endpoint that is not verified: what it said last."""

    def make(self, name: str, spec: ResourceRecord | None, state: ResourceRecord | None) -> StoredEndpoint:
        """An endpoint from its documents."""
        trouble = ""
        more = EndpointStateDocument()
        found: tuple[HeldKey, ...] = ()
        try:
            if state is not None:
                more = msgspec.convert(state.spec, EndpointStateDocument)
            found = keys.unseal(self._seals, name, more.keys)
        except (GatewayError, msgspec.ValidationError) as error:
            trouble = f"its keys cannot be read here: {error}"
        if name in self._configured:
            settings = self._configured[name]
            etag = etag_of(checks.take_out(settings)[0])
        else:
            assert spec is not None
            etag = spec.etag
            settings = EndpointSettings(url="")
            try:
                settings = self._open(name, msgspec.convert(spec.spec, Spec))
            except msgspec.ValidationError as error:
                trouble = f"its settings cannot be read: {explain(error, spec.spec, Spec)}"
            except GatewayError as error:
                settings = msgspec.convert(spec.spec, Spec).settings
                trouble = f"its secrets cannot be read here: {error}"
        endpoint = self.endpoint(name, settings, etag, more, found, trouble)
        return StoredEndpoint(endpoint, more, state.etag if state is not None else "", trouble)

    def endpoint(
        self,
        name: str,
        settings: EndpointSettings,
        etag: str,
        more: EndpointStateDocument,
        found: tuple[HeldKey, ...],
        trouble: str = "",
    ) -> Endpoint:
        """An endpoint, and the state that all of that means."""
        verified = more.verified if settings.handshake else None
        these = (settings.url, mark_of(settings.url))
        if verified is not None and (verified.url not in these or verified.origin != (self._origin or verified.origin)):
            verified = None
        disabled = more.disabled if more.disabled is not None and more.disabled.url in these else None
        lacking = [scheme for scheme in settings.signing if all(key.scheme != scheme for key in found)]
        if lacking and not trouble:
            trouble = f"it has no key of {lacking[0]} yet"
        state, reason = EndpointState.ACTIVE, ""
        if trouble or disabled is not None:
            state, reason = EndpointState.DISABLED, trouble or (disabled.reason if disabled is not None else "")
        elif settings.handshake and verified is None:
            state, reason = EndpointState.UNVERIFIED, self.refused.get(name, "it has not been asked yet")
        elif settings.paused if more.paused is None else more.paused:
            state, reason = EndpointState.PAUSED, "paused"
        return Endpoint(
            name,
            settings,
            etag,
            name in self._configured,
            state,
            reason,
            tuple(key for key in found if key.scheme in settings.signing),
            verified.rate if verified is not None else 0.0,
            verified.at if verified is not None else None,
        )

    def spec(self, name: str, settings: EndpointSettings) -> Spec:
        """What is kept of settings."""
        shown, secrets = checks.take_out(settings)
        shown, urls = checks.take_out_urls(shown)
        secrets |= urls
        if not secrets:
            return Spec(shown)
        return Spec(shown, self._seals.seal(purposes_of(name, shown)[0], msgspec.json.encode(secrets).decode()))

    def _open(self, name: str, spec: Spec) -> EndpointSettings:
        if not spec.sealed:
            return spec.settings
        secrets = msgspec.json.decode(
            self._seals.open(purposes_of(name, spec.settings), spec.sealed), type=dict[str, str]
        )
        return checks.put_back(spec.settings, secrets)


def lacks_keys(endpoint: Endpoint) -> bool:
    """Whether there is a scheme that it signs with and has no key of."""
    return not {key.scheme for key in endpoint.keys if not key.old}.issuperset(endpoint.settings.signing)


def mark_of(url: str) -> str:
    """What stands for a URL where it is only to be known again."""
    return f"sha256:{sha256(url.encode()).hexdigest()}"


def purposes_of(name: str, settings: EndpointSettings) -> tuple[str, str]:
    """Return what secrets of settings are sealed for: what decides where they go, how they go there, and who may say to
    be there. So nobody who writes to the database has them sent to somebody else. The second one is that of secrets
    that were sealed before TLS settings were part of it; they open until they are sealed again."""
    auth, tls = settings.auth, settings.tls
    parts = [
        name, settings.url, auth.kind, auth.user, auth.token_url, auth.scope, auth.secret_file,
        tls.ca, tls.ca_file, tls.server_name, tls.cert, tls.cert_file, tls.key_file,
    ]  # fmt: skip
    return f"endpoint {msgspec.json.encode(parts).decode()}", f"endpoint {name} to {settings.url} {auth.token_url}"
