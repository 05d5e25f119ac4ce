"""Where a URL leads, taken apart by one strict parser, once.

Guards are fooled where two parsers read one URL differently. Here a URL is read once; what is odd is refused with a
sentence rather than guessed at, and what is connected to is what was read. A host is one of three things:

* an IPv6 address in brackets, without a zone;
* an IPv4 address, four decimal numbers without leading zeros. Every other name that ends in a number (``0x7f.1``,
  ``017700000001``, ``2130706433``, ``127.1``) is refused, since a resolver may take it for an address as well;
* a name: lower case, IDNA 2008 (UTS 46) where it is not ASCII, without the one trailing dot that it may have. Digits
  and dots in disguise (``１２７。0.0.1``) are seen as what they become.

:class:`OutboundRules` say which hosts and addresses are allowed: public ones, and those that the operator lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network
from typing import Final

import idna

from gateway.errors import AddressDenied, ConfigurationError, EncodeError
from gateway.outbound.addresses import Address, Network, denied, parse_address

URL_MAX: Final = 2_048
"""Longest URL, in octets."""
DEFAULT_PORTS: Final = {"https": 443, "http": 80}

_URL: Final = re.compile(r"(https?)://([^/?#\\]+)([^#]*)(#.*)?", re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_TARGET: Final = re.compile(r"[!-\[\]-~]*")
"""Printable ASCII, no backslash: the rest of a URL as it may stand in a request line (RFC 9112 section 3.2)."""
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")

WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104  # what is looked for, not where we listen
"""Addresses to listen on that stand for all addresses of the machine."""

DENIED_NAMES: Sequence[tuple[str, str]] = (
    ("localhost", "this machine, RFC 6761"),
    ("localdomain", "this machine, by custom"),
    ("local", "the local link, RFC 6762"),
    ("internal", "private use, ICANN; cloud metadata"),
    ("home.arpa", "a home network, RFC 8375"),
    ("invalid", "no such name, RFC 6761"),
    ("onion", "not in the DNS, RFC 7686"),
    ("alt", "not in the DNS, RFC 9476"),
)
"""Names that are denied with any address, with all names below them."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place to connect to: what connections are kept and counted by."""

    secure: bool
    host: str
    """As written to the far end in ``Host`` and in SNI: a name, or an address without brackets."""
    port: int
    literal: Address | None
    """The address, where the host is one."""

    @property
    def authority(self) -> str:
        """Host and port as the ``Host`` header has them: the scheme's own port is left out."""
        host = f"[{self.host}]" if isinstance(self.literal, IPv6Address) else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}"


def split_url(url: str) -> tuple[Site, str]:
    """Site and request target of an absolute ``http`` or ``https`` URL.

    Raises:
        EncodeError: it is not a host, or it is written in a way that invites misreading. The text says what is wrong;
        it
            never holds a password.
    """
    if len(url) > URL_MAX:
        raise EncodeError(f"URL: {len(url)} characters, the limit is {URL_MAX}")
    match = _URL.fullmatch(url)
    if match is None:
        raise EncodeError("URL: it must be absolute, http:// or https://, without backslashes and control characters")
    scheme, authority, target, fragment = match.groups()
    if "@" in authority:
        raise EncodeError("URL: user and password have no place in it")
    if fragment:
        raise EncodeError("URL: a '#' must be written %23")
    if not _TARGET.fullmatch(target):
        raise EncodeError("URL: path and query must be percent-encoded ASCII")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise EncodeError(f"URL: host and port cannot be read from {authority!r}")
    host, port = parts.groups()
    scheme = scheme.lower()
    site = site_of(scheme, host, DEFAULT_PORTS[scheme] if port is None else _port(port))
    return site, target if target.startswith("/") else f"/{target}"


def site_of(scheme: str, host: str, port: int) -> Site:
    """A site from its parts. Raises EncodeError as :func:`split_url` does."""
    if scheme not in DEFAULT_PORTS:
        raise EncodeError(f"URL: scheme is {scheme[:20]!r}, not http or https")
    name, literal = normal_host(host)
    return Site(scheme == "https", name, port, literal)


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65_535:
        raise EncodeError(f"URL: port is {text[:20]!r}, not a number from 1 to 65535")
    return int(text)


def normal_host(host: str) -> tuple[str, Address | None]:
    """A host in its one spelling, and the address if it is one. Raises EncodeError."""
    shown = repr(host[:80])
    if host.startswith("["):
        address = parse_address(host[1:-1]) if host.endswith("]") else None
        if not isinstance(address, IPv6Address):
            raise EncodeError(f"URL: {shown} is no IPv6 address (a zone is not allowed)")
        return str(address), address
    if host.isascii():
        name = host.lower()
    else:
        try:
            name = idna.encode(host, uts46=True).decode("ascii").lower()
        except (idna.IDNAError, UnicodeError):
            raise EncodeError(f"URL: {shown} is no international domain name") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address = parse_address(name)
        if address is None:
            raise EncodeError(f"URL: {shown} ends in a number and is no IPv4 address in decimal notation")
        return name, address
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise EncodeError(f"URL: {shown} is no host name")
    return name, None


class OutboundRules:
    """Who may be called. What ``allow`` lists is allowed on any port and without TLS; anything else must be public, on
    one of ``ports``, and over TLS unless ``plain`` allows ``http``."""

    __slots__ = ("_hosts", "_networks", "_own", "_plain", "_ports", "_setting", "_suffixes", "own_ports")

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        ports: Sequence[int] | None = (443, 8443),
        plain: bool = False,
        own: Sequence[tuple[str, int]] = (),
        setting: str = "allow",
    ) -> None:
        """
        Args:
            allow: networks (``10.1.0.0/16``, ``fd00::/8``, ``127.0.0.1``) whose addresses are allowed although they
                are not public, and hosts (``hooks.example``, ``*.hooks.example``) that are allowed with any address.
            ports: ports of what is not listed; None: any.
            own: addresses and ports that this process listens on; they are denied even where they are public or
                listed. With a wildcard (``0.0.0.0``, ``::``) that is the port at every address of this machine.
            setting: of ``[outbound]``, which ``allow`` is.

        Raises:
            ConfigurationError: an entry is neither a network nor a host.
        """
        networks: list[Network] = []
        hosts, suffixes = set(), []
        for entry in allow:
            if (network := _network(entry)) is not None:
                networks.append(network)
                continue
            try:
                name, _ = normal_host(entry.removeprefix("*."))
            except EncodeError:
                raise ConfigurationError(f"outbound {setting}: {entry!r} is neither a network nor a host") from None
            if entry.startswith("*."):
                suffixes.append(f".{name}")
            else:
                hosts.add(name)
        self._networks = tuple(networks)
        self._hosts = frozenset(hosts)
        self._suffixes = tuple(suffixes)
        self._ports = None if ports is None else frozenset(ports)
        self._setting = setting
        self._plain = plain
        self._own: set[tuple[str, int]] = set()
        self.own_ports: set[int] = set()
        """Ports at which this process listens on every address that the machine has."""
        for host, port in own:
            self.listens(host, port)

    def beside(self, allow: Sequence[str], setting: str) -> OutboundRules:
        """Return rules for what is no URL: any port, with TLS or without. This process listens where these say that it
        does, also later. Raises ConfigurationError, as the constructor."""
        found = OutboundRules(allow, ports=None, plain=True, setting=setting)
        found._own, found.own_ports = self._own, self.own_ports
        return found

    def replace(self, other: OutboundRules) -> None:
        """Be as others are, but for where this process listens: for what is connected to from now on."""
        self._networks, self._hosts, self._suffixes = other._networks, other._hosts, other._suffixes
        self._ports, self._plain = other._ports, other._plain

    def listens(self, host: str, port: int) -> None:
        """This process listens there as well, from now on: see ``own``."""
        if host in WILDCARDS:
            self.own_ports.add(port)
        else:
            self._own.add((host, port))

    def lists(self, site: Site) -> bool:
        """Whether the operator listed this very host (or, of an address, its network)."""
        if site.literal is not None:
            return self._in_networks(site.literal)
        return site.host in self._hosts or site.host.endswith(self._suffixes)

    def check_site(self, site: Site) -> None:
        """Before anything is resolved: scheme, port, and what the host alone tells.

        Raises:
            AddressDenied: it names every rule that is broken, and the setting that allows the site.
        """
        if site.literal is not None and self._is_own(site, site.literal):
            raise self._own_address(site, site.literal)
        if self.lists(site):
            return
        broken = []
        if not site.secure and not self._plain:
            broken.append("only https is allowed")
        if self._ports is not None and site.port not in self._ports:
            ports = ", ".join(map(str, sorted(self._ports)))
            broken.append(f"port {site.port} is not allowed, only {ports}")
        if site.literal is not None:
            broken += self._denial(site.literal)
        for name, why in DENIED_NAMES:
            if site.host == name or site.host.endswith(f".{name}"):
                broken.append(f"the name {name} is denied: {why}")
        if broken:
            raise AddressDenied(f"{site}: {'; '.join(broken)}", remedy(site, self._setting))

    def check_address(self, site: Site, address: Address) -> None:
        """One address that the host has.

        Raises:
            AddressDenied: it names the range, and the setting that allows the site.
        """
        if self._is_own(site, address):
            raise self._own_address(site, address)
        if site.literal is None and self.lists(site):
            return
        if broken := self._denial(address):
            raise AddressDenied(f"{site}: {broken[0]}", remedy(site, self._setting))

    def _is_own(self, site: Site, address: Address) -> bool:
        return (str(address), site.port) in self._own

    @staticmethod
    def _own_address(site: Site, address: Address) -> AddressDenied:
        return AddressDenied(f"{site}: {address} port {site.port} is this gateway itself, which no setting allows")

    def _denial(self, address: Address) -> list[str]:
        """Why an address is denied: one rule or none."""
        row = denied(address)
        return [f"{address} is denied: {row}"] if row is not None and not self._in_networks(address) else []

    def _in_networks(self, address: Address) -> bool:
        return any(address.version == network.version and address in network for network in self._networks)


def remedy(site: Site, setting: str = "allow") -> str:
    """Return what the operator does to allow a site. ``setting`` of ``[outbound]`` lists those that are allowed."""
    return (
        f'To allow it, add "{site.host}" to `{setting}` of [outbound] in the configuration file and run '
        "`gateway reload`; no restart is needed"
    )


def _network(text: str) -> Network | None:
    try:
        return ip_network(text) if "%" not in text else None
    except ValueError:
        return None
