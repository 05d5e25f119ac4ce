"""URLs and rules."""

from __future__ import annotations

import pytest

from gateway.errors import AddressDenied, ConfigurationError, EncodeError
from gateway.outbound.addresses import parse_address
from gateway.outbound.hosts import URL_MAX, OutboundRules, Site, site_of, split_url


@pytest.mark.parametrize(
    ("url", "site", "target"),
    [
        ("https://example.com", "https://example.com", "/"),
        ("https://example.com/", "https://example.com", "/"),
        ("HTTPS://EXAMPLE.com./a%20b?c=d&e#".rstrip("#"), "https://example.com", "/a%20b?c=d&e"),
        ("https://example.com?x=/?", "https://example.com", "/?x=/?"),
        ("https://example.com:443/", "https://example.com", "/"),
        ("http://example.com:80/", "http://example.com", "/"),
        ("http://example.com:443/", "http://example.com:443", "/"),
        ("https://example.com:8443/a", "https://example.com:8443", "/a"),
        ("https://[2606:4700::1111]/", "https://[2606:4700::1111]", "/"),
        ("https://[2606:4700:0::1111]:8443/", "https://[2606:4700::1111]:8443", "/"),
        ("https://1.1.1.1:65535/", "https://1.1.1.1:65535", "/"),
        ("https://bücher.example/", "https://xn--bcher-kva.example", "/"),
        ("https://example.com/@:user", "https://example.com", "/@:user"),
    ],
)
def test_urls(url: str, site: str, target: str) -> None:
    found, path = split_url(url)
    assert (str(found), path) == (site, target)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "absolute"),
        ("example.com/x", "absolute"),
        ("//example.com/x", "absolute"),
        ("https:example.com", "absolute"),
        ("https:///x", "absolute"),
        ("ftp://example.com/", "absolute"),
        ("file:///etc/passwd", "absolute"),
        ("gopher://127.0.0.1:6379/_x", "absolute"),
        (" https://example.com/", "absolute"),
        ("https://\\example.com/", "absolute"),
        ("https://example.com\\@127.0.0.1/", "percent-encoded"),
        ("https://user:secret@example.com/", "no place"),
        ("https://example.com@127.0.0.1/", "no place"),
        ("https://example.com:80@127.0.0.1/", "no place"),
        ("https://example.com/#x", "%23"),
        ("https://example.com#@127.0.0.1/", "%23"),
        ("https://example.com/a b", "percent-encoded"),
        ("https://example.com/é", "percent-encoded"),
        ("https://example.com/\r\nHost: x", "percent-encoded"),
        ("https://example.com/\x00", "percent-encoded"),
        ("https://example.com\r\n/", "no host name"),
        ("https://example.com:/", "port is ''"),
        ("https://example.com:0/", "port is '0'"),
        ("https://example.com:0443/", "port is '0443'"),
        ("https://example.com:65536/", "port is '65536'"),
        ("https://example.com:-1/", "port is '-1'"),
        ("https://example.com:４４３/", "port is"),
        ("https://a:b:c/", "port is 'b:c'"),
        ("https://::1/", "port is ':1'"),
        ("https://[::1/", "cannot be read"),
        ("https://[::1]x/", "cannot be read"),
        ("https://x[::1]/", "cannot be read"),
        ("https://[fe80::1%25eth0]/", "no IPv6 address"),
        ("https://example.com/" + "x" * URL_MAX, f"the limit is {URL_MAX}"),
    ],
)
def test_urls_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(EncodeError) as refused:
        split_url(url)
    assert why in str(refused.value)
    assert "secret" not in str(refused.value)


def test_another_scheme_is_refused() -> None:
    with pytest.raises(EncodeError, match="scheme is 'ftp'"):
        site_of("ftp", "example.com", 21)


def site(url: str) -> Site:
    return split_url(url)[0]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/", "only https is allowed"),
        ("https://example.com:80/", "port 80 is not allowed, only 443, 8443"),
        ("https://example.com:22/", "port 22 is not allowed"),
        ("https://127.0.0.1/", "loopback, RFC 1122"),
        ("https://127.0.0.1:9000/", "port 9000 is not allowed"),
        ("https://metadata.google.internal/", "the name internal is denied"),
    ],
)
def test_what_is_denied_by_the_url_alone(url: str, why: str) -> None:
    with pytest.raises(AddressDenied, match=why):
        OutboundRules().check_site(site(url))


PLAIN_9055 = "only https is allowed; port 9055 is not allowed, only 443, 8443"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9055/hook", f"{PLAIN_9055}; 127.0.0.1 is denied: 127.0.0.0/8 (loopback, RFC 1122)"),
        ("http://localhost:9055/", f"{PLAIN_9055}; the name localhost is denied: this machine, RFC 6761"),
        ("http://[::1]:9055/", f"{PLAIN_9055}; ::1 is denied: ::1/128 (loopback, RFC 4291)"),
    ],
)  # fmt: skip
def test_every_rule_that_a_url_breaks_is_named_and_the_setting_that_allows_it(url: str, said: str) -> None:
    with pytest.raises(AddressDenied) as refused:
        OutboundRules().check_site(site(url))
    found = site(url)
    assert str(refused.value) == (
        f'{found}: {said}. To allow it, add "{found.host}" to `allow` of [outbound] in the configuration file and run '
        "`gateway reload`; no restart is needed"
    )
    OutboundRules(allow=[found.host]).check_site(found)


def test_http_can_be_allowed() -> None:
    OutboundRules(plain=True, ports=(80,)).check_site(site("http://example.com/"))
    with pytest.raises(AddressDenied):
        OutboundRules(plain=True, ports=(80,)).check_site(site("http://127.0.0.1/"))


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("127.0.0.0/8", "http://127.0.0.1:9000/"),
        ("127.0.0.1", "http://127.0.0.1:9000/"),
        ("::1", "http://[::1]:9000/"),
        ("fd00::/8", "https://[fd00::1]:22/"),
        ("localhost", "http://localhost:9000/"),
        ("LOCALHOST.", "http://localhost:9000/"),
        ("*.svc.internal", "http://hooks.svc.internal:8080/"),
        ("bücher.example", "http://xn--bcher-kva.example/"),
    ],
)
def test_what_is_listed_is_allowed_on_any_port_and_without_tls(allow: str, url: str) -> None:
    with pytest.raises(AddressDenied):
        OutboundRules().check_site(site(url))
    OutboundRules(allow=[allow]).check_site(site(url))


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("127.0.0.1", "https://127.0.0.2/"),
        ("127.0.0.0/8", "https://[::ffff:127.0.0.1]/"),
        ("127.0.0.0/8", "https://[64:ff9b::127.0.0.1]/"),
        ("localhost", "https://a.localhost/"),
        ("*.svc.internal", "https://svc.internal/"),
        ("*.svc.internal", "https://xsvc.internal/"),
        ("10.0.0.0/8", "https://localhost/"),
    ],
)
def test_nothing_else_is_allowed_by_it(allow: str, url: str) -> None:
    with pytest.raises(AddressDenied):
        OutboundRules(allow=[allow]).check_site(site(url))


def test_an_address_is_allowed_by_the_host_or_by_its_network() -> None:
    loopback = parse_address("127.0.0.1")
    assert loopback is not None
    hooks = site("https://hooks.example/")
    with pytest.raises(AddressDenied, match=r"https://hooks.example: 127.0.0.1 is denied: 127.0.0.0/8"):
        OutboundRules().check_address(hooks, loopback)
    OutboundRules(allow=["hooks.example"]).check_address(hooks, loopback)
    OutboundRules(allow=["127.0.0.0/8"]).check_address(hooks, loopback)


def test_the_gateway_does_not_call_itself() -> None:
    rules = OutboundRules(allow=["127.0.0.0/8", "hooks.example"], own=[("127.0.0.1", 8080)])
    with pytest.raises(AddressDenied, match=r"this gateway itself, which no setting allows$"):
        rules.check_site(site("http://127.0.0.1:8080/"))
    rules.check_site(site("http://127.0.0.1:8081/"))
    loopback = parse_address("127.0.0.1")
    assert loopback is not None
    with pytest.raises(AddressDenied, match=r"this gateway itself, which no setting allows$"):
        rules.check_address(site("http://hooks.example:8080/"), loopback)


@pytest.mark.parametrize("entry", ["", "*", "*.", "10.0.0.1/8", "a b", "fe80::1%eth0", "http://x", "1.2.3"])
def test_entries_that_are_neither_network_nor_host(entry: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a network nor a host"):
        OutboundRules(allow=[entry])


def test_own_addresses_are_added_as_they_are_opened() -> None:
    rules = OutboundRules(allow=["127.0.0.0/8"])
    rules.check_site(site("http://127.0.0.1:8080/"))
    rules.listens("127.0.0.1", 8080)
    with pytest.raises(AddressDenied, match=r"127\.0\.0\.1 port 8080 is this gateway itself"):
        rules.check_site(site("http://127.0.0.1:8080/"))
    assert rules.own_ports == set()
    rules.listens("::", 8081)
    rules.listens("0.0.0.0", 8082)
    assert rules.own_ports == {8081, 8082}
