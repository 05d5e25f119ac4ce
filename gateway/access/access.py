"""What a gateway knows of callers, in one object: the API asks it, ``gateway serve`` starts and ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gateway.access.keys import StoredKeys
from gateway.access.login import IssuerLogin
from gateway.access.rates import Rates
from gateway.access.scopes import Principal, principal_of
from gateway.access.tokens import IssuedTokens
from gateway.access.trail import Trail
from gateway.config import AccessSettings, Config, TokenSettings, asks_for_credentials
from gateway.errors import ConfigurationError
from gateway.ledger import Ledger
from gateway.outbound import GuardedTransport


class Access:
    """Keys of the ledger, whether a credential is needed, and how often a caller may ask."""

    def __init__(self, config: Config, ledger: Ledger, transport: GuardedTransport | None = None) -> None:
        """``transport`` reads the keys of the issuer of tokens; None: none are taken. Raises ConfigurationError."""
        self.required = asks_for_credentials(config)
        """Whether callers need a credential."""
        seal_old = config.access.unsealed_keys == "seal"
        self.keys = StoredKeys(ledger, frozenset(key.name for key in config.api_keys), seal_old=seal_old)
        """Those of the ledger."""
        settings = self._settings = config.access
        self.rates = Rates(settings.rate, settings.burst) if settings.rate and self.required else None
        """How often a client may ask; None: as often as it likes."""
        self.strangers = _strangers(settings, self.required)
        """How often an address may ask without a credential that counts; None: as often as it likes."""
        self.certificates = _callers(config)
        """Name in a certificate -> who that is."""
        self.tokens: IssuedTokens | None = None
        """Bearer tokens; None: none are taken."""
        self.login: IssuerLogin | None = None
        """The login at the issuer of tokens; None: there is none."""
        if config.access.tokens.issuer and transport is not None:
            self.tokens = IssuedTokens(config.access.tokens, transport)
            self.login = _login(config.access.tokens, self.tokens, transport)
        elif config.access.tokens.login.client_id:
            raise ConfigurationError("access.tokens.issuer is not set, and login.client_id is")
        self.trail = Trail(ledger) if self.required else None
        """The audit log; None: it is a development gateway, which does not identify callers."""

    def reconfigure(
        self, config: Config, transport: GuardedTransport, guard: GuardedTransport
    ) -> Callable[[], IssuedTokens | None]:
        """Check what another configuration says of callers, and return what makes it count; whether they need a
        credential at all must be as before. That returns the tokens of before, to be closed, where there are others.
        ``guard`` has the rules by then of whom ``transport`` may call.

        Raises:
            ConfigurationError: something is wrong; nothing has changed.
        """
        settings, certificates = config.access, _callers(config)
        rates = Rates(settings.rate, settings.burst) if settings.rate and self.required else None
        takes_tokens = bool(settings.tokens.issuer)
        if takes_tokens:
            _login(settings.tokens, IssuedTokens(settings.tokens, guard), guard)

        def commit() -> IssuedTokens | None:
            before = self._settings
            self._settings = settings
            self.keys.configured = frozenset(key.name for key in config.api_keys)
            self.certificates = certificates
            if (settings.rate, settings.burst) != (before.rate, before.burst):
                self.rates = rates
            if settings.stranger_rate != before.stranger_rate:
                self.strangers = _strangers(settings, self.required)
            if settings.tokens == before.tokens:
                return None
            old, self.tokens = self.tokens, IssuedTokens(settings.tokens, transport) if takes_tokens else None
            self.login = None if self.tokens is None else _login(settings.tokens, self.tokens, transport)
            return old

        return commit

    @property
    def closed(self) -> bool:
        """Whether the documents, too, are only for callers with a credential."""
        return self.required and self._settings.documents == "closed"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What is kept up to date, as long as the block. Raises LedgerUnavailable."""
        await self.keys.start()
        if self.trail is not None:
            self.trail.start()
        try:
            yield
        finally:
            await self.keys.close()
            if self.tokens is not None:
                await self.tokens.close()
            if self.trail is not None:
                await self.trail.close()


def _login(settings: TokenSettings, tokens: IssuedTokens, transport: GuardedTransport) -> IssuerLogin | None:
    """Raises ConfigurationError."""
    return IssuerLogin(settings, tokens, transport) if settings.login.client_id else None


def _strangers(settings: AccessSettings, required: bool) -> Rates | None:
    return Rates(settings.stranger_rate, policy="address") if settings.stranger_rate and required else None


def _callers(config: Config) -> Mapping[str, Principal]:
    """Raises ConfigurationError."""
    found: dict[str, Principal] = {}
    for each in config.access.certificates:
        if each.name in found:
            raise ConfigurationError(f"access.certificates: the name {each.name!r} is there twice")
        try:
            found[each.name] = principal_of(each.client, each.scopes, f"certificate:{each.name}")
        except ConfigurationError as error:
            raise ConfigurationError(f"access.certificates: {each.name}: {error}") from None
    if found and not config.http.tls.client_ca_file:
        raise ConfigurationError("access.certificates: http.tls.client_ca_file does not say who may sign them")
    return found
