"""Brokers as the ledger keeps them: which settings are secrets, and what they are sealed for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.config import BrokerSettings, TlsSettings, check_broker
from gateway.core import broker_documents as documents
from gateway.core.broker_documents import (
    check_put,
    keep_secrets,
    normal_form,
    purpose_of_broker,
    put_back,
    take_out,
)
from gateway.errors import EncodeError

CERTIFICATE = "-----BEGIN CERTIFICATE-----"
TLS = TlsSettings(cert=CERTIFICATE, key="a key")


@pytest.mark.parametrize(
    ("url", "shown", "password"),
    [
        ("amqp://shop:secret@h:1/v?version=0-8", "amqp://shop@h:1/v?version=0-8", "secret"),
        ("amqp://shop:a%2Fb%25@[::1]/", "amqp://shop@[::1]/", "a/b%"),
        ("amqp://a%40b:secret@h/", "amqp://a%40b@h/", "secret"),
        ("amqp://:secret@h/", "amqp://@h/", "secret"),
        ("amqp://shop@h/", "amqp://shop@h/", ""),
        ("amqp://shop:@h/", "amqp://shop:@h/", ""),
        ("amqp://h/", "amqp://h/", ""),
    ],
)
def test_the_password_leaves_the_url(url: str, shown: str, password: str) -> None:
    found = normal_form(BrokerSettings(url=url))
    assert (found.url, found.password) == (shown, password)
    assert normal_form(found) == found


def test_secrets_are_taken_out_and_put_back() -> None:
    settings = BrokerSettings(url="amqps://shop@h/", password="secret", tls=TLS)
    shown, secrets = take_out(settings)
    assert secrets == {"password": "secret", "tls.key": "a key"}
    assert "secret" not in str(shown)
    assert put_back(shown, secrets) == settings
    assert purpose_of_broker("a", shown) == purpose_of_broker("a", settings) != purpose_of_broker("b", shown)


def test_a_purpose_names_every_place() -> None:
    settings = BrokerSettings(url="amqp://shop@h/")
    others = [
        {"url": "amqps://shop@h/"}, {"url": "amqp://other@h/"}, {"url": "amqp://shop@other/"},
        {"url": "amqp://shop@h:1/"}, {"hosts": ("b",)}, {"redirect_hosts": ("b",)}, {"mechanisms": ("PLAIN",)},
        {"allow_plain_without_tls": True}, {"tls": TlsSettings(ca="x")}, {"tls": TlsSettings(server_name="x")},
        {"tls": TlsSettings(dangerous_disable_verification=True)}, {"management": "http://h:15672"},
        {"management": "http://other@h:15672"},
    ]  # fmt: skip
    purposes = {purpose_of_broker("a", msgspec.structs.replace(settings, **each)) for each in [{}, *others]}
    assert len(purposes) == len(others) + 1
    same = msgspec.structs.replace(settings, heartbeat=1.0, url="amqp://shop@h/other")
    assert purpose_of_broker("a", same) == purpose_of_broker("a", settings)


def test_a_key_stays_with_its_certificate() -> None:
    before = BrokerSettings(url="amqps://shop@h/", tls=TLS)
    kept = keep_secrets(msgspec.structs.replace(before, tls=TlsSettings(cert=CERTIFICATE)), before)
    assert kept.tls.key == "a key"
    with pytest.raises(EncodeError, match=r"^tls.key: it must be given again"):
        keep_secrets(msgspec.structs.replace(before, tls=TlsSettings(cert="another")), before)
    assert keep_secrets(BrokerSettings(url="amqps://shop@h/"), before).tls == TlsSettings()
    assert keep_secrets(before, None) == before


def test_the_password_of_the_management_api_is_a_secret() -> None:
    settings = BrokerSettings(url="amqp://shop@h/", management="https://watcher:a%2Fb@h:15672/api")
    shown, secrets = take_out(settings)
    assert (shown.management, secrets) == ("https://watcher@h:15672/api", {"management": settings.management})
    assert put_back(shown, secrets) == settings
    assert keep_secrets(shown, settings) == settings
    for other in ("https://watcher@elsewhere:15672/api", "https://another@h:15672/api", ""):
        changed = msgspec.structs.replace(shown, management=other)
        assert keep_secrets(changed, settings) == changed, "the password goes nowhere else"


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"url": "amqp://a:b@h/", "password": "c"}, "password: the URL has another one"),
        ({"password": "c", "password_file": "f"}, "password: it is given as a text and as a file"),
        ({"tls": TlsSettings(ca="x", ca_file="y")}, "tls.ca: it is given as a text and as a file"),
        ({"tls": TlsSettings(ca="\u00e9")}, "tls.ca: PEM is ASCII"),
        ({"tls": TlsSettings(cert="PRIVATE KEY", key="k")}, "tls.cert: there is a private key in it"),
        ({"tls": TlsSettings(key="k")}, "tls.key: a key without a certificate"),
        ({"hosts": ("a/b",)}, "hosts: host 'a/b'"),
        ({"reconnect_min": 5.0, "reconnect_max": 1.0}, "reconnect_max is 1, less than reconnect_min = 5"),
        ({"url": "x"}, "url: broker URL: scheme"),
        ({"management": "x"}, "management: management URL: scheme"),
    ],
)
def test_what_is_wrong_anywhere(settings: dict[str, object], wrong: str) -> None:
    made = BrokerSettings(**{"url": "amqp://a@h/", **settings})  # type: ignore[arg-type]
    found = check_broker(made)
    assert found is not None
    assert found.startswith(wrong)
    with pytest.raises(EncodeError):
        check_put(made)
    assert check_broker(BrokerSettings(url="amqp://a:b@h/", password="b")) is None


def test_what_is_right_may_be_put() -> None:
    check_put(BrokerSettings(url="amqp://a@h/"))
    check_put(BrokerSettings(url="amqps://a@h/", tls=TLS))


def test_a_certificate_is_put_with_its_key() -> None:
    with pytest.raises(EncodeError, match=r"^tls.key: a certificate without a key"):
        check_put(BrokerSettings(url="amqps://a@h/", tls=TlsSettings(cert=CERTIFICATE)))


@pytest.mark.parametrize(
    "change",
    [
        {"url": "amqps://shop@elsewhere/"},
        {"url": "amqps://other@h/"},
        {"hosts": ("elsewhere",)},
        {"tls": TlsSettings(cert=CERTIFICATE, server_name="elsewhere")},
    ],
)
def test_no_secret_goes_anywhere_else(change: dict[str, Any]) -> None:
    """Who may change a broker must know its secrets to have them sent to another place."""
    before = BrokerSettings(url="amqps://shop@h/", password="secret", tls=TLS)
    bare = msgspec.structs.replace(before, password="", tls=TlsSettings(cert=CERTIFICATE))
    assert keep_secrets(bare, before) == before
    cases: list[tuple[dict[str, Any], str]] = [({}, "password"), ({"password": "new"}, "tls.key")]
    for given, missing in cases:
        with pytest.raises(EncodeError, match=rf"^{missing}: it must be given again"):
            keep_secrets(msgspec.structs.replace(bare, **{**change, **given}), before)
    tls = msgspec.structs.replace(change.get("tls", bare.tls), key="another key")
    all_given = msgspec.structs.replace(bare, **{**change, "password": "new", "tls": tls})
    assert keep_secrets(all_given, before) == all_given


def test_a_secret_that_is_given_does_not_keep_another_from_being_kept() -> None:
    before = BrokerSettings(
        url="amqps://shop@h/", password="secret", tls=TLS, management="https://watcher:word@h:15672/api"
    )
    shown = take_out(before)[0]
    found = keep_secrets(msgspec.structs.replace(shown, password="new"), before)
    assert (found.password, found.tls.key, found.management) == ("new", "a key", before.management)


def test_a_new_certificate_needs_the_password_again() -> None:
    """It decides which server the password goes to."""
    before = BrokerSettings(url="amqps://shop@h/", password="secret")
    with pytest.raises(EncodeError, match=r"^password: it must be given again"):
        keep_secrets(msgspec.structs.replace(before, password="", tls=TLS), before)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("password", documents.SECRET_MAX),
        ("management", documents.TEXT_MAX),
        ("realm", documents.TEXT_MAX),
        ("tls.ca", documents.PEM_MAX),
        ("tls.server_name", documents.TEXT_MAX),
    ],
)
def test_texts_are_bounded(name: str, limit: int) -> None:
    def made(size: int) -> BrokerSettings:
        start = "http://h/" if name == "management" else ""
        text = start + "x" * (size - len(start))
        if name.startswith("tls."):
            tls: dict[str, Any] = {name[4:]: text}
            return BrokerSettings(url="amqps://a@h/", tls=TlsSettings(**tls))
        settings: dict[str, Any] = {"url": "amqp://a@h/", name: text}
        return BrokerSettings(**settings)

    assert f"{name}: {limit + 1} characters, the limit is {limit}" in problem(made(limit + 1))
    assert "the limit" not in problem(made(limit))  # it may be no PEM, and no host


def problem(settings: BrokerSettings) -> str:
    """Why settings may not be put; empty: they may."""
    try:
        check_put(settings)
    except EncodeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["hosts", "redirect_hosts"])
def test_lists_are_bounded(name: str) -> None:
    def found(*entries: str) -> str:
        return problem(BrokerSettings(**{"url": "amqp://a@h/", name: entries}))  # type: ignore[arg-type]

    assert found(*["h"] * documents.HOSTS_MAX) == ""
    for entries in (["h"] * (documents.HOSTS_MAX + 1), ["h", "x" * (documents.TEXT_MAX + 1)]):
        assert found(*entries).startswith(f"{name}: at most {documents.HOSTS_MAX} entries")
    assert "at most" not in found("x" * documents.TEXT_MAX)
