"""Which addresses are denied, and why."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import AddressDenied, EncodeError
from gateway.outbound.addresses import GLOBAL_UNICAST, RANGES, denied, parse_address
from gateway.outbound.hosts import OutboundRules, site_of
from tests.outbound.vectors import VECTORS


def test_there_are_enough_of_them() -> None:
    assert len(VECTORS) >= 200
    assert len(dict(VECTORS)) == len(VECTORS), "one host stands there twice"


@pytest.mark.parametrize(("host", "said"), VECTORS, ids=[f"{said}-{host!r}" for host, said in VECTORS])
def test_what_is_made_of_a_host(host: str, said: str) -> None:
    if said == "refused":
        with pytest.raises(EncodeError, match=r"^URL: "):
            site_of("https", host, 443)
        return
    site = site_of("https", host, 443)
    if said == "public":
        OutboundRules().check_site(site)
        return
    with pytest.raises(AddressDenied) as refused:
        OutboundRules().check_site(site)
    assert said in str(refused.value)
    if said[-1].isdigit() and " " not in said:
        assert f" is denied: {said} (" in str(refused.value)


@pytest.mark.parametrize("row", RANGES, ids=lambda row: str(row.network))
def test_a_range_begins_and_ends_where_it_says(row) -> None:  # type: ignore[no-untyped-def]
    first, last = row.network.network_address, row.network.broadcast_address
    for inside in (first, last):
        found = denied(inside)
        assert found is not None
        assert found.network.version == row.network.version
        assert inside in found.network
    for value, outside in ((int(first), int(first) - 1), (int(last), int(last) + 1)):
        kind = type(first)
        if 0 <= outside < 1 << first.max_prefixlen:
            found = denied(kind(outside))
            assert found is None or kind(outside) in found.network, (value, found)


def test_no_range_hides_behind_another() -> None:
    for number, row in enumerate(RANGES):
        for earlier in RANGES[:number]:
            if earlier.network.version == row.network.version:
                assert not row.network.subnet_of(earlier.network), f"{row} is never the reason"  # type: ignore[arg-type]


@given(st.integers(0, 2**32 - 1))
def test_what_python_calls_not_global_is_denied_v4(value: int) -> None:
    address = IPv4Address(value)
    if not address.is_global or address.is_multicast or address.is_reserved:
        assert denied(address) is not None


@given(st.integers(0, 2**128 - 1) | st.integers(0x2000 << 112, 0x4000 << 112))
def test_what_python_calls_not_global_is_denied_v6(value: int) -> None:
    address = IPv6Address(value)
    odd = not address.is_global or address.is_multicast or address.is_reserved or address.is_site_local
    if odd or address.ipv4_mapped or address.sixtofour or address.teredo or address not in GLOBAL_UNICAST:
        assert denied(address) is not None


@pytest.mark.parametrize("text", ["", "1.2.3", "01.2.3.4", "fe80::1%eth0", "1.2.3.4/8", " 1.2.3.4", "::g", "host"])
def test_no_addresses(text: str) -> None:
    assert parse_address(text) is None


def test_an_address_is_read_as_it_is_written() -> None:
    assert parse_address("1.2.3.4") == ip_address("1.2.3.4")
    assert parse_address("2001:DB8::1") == ip_address("2001:db8::1")
