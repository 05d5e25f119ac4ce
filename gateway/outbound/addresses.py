"""Which IP addresses the gateway may connect to on somebody else's word: a table, and nothing else.

A URL that a user sets must not lead into the network that the gateway stands in (server-side request forgery). So an
address is judged by what it *is*, not by how it was written or resolved:

* IPv4: everything is allowed that :data:`RANGES` does not name;
* IPv6: only global unicast space (``2000::/3``) is allowed at all, less what :data:`RANGES` names in it. Every address
that carries an IPv4 address inside (mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP) is denied without
  looking at the address inside: a translator somewhere on the way may unpack it, and no server lives there.

Python's ``ipaddress.is_global`` is not enough: which of these it knows differs between releases, and none knows all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class AddressRange:
    """One row: a network nobody outside may send us to."""

    network: Network
    what: str
    rfc: str
    """Who says so."""

    def __str__(self) -> str:
        return f"{self.network} ({self.what}, {self.rfc})"


def _range(network: str, what: str, rfc: str) -> AddressRange:
    return AddressRange(ip_network(network), what, rfc)


RANGES: Sequence[AddressRange] = (
    _range("0.0.0.0/8", "this network", "RFC 791"),
    _range("10.0.0.0/8", "private", "RFC 1918"),
    _range("100.64.0.0/10", "shared by carriers (CGNAT)", "RFC 6598"),
    _range("127.0.0.0/8", "loopback", "RFC 1122"),
    _range("168.63.129.16/32", "host of a virtual machine", "Azure"),
    _range("169.254.0.0/16", "link-local, and cloud metadata", "RFC 3927"),
    _range("172.16.0.0/12", "private", "RFC 1918"),
    _range("192.0.0.0/24", "protocol assignments", "RFC 6890"),
    _range("192.0.2.0/24", "documentation", "RFC 5737"),
    _range("192.31.196.0/24", "AS112", "RFC 7535"),
    _range("192.52.193.0/24", "multicast tunnels (AMT)", "RFC 7450"),
    _range("192.88.99.0/24", "6to4 relays", "RFC 7526"),
    _range("192.168.0.0/16", "private", "RFC 1918"),
    _range("192.175.48.0/24", "AS112", "RFC 7534"),
    _range("198.18.0.0/15", "benchmarks", "RFC 2544"),
    _range("198.51.100.0/24", "documentation", "RFC 5737"),
    _range("203.0.113.0/24", "documentation", "RFC 5737"),
    _range("224.0.0.0/4", "multicast", "RFC 5771"),
    _range("240.0.0.0/4", "reserved, and broadcast", "RFC 1112"),
    _range("::/128", "unspecified", "RFC 4291"),
    _range("::1/128", "loopback", "RFC 4291"),
    _range("::/96", "IPv4-compatible", "RFC 4291"),
    _range("::ffff:0:0/96", "IPv4-mapped", "RFC 4291"),
    _range("::ffff:0:0:0/96", "IPv4-translated", "RFC 2765"),
    _range("64:ff9b::/96", "NAT64", "RFC 6052"),
    _range("64:ff9b:1::/48", "local NAT64", "RFC 8215"),
    _range("100::/64", "discard", "RFC 6666"),
    _range("100:0:0:1::/64", "dummy prefix", "RFC 9780"),
    _range("200::/7", "OSI addresses", "RFC 4048"),
    _range("2001::/32", "Teredo", "RFC 4380"),
    _range("2001::/23", "protocol assignments", "RFC 2928"),
    _range("2001:db8::/32", "documentation", "RFC 3849"),
    _range("2002::/16", "6to4", "RFC 3056"),
    _range("2620:4f:8000::/48", "AS112", "RFC 7534"),
    _range("3ffe::/16", "6bone", "RFC 3701"),
    _range("3fff::/20", "documentation", "RFC 9637"),
    _range("5f00::/16", "segment routing", "RFC 9602"),
    _range("fc00::/7", "unique local, and cloud metadata", "RFC 4193"),
    _range("fe80::/10", "link-local", "RFC 4291"),
    _range("fec0::/10", "site-local", "RFC 3879"),
    _range("ff00::/8", "multicast", "RFC 4291"),
)
"""What is denied, in order of the addresses. The first row that fits is the reason that is given."""

GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
NOT_UNICAST: Final = AddressRange(IPv6Network("::/0"), "outside 2000::/3, where no server has an address", "RFC 4291")
ISATAP: Final = AddressRange(IPv6Network("::/0"), "ISATAP, which carries an IPv4 address", "RFC 5214")
_ISATAP_IDS: Final = (0x00005EFE, 0x02005EFE)
"""The upper half of the interface identifier of such an address, without and with the universal bit."""

_BY_VERSION: Final = {
    version: [
        (int(row.network.network_address), int(row.network.broadcast_address), row)
        for row in RANGES
        if row.network.version == version
    ]
    for version in (4, 6)
}


def parse_address(text: str) -> Address | None:
    """The address that ``text`` is in strict notation; None where it is not an address. A zone (``fe80::1%eth0``) makes
    it invalid: a zone names a local interface."""
    if "%" in text:
        return None
    try:
        return ip_address(text)
    except ValueError:
        return None


def denied(address: Address) -> AddressRange | None:
    """Why nobody may be sent to this address; None: it is a public one."""
    value = int(address)
    for first, last, row in _BY_VERSION[address.version]:
        if first <= value <= last:
            return row
    if address.version == 6:
        if address not in GLOBAL_UNICAST:
            return NOT_UNICAST
        if value >> 32 & 0xFFFFFFFF in _ISATAP_IDS:
            return ISATAP
    return None
