"""Which hosts the brokers may have that somebody put over HTTP.

The rules are those of webhooks, with a list of their own (``outbound.broker_allow``): brokers stand in private
networks, where no webhook has to go. A host is judged when it is put, as far as that can be told without its
address, and each of its addresses whenever the gateway connects. What was judged is what is connected to.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from gateway.config import DEFAULT_PORTS, BrokerSettings, BrokerUrl, parse_broker_url, parse_host, parse_management_url
from gateway.errors import AddressDenied, EncodeError, ResolveFailed, public_error
from gateway.observing.telemetry import log
from gateway.outbound.dialer import GuardedDialer, dial
from gateway.outbound.hosts import OutboundRules, Site, normal_host, split_url
from gateway.outbound.limits import DEFAULT_OUTBOUND_LIMITS
from gateway.outbound.resolver import NOBODY, Resolver, SystemResolver

LOOKUP_SECONDS: Final = 5.0
"""How long a lookup may take, in seconds."""


@dataclass(frozen=True, slots=True)
class BrokerSite(Site):
    """A place where a broker listens."""

    @property
    def authority(self) -> str:
        """Host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def scheme(self) -> str:
        """As in a broker's URL."""
        return "amqps" if self.secure else "amqp"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


class BrokerGuard:
    """Judges where the brokers are that were put over HTTP."""

    def __init__(self, rules: OutboundRules, resolve: Resolver | None = None) -> None:
        """``resolve`` None: the system's resolver."""
        self.rules = rules
        self._system = SystemResolver()
        self._dialer = GuardedDialer(rules, DEFAULT_OUTBOUND_LIMITS, resolve or self._system, dial)

    def check(self, settings: BrokerSettings) -> None:
        """Judge all hosts of a broker, as far as that can be told without asking for their addresses.

        Raises:
            AddressDenied: the rules do not allow one.
            ConfigurationError, EncodeError: one is no host.
        """
        url = parse_broker_url(settings.url)
        sites = [(url.host, url.port)]
        for entry in (*settings.hosts, *settings.redirect_hosts):
            host, port = parse_host(entry)
            sites.append((host, url.port if port is None else port))
        for host, port in sites:
            self.rules.check_site(_site(host, port, url.secure))
        if settings.management:
            try:
                self.rules.check_site(split_url(parse_management_url(settings.management).base)[0])
            except EncodeError as error:
                raise EncodeError(f"management: {error}") from None

    async def __call__(self, url: BrokerUrl) -> list[str]:
        """Return the addresses of a broker, every one of them allowed. The log says which address of a name is not:
        everybody who may see the broker reads why it is not up.

        Raises:
            AddressDenied: the host is not allowed.
            ResolveFailed: a name has no address, or one that is not allowed.
            Overloaded: it cannot be told.
        """
        site = _site(url.host, url.port, url.secure)
        self.rules.check_site(site)
        try:
            found = await self._dialer.addresses_of(site, NOBODY, LOOKUP_SECONDS)
        except (AddressDenied, ResolveFailed) as error:
            shown = public_error(error)
            if shown is not error:
                log("broker.not_resolved", logging.WARNING, host=site.host, code=error.code, reason=str(error))
            raise shown from None
        return [str(address) for address in found]

    def close(self) -> None:
        """Wait for no lookup any more."""
        self._system.close()


def _site(host: str, port: int, secure: bool) -> BrokerSite:
    try:
        name, literal = normal_host(f"[{host}]" if ":" in host else host)
    except EncodeError as error:
        raise EncodeError(f"url: {str(error).removeprefix('URL: ')}") from None
    return BrokerSite(secure, name, port, literal)
