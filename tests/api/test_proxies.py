"""Whose request a proxy passes on."""

from __future__ import annotations

import pytest

from gateway.api.http.proxies import HOPS_MAX, Proxies
from gateway.errors import ConfigurationError

PROXY, INNER = "192.0.2.1", "2001:db8:f::7"
PROXIES = Proxies(["192.0.2.0/24", "2001:db8:f::/48"])

HEADERS: list[tuple[str, str, str]] = [
    # the header, its value, the caller
    ("x-forwarded-for", "198.51.100.7", "198.51.100.7"),
    ("x-forwarded-for", "203.0.113.9, 198.51.100.7", "198.51.100.7"),
    ("x-forwarded-for", "198.51.100.7, 192.0.2.9", "198.51.100.7"),
    ("x-forwarded-for", "198.51.100.7, 192.0.2.9,2001:db8:f::1", "198.51.100.7"),
    ("x-forwarded-for", "198.51.100.7:4711", "198.51.100.7"),
    ("x-forwarded-for", "2001:db8::1", "2001:db8::1"),
    ("x-forwarded-for", "2001:DB8:0:0::1", "2001:db8::1"),
    ("x-forwarded-for", "[2001:db8::1]", "2001:db8::1"),
    ("x-forwarded-for", "[2001:db8::1]:4711", "2001:db8::1"),
    ("x-forwarded-for", "::ffff:198.51.100.7", "198.51.100.7"),
    ("x-forwarded-for", "\t198.51.100.7 ", "198.51.100.7"),
    ("x-forwarded-for", "192.0.2.8, 192.0.2.9", "192.0.2.8"),
    ("x-forwarded-for", "", PROXY),
    ("x-forwarded-for", "unknown", PROXY),
    ("x-forwarded-for", "_hidden", PROXY),
    ("x-forwarded-for", "198.51.100.7, unknown", PROXY),
    ("x-forwarded-for", "198.51.100.7, unknown, 192.0.2.9", "192.0.2.9"),
    ("x-forwarded-for", "198.51.100.7,", PROXY),
    ("x-forwarded-for", "198.51.100.007", PROXY),
    ("x-forwarded-for", "198.51.100.7:x", PROXY),
    ("x-forwarded-for", "198.51.100.256", PROXY),
    ("x-forwarded-for", "fe80::1%eth0", PROXY),
    ("x-forwarded-for", "[198.51.100.7]", "198.51.100.7"),
    ("x-forwarded-for", '"198.51.100.7"', PROXY),
    ("x-forwarded-for", "host.example", PROXY),
    ("x-forwarded-for", "198.51.100.7\xa0", PROXY),
    ("forwarded", "for=198.51.100.7", "198.51.100.7"),
    ("forwarded", "For=198.51.100.7;proto=https;by=203.0.113.43", "198.51.100.7"),
    ("forwarded", 'proto=https;for="198.51.100.7:4711"', "198.51.100.7"),
    ("forwarded", 'for="[2001:db8::1]:4711"', "2001:db8::1"),
    ("forwarded", 'for="[2001:db8::1]"', "2001:db8::1"),
    ("forwarded", 'for="[2001:db8::1]:_port"', "2001:db8::1"),
    ("forwarded", "for=203.0.113.9, for=198.51.100.7", "198.51.100.7"),
    ("forwarded", "for=198.51.100.7,for=192.0.2.9", "198.51.100.7"),
    ("forwarded", 'for="198.51.100\\.7"', "198.51.100.7"),
    ("forwarded", 'a="x, for=203.0.113.9";for=198.51.100.7', "198.51.100.7"),
    ("forwarded", 'for=203.0.113.9;a="\\"", for=198.51.100.7', "198.51.100.7"),
    ("forwarded", ", for=198.51.100.7, ,", "198.51.100.7"),
    ("forwarded", "for=unknown", PROXY),
    ("forwarded", "for=_hidden", PROXY),
    ("forwarded", 'for="_hidden:_1"', PROXY),
    ("forwarded", "for=198.51.100.7, for=unknown", PROXY),
    ("forwarded", "for=198.51.100.7, for=_a, for=192.0.2.9", "192.0.2.9"),
    ("forwarded", "proto=https", PROXY),
    ("forwarded", "for=198.51.100.7, proto=https", PROXY),
    ("forwarded", "", PROXY),
    ("forwarded", "for=198.51.100.7;for=198.51.100.7", PROXY),
    ("forwarded", "for=[2001:db8::1]", PROXY),
    ("forwarded", "for=2001:db8::1", PROXY),
    ("forwarded", 'for="2001:db8::1"', PROXY),
    ("forwarded", "for=198.51.100.7:80", PROXY),
    ("forwarded", "for = 198.51.100.7", PROXY),
    ("forwarded", "for=198.51.100.7;", PROXY),
    ("forwarded", "for=198.51.100.7 proto=https", PROXY),
    ("forwarded", 'for="198.51.100.7', PROXY),
    # what a caller sends to have the entry of its proxy read in another way
    ("forwarded", 'for=203.0.113.9;a=", for=198.51.100.7', PROXY),
    ("forwarded", 'for=203.0.113.9;a=", for="[2001:db8::1]:4711"', PROXY),
    ("forwarded", 'for=203.0.113.9;a="\\, for="[2001:db8::1]:4711"', PROXY),
    ("forwarded", "for=203.0.113.9;;, for=198.51.100.7", PROXY),
]


@pytest.mark.parametrize(("name", "value", "caller"), HEADERS)
def test_the_caller(name: str, value: str, caller: str) -> None:
    headers = [(b"host", b"localhost"), (name.encode(), value.encode("latin-1"))]
    assert PROXIES.caller(PROXY, headers) == caller
    assert PROXIES.caller("203.0.113.1", headers) == "203.0.113.1", "nobody else is believed"
    assert Proxies().caller(PROXY, headers) == PROXY


def test_several_lines_are_one_list() -> None:
    lines = [
        (b"x-forwarded-for", b"203.0.113.9"),
        (b"x-forwarded-for", b"198.51.100.7"),
        (b"x-forwarded-for", INNER.encode()),
    ]
    assert PROXIES.caller(PROXY, lines) == "198.51.100.7"
    lines = [(b"forwarded", b'for="'), (b"forwarded", b"for=198.51.100.7"), (b"forwarded", b"for=192.0.2.9")]
    assert PROXIES.caller(PROXY, lines) == "198.51.100.7", "an error further left is not its proxy's"
    assert PROXIES.caller(PROXY, lines[::-1]) == PROXY


def test_a_header_that_the_proxy_does_not_write() -> None:
    mine, proxys = (b"forwarded", b"for=203.0.113.9"), (b"x-forwarded-for", b"198.51.100.7")
    assert PROXIES.caller(PROXY, [mine, proxys]) == PROXY
    assert PROXIES.caller(PROXY, [(b"forwarded", b"for=198.51.100.7"), proxys]) == "198.51.100.7"


def test_only_so_many_entries_are_read() -> None:
    many = b", ".join([b"198.51.100.7"] + [b"192.0.2.9"] * (HOPS_MAX - 1))
    assert PROXIES.caller(PROXY, [(b"x-forwarded-for", many)]) == "198.51.100.7"
    assert PROXIES.caller(PROXY, [(b"x-forwarded-for", many + b", 192.0.2.9")]) == "192.0.2.9"


def test_addresses_of_ipv6_that_stand_for_ipv4() -> None:
    assert PROXIES.trusts("::ffff:192.0.2.1")
    assert not PROXIES.trusts("::192.0.2.1")
    assert not PROXIES.trusts("")


@pytest.mark.parametrize("wrong", ["proxy.example", "10.1.0.1/16", "10.1.0.0/33", ""])
def test_a_network_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.trusted_proxies"):
        Proxies([wrong])
