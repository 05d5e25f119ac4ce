"""What the ledger keeps of a broker that was put over HTTP, and which of its settings are secrets.

The document is the settings without their secrets, and the secrets sealed as one text. They are sealed for the places
that they go to, so that nobody who can write to the database has them sent to somebody else. Settings that are put
without a secret keep the one that is there, as long as it would still go to the same places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from gateway.config import BrokerSettings, check_broker, parse_broker_url, parse_management_url
from gateway.errors import ConfigurationError, EncodeError

BROKER_RESOURCE: Final = "broker"
"""The kind of resource."""
FILES: Final = ("password_file", "tls.ca_file", "tls.cert_file", "tls.key_file")
"""Settings that only the configuration file may have."""
SECRET_MAX: Final = 8_192
"""Longest password, in characters."""
PEM_MAX: Final = 65_536
"""Longest text of certificates or of a key, in characters."""
TEXT_MAX: Final = 2_048
"""Longest of the other texts, in characters."""
HOSTS_MAX: Final = 64
"""Most entries of a list."""


class BrokerDocument(msgspec.Struct):
    """The document ``broker``."""

    settings: BrokerSettings
    sealed: str = ""
    """Its secrets: JSON, path -> text."""


def check_put(settings: BrokerSettings) -> None:
    """Check whether a broker that is put over HTTP can have these settings, as far as that can be told without looking
    anywhere.

    Raises:
        EncodeError: the text begins with the setting's name.
    """
    for path in FILES:
        if _at(settings, path):
            raise EncodeError(f"{path}: files are named in the configuration file alone; put the text itself")
    for path in ("tls.ca", "tls.cert", "tls.key", "password", "url", "management", "realm", "tls.server_name"):
        most = {"password": SECRET_MAX}.get(path, PEM_MAX if path in ("tls.ca", "tls.cert", "tls.key") else TEXT_MAX)
        if (size := len(_at(settings, path))) > most:
            raise EncodeError(f"{path}: {size} characters, the limit is {most}")
    for name in ("hosts", "redirect_hosts", "mechanisms"):
        entries = getattr(settings, name)
        if len(entries) > HOSTS_MAX or any(len(entry) > TEXT_MAX for entry in entries):
            raise EncodeError(f"{name}: at most {HOSTS_MAX} entries, of at most {TEXT_MAX} characters each")
    if (wrong := check_broker(settings)) is not None:
        raise EncodeError(wrong)
    if settings.tls.cert and not settings.tls.key:
        raise EncodeError("tls.key: a certificate without a key")


def normal_form(settings: BrokerSettings) -> BrokerSettings:
    """The settings with the password of the URL, where it has one, under ``password``.

    Raises:
        EncodeError: the URL is wrong, or there are two passwords.
    """
    if (wrong := check_broker(settings)) is not None:
        raise EncodeError(wrong)
    if (url := _without_password(settings.url)) == settings.url:
        return settings
    return msgspec.structs.replace(settings, url=url, password=parse_broker_url(settings.url).password)


def _without_password(url: str) -> str:
    """A URL as it is shown: with its user, and without a password."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}@{place}"))


def take_out(settings: BrokerSettings) -> tuple[BrokerSettings, dict[str, str]]:
    """The settings without their secrets, and the secrets by where they were."""
    settings = normal_form(settings)
    secrets = {path: text for path in ("password", "tls.key") if (text := _at(settings, path))}
    shown = dict.fromkeys(secrets, "")
    if (url := _without_password(settings.management)) != settings.management:
        secrets["management"], shown["management"] = settings.management, url
    return _with(settings, shown), secrets


def put_back(settings: BrokerSettings, secrets: Mapping[str, str]) -> BrokerSettings:
    """The reverse."""
    return _with(settings, secrets)


def keep_secrets(settings: BrokerSettings, before: BrokerSettings | None) -> BrokerSettings:
    """The settings as they were put, in normal form, with secrets of the present ones where they have none.

    Raises:
        EncodeError: a secret is missing: it would go somewhere else than before.
    """
    settings = normal_form(settings)
    kept = {}
    for path, text in (take_out(before)[1] if before is not None else {}).items():
        assert before is not None
        if path == "management":
            if settings.management == _without_password(before.management):
                kept[path] = text
            continue
        if _at(settings, path) or (path == "tls.key" and not settings.tls.cert):
            continue
        if places_of(settings) != places_of(before) or (path == "tls.key" and settings.tls.cert != before.tls.cert):
            raise EncodeError(f"{path}: it must be given again, because what it is for was changed")
        kept[path] = text
    return _with(settings, kept)


def places_of(settings: BrokerSettings) -> list[Any]:
    """What decides where the secrets go, and how."""
    tls = settings.tls
    try:
        url = parse_broker_url(settings.url)
        management = parse_management_url(settings.management) if settings.management else None
    except ConfigurationError as error:
        raise EncodeError(str(error)) from None
    return [
        url.secure, url.host, url.port, url.user, list(settings.hosts), list(settings.redirect_hosts),
        list(settings.mechanisms), settings.allow_plain_without_tls, tls.ca, tls.server_name, tls.cert,
        tls.dangerous_disable_verification, *([management.base, management.user] if management is not None else []),
    ]  # fmt: skip


def purpose_of_broker(name: str, settings: BrokerSettings) -> str:
    """What the secrets of a broker are sealed for."""
    return f"broker {msgspec.json.encode([name, *places_of(settings)]).decode()}"


def _at(settings: BrokerSettings, path: str) -> str:
    table, _, name = path.rpartition(".")
    found: str = getattr(settings.tls if table else settings, name)
    return found


def _with(settings: BrokerSettings, secrets: Mapping[str, str]) -> BrokerSettings:
    tls = {path.removeprefix("tls."): text for path, text in secrets.items() if path.startswith("tls.")}
    own = {path: text for path, text in secrets.items() if "." not in path}
    return msgspec.structs.replace(settings, **own, tls=msgspec.structs.replace(settings.tls, **tls))
