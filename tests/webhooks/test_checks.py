"""Settings of an endpoint that do not go together, and secrets taken out and put back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config import EndpointAuth, EndpointSettings, EndpointTls
from gateway.errors import EncodeError
from gateway.webhooks.settings.checks import (
    ATTEMPTS_MAX,
    AUTH,
    HEADERS_MAX,
    HEADERS_OCTETS,
    PEM_MAX,
    SECRET_MAX,
    TEXT_MAX,
    check_endpoint,
    keep_secrets,
    put_back,
    take_out,
)

URL = "https://hooks.example/in?a=b"
OAUTH = EndpointAuth(kind="oauth2", user="u", secret="s", token_url="https://id.example/token")
PEM = "-----BEGIN CERTIFICATE-----\n"


def settings(**given: Any) -> EndpointSettings:
    given.setdefault("url", URL)
    return EndpointSettings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"batch_max": 100, "format": "cloudevents-batch"},
        {"auth": OAUTH},
        {"auth": EndpointAuth(kind="basic", user="u", secret="s")},
        {"headers": {"X-Tenant": "7", "Accept": "a, b"}},
        {"tls": EndpointTls(ca=PEM, cert=PEM, key="k", server_name="inner.example")},
        {"signing": ("v1a", "v1")},
        {"source": "https://shop.example/a?b#c", "event_type": "com.example.Größe"},
        {"schedule": (0.0, 1.0)},
        {"format": "raw", "reply": True},
        {"schedule": (1.0,) * ATTEMPTS_MAX},
        {"source": "x" * TEXT_MAX, "event_type": "x" * TEXT_MAX},
        {"auth": msgspec.structs.replace(OAUTH, user="u" * TEXT_MAX, secret="s" * SECRET_MAX, scope="x" * TEXT_MAX)},
        {"tls": EndpointTls(ca="x" * PEM_MAX, cert="x" * PEM_MAX, key="x" * PEM_MAX)},
        {"tls": EndpointTls(cert=PEM, key="-----BEGIN PRIVATE KEY-----\n")},
        {"tls": EndpointTls(server_name="192.0.2.1")},
        {"headers": {f"x-{number}": "1" for number in range(HEADERS_MAX)}},
        {"headers": {"x": "y" * (HEADERS_OCTETS - 5)}},
    ],
)
def test_good_ones(given: dict[str, Any]) -> None:
    check_endpoint(settings(**given), from_file=False)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"url": ""}, "url: URL: it must be absolute"),
    ({"url": "ftp://x/"}, "url: URL"),
    ({"url": "https://u:p@x.example/"}, "url: URL: user and password"),
    ({"auth": msgspec.structs.replace(OAUTH, token_url="x")}, "auth.token_url: URL"),
    ({"batch_max": 2, "format": "raw"}, "batch_max: the format raw carries one message, not 2"),
    ({"batch_max": 2, "reply": True}, "reply: an answer belongs to one message"),
    ({"signing": ("v1", "v1")}, "signing: v1, v1: each scheme once"),
    ({"schedule": (1.0,) * 101}, "schedule: 101 attempts, the limit is 100"),
    ({"source": "a b"}, "source: "),
    ({"source": "x" * (TEXT_MAX + 1)}, "source: "),
    ({"event_type": "x" * (TEXT_MAX + 1)}, "event_type: "),
    ({"auth": EndpointAuth(kind="basic", user="u" * (TEXT_MAX + 1), secret="s")}, "auth.user: it must be at most"),
    ({"headers": {"x": "y" * (HEADERS_OCTETS - 4)}}, "headers: 8193 octets, the limit is 8192"),
    ({"event_type": "a\nb"}, "event_type: "),
    ({"auth": EndpointAuth(kind="basic", user="u")}, "auth.secret: basic needs it"),
    ({"auth": EndpointAuth(kind="bearer", secret="s", user="u")}, "auth.user: bearer has none"),
    ({"auth": EndpointAuth(secret="s")}, "auth.secret: none has none"),
    ({"auth": EndpointAuth(kind="oauth2", user="u", secret="s")}, "auth.token_url: oauth2 needs it"),
    ({"auth": EndpointAuth(kind="basic", user="a:b", secret="s")}, "auth.user: a user of basic has no colon"),
    ({"auth": EndpointAuth(kind="bearer", secret="a\r\nb")}, "auth.secret: it must be at most"),
    ({"auth": EndpointAuth(kind="bearer", secret="x" * 9_000)}, "auth.secret: it must be at most 8192"),
    ({"auth": EndpointAuth(kind="bearer", secret="ü")}, "auth.secret: a bearer token is ASCII"),
    ({"auth": EndpointAuth(kind="bearer", secret="a", secret_file="b")}, "auth.secret: it is given as a text and as a"),
    ({"auth": EndpointAuth(kind="bearer", secret_file="/etc/passwd")}, "auth.secret_file: files are named in the conf"),
    ({"tls": EndpointTls(ca_file="/etc/passwd")}, "tls.ca_file: files are named in the configuration file alone"),
    ({"tls": EndpointTls(cert_file="c", key_file="k")}, "tls.cert_file: files are named"),
    ({"tls": EndpointTls(key="k")}, "tls.key: a key without a certificate"),
    ({"tls": EndpointTls(cert=PEM)}, "tls.key: a certificate without a key"),
    ({"tls": EndpointTls(cert="-----BEGIN PRIVATE KEY-----", key="k")}, "tls.cert: there is a private key in it"),
    ({"tls": EndpointTls(ca="x" * 70_000)}, "tls.ca: 70000 characters, the limit is 65536"),
    ({"tls": EndpointTls(server_name="x" * 300)}, "tls.server_name: "),
    ({"tls": EndpointTls(server_name="a..b")}, "tls.server_name: 'a..b' is no host name"),
    ({"tls": EndpointTls(server_name="x" * 64 + ".example")}, "tls.server_name: "),
    ({"tls": EndpointTls(server_name="a b")}, "tls.server_name: "),
    ({"headers": {f"x-{number}": "1" for number in range(51)}}, "headers: 51 headers, the limit is 50"),
    ({"headers": {"x": "y" * 9_000}}, "headers: 9005 octets, the limit is 8192"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, "headers: a name is there twice"),
    ({"headers": {"a b": "1"}}, "headers: 'a b' is no name"),
    ({"headers": {"x": "a\r\nb"}}, "headers: the value of x is not plain"),
    ({"headers": {"x": " a"}}, "headers: the value of x is not plain"),
    *(
        ({"headers": {name: "1"}}, f"headers: {name} is not set here")
        for name in ("Host", "Content-Length", "content-type", "Authorization", "Cookie", "Transfer-Encoding",
                     "Webhook-Id", "webhook-signature", "Amqp-X", "ce-id", "Proxy-Authorization")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "why"), BAD, ids=[why for _, why in BAD])
def test_bad_ones(given: dict[str, Any], why: str) -> None:
    with pytest.raises(EncodeError) as error:
        check_endpoint(settings(**given), from_file=False)
    assert str(error.value).startswith(why)


def test_files_are_for_the_configuration_file() -> None:
    check_endpoint(
        settings(
            auth=EndpointAuth(kind="bearer", secret_file="s"),
            tls=EndpointTls(ca_file="a", cert_file="c", key_file="k"),
        ),
        from_file=True,
    )
    check_endpoint(settings(tls=EndpointTls(cert_file="both")), from_file=True)


def test_every_kind_of_auth_has_its_rule() -> None:
    kinds = next(field for field in msgspec.inspect.type_info(EndpointAuth).fields if field.name == "kind")  # type: ignore[attr-defined]
    assert set(AUTH) == set(kinds.type.values)


# ------------------------------------------------------------------------------------------------ secrets

FULL = settings(
    auth=OAUTH, tls=EndpointTls(cert=PEM, key="KEY"), headers={"X-Api-Key": "abc", "Accept": "x", "X-Plain": "7"}
)


def test_taken_out_and_put_back() -> None:
    shown, secrets = take_out(FULL)
    assert secrets == {"auth.secret": "s", "tls.key": "KEY", "headers.X-Api-Key": "abc", "headers.X-Plain": "7"}
    assert (shown.auth.secret, shown.tls.key, shown.headers) == (
        "",
        "",
        {"X-Api-Key": "", "Accept": "x", "X-Plain": ""},
    )
    assert put_back(shown, secrets) == FULL
    assert take_out(settings()) == (settings(), {})


def test_what_is_shown_can_be_put_again() -> None:
    shown, _ = take_out(FULL)
    assert keep_secrets(shown, FULL) == FULL
    assert keep_secrets(FULL, None) == FULL
    more = msgspec.structs.replace(shown, concurrency=3, url="https://hooks.example/other")
    assert keep_secrets(more, FULL) == msgspec.structs.replace(FULL, concurrency=3, url="https://hooks.example/other")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"url": "https://evil.example/in?a=b"}, "auth.secret"),
        ({"url": "http://hooks.example/in?a=b"}, "auth.secret"),
        ({"url": "https://hooks.example:8443/in"}, "auth.secret"),
        ({"auth": EndpointAuth(kind="oauth2", user="u", token_url="https://evil.example/token")}, "auth.secret"),
        ({"auth": EndpointAuth(kind="oauth2", user="other", token_url="https://id.example/token")}, "auth.secret"),
        ({"auth": EndpointAuth(kind="bearer")}, "auth.secret"),
        ({"tls": EndpointTls(cert=PEM + "other")}, "tls.key"),
    ],
)
def test_a_secret_does_not_move(change: dict[str, Any], path: str) -> None:
    shown = msgspec.structs.replace(take_out(FULL)[0], **change)
    with pytest.raises(EncodeError, match=f"{path}: it must be given again"):
        keep_secrets(shown, FULL)


def test_headers_do_not_move_either() -> None:
    before = settings(headers={"X-Api-Key": "abc"})
    shown = settings(url="https://evil.example/", headers={"X-Api-Key": ""})
    with pytest.raises(EncodeError, match=r"headers\.X-Api-Key: it must be given again"):
        keep_secrets(shown, before)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"auth": EndpointAuth(kind="bearer")}, "auth.secret"),
        ({"tls": EndpointTls(cert=PEM)}, "tls.key"),
        ({"headers": {"X-New": ""}}, "headers.X-New"),
    ],
)
def test_one_that_was_never_there(given: dict[str, Any], path: str) -> None:
    for before in (None, settings()):
        with pytest.raises(EncodeError, match=f"{path}: it is missing"):
            keep_secrets(settings(**given), before)


def test_a_url_that_is_none_is_said_first() -> None:
    with pytest.raises(EncodeError, match=r"^url: "):
        keep_secrets(settings(url="nonsense", auth=EndpointAuth(kind="bearer")), FULL)
