"""What is wrong with the settings of an endpoint taken together, and which of them are secrets.

Secrets are taken out of the settings before they are shown or stored, and put back when they are read: what is shown
has an empty text in place of each. Settings that are put with such an empty text keep the secret that is there, as long
as it would still go to the same place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from gateway.config import EndpointAuth, EndpointSettings
from gateway.errors import EncodeError
from gateway.outbound.addresses import parse_address
from gateway.outbound.hosts import normal_host, split_url
from gateway.outbound.requests import OURS
from gateway.webhooks.attempts.forms import BATCHED

HEADERS_MAX: Final = 50
"""Most headers of an endpoint."""
HEADERS_OCTETS: Final = 8_192
"""Most octets of them, names and values."""
PEM_MAX: Final = 65_536
"""Longest text of certificates or of a key, in characters."""
TEXT_MAX: Final = 2_048
"""Longest of the other texts, in characters."""
SECRET_MAX: Final = 8_192
"""Longest password, token or client secret, in characters."""
ATTEMPTS_MAX: Final = 100
"""Most attempts of a schedule."""

SHOWN_HEADERS: Final = frozenset(
    {
        "accept",
        "accept-language",
        "cache-control",
        "content-language",
        "from",
        "origin",
        "prefer",
        "priority",
        "referer",
    }
)
"""Headers whose values are known to be no secrets."""
RESERVED_HEADERS: Final = frozenset(
    {"authorization", "content-type", "content-encoding", "cookie", *(name.decode() for name in OURS)}
)
"""Headers that the form, ``auth`` or the transport set, or that nobody sets."""
RESERVED_PREFIXES: Final = ("amqp-", "ce-", "webhook-")

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VISIBLE: Final = re.compile(r"[ -~\t]*")
_REFERENCE: Final = re.compile(r"[!#-;=?-\[\]_a-z~]*")
"""What may stand in a URI reference (RFC 3986), written loosely."""


class AuthRule(msgspec.Struct, frozen=True):
    """What a kind of ``auth`` needs; what it does not name must be empty."""

    needs: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()


AUTH: Mapping[str, AuthRule] = {
    "none": AuthRule(),
    "basic": AuthRule(("user", "secret")),
    "bearer": AuthRule(("secret",)),
    "oauth2": AuthRule(("user", "secret", "token_url"), ("scope",)),
}
FILES: Final = ("auth.secret_file", "tls.ca_file", "tls.cert_file", "tls.key_file")
"""Settings that only the configuration file may have."""
_PAIRS: Final = (("auth", "secret"), ("tls", "ca"), ("tls", "cert"), ("tls", "key"))
"""A text, or the file that holds it."""


def check_endpoint(settings: EndpointSettings, *, from_file: bool) -> None:
    """Whether an endpoint can have these settings, as far as that can be told without looking anywhere.

    Raises:
        EncodeError: the text begins with the setting's name.
    """
    for wrong in _wrong(settings, from_file):
        raise EncodeError(wrong)


def _wrong(settings: EndpointSettings, from_file: bool) -> Iterator[str]:
    for rule in _RULES:
        yield from rule(settings)
    if not from_file:
        for path in FILES:
            table, _, name = path.partition(".")
            if getattr(getattr(settings, table), name):
                yield f"{path}: files are named in the configuration file alone; put the text itself"


def _urls(settings: EndpointSettings) -> Iterator[str]:
    for name, url in (("url", settings.url), ("auth.token_url", settings.auth.token_url)):
        if url or name == "url":
            try:
                split_url(url)
            except EncodeError as error:
                yield f"{name}: {error}"


def _forms(settings: EndpointSettings) -> Iterator[str]:
    if settings.batch_max > 1 and settings.format not in BATCHED:
        yield f"batch_max: the format {settings.format} carries one message, not {settings.batch_max}"
    if settings.reply and settings.batch_max > 1:
        yield f"reply: an answer belongs to one message, and batch_max is {settings.batch_max}"
    if len(set(settings.signing)) != len(settings.signing):
        yield f"signing: {', '.join(settings.signing)}: each scheme once"
    if len(settings.schedule) > ATTEMPTS_MAX:
        yield f"schedule: {len(settings.schedule)} attempts, the limit is {ATTEMPTS_MAX}"
    if len(settings.source) > TEXT_MAX or not _REFERENCE.fullmatch(settings.source):
        yield f"source: it must be a URI reference of at most {TEXT_MAX} characters"
    if len(settings.event_type) > TEXT_MAX or not settings.event_type.isprintable():
        yield f"event_type: it must be at most {TEXT_MAX} printable characters"


def _auth(settings: EndpointSettings) -> Iterator[str]:
    auth = settings.auth
    rule = AUTH[auth.kind]
    for name in ("user", "secret", "token_url", "scope"):
        given = getattr(auth, name) or (name == "secret" and auth.secret_file)
        if name in rule.needs and not given:
            yield f"auth.{name}: {auth.kind} needs it"
        if given and name not in (*rule.needs, *rule.allows):
            yield f"auth.{name}: {auth.kind} has none"
    if auth.kind == "basic" and ":" in auth.user:
        yield "auth.user: a user of basic has no colon (RFC 7617)"
    for name, most in (("user", TEXT_MAX), ("secret", SECRET_MAX), ("scope", TEXT_MAX)):
        text = getattr(auth, name)
        if len(text) > most or not text.isprintable():
            yield f"auth.{name}: it must be at most {most} printable characters"
    if auth.kind == "bearer" and not auth.secret.isascii():
        yield "auth.secret: a bearer token is ASCII (RFC 6750)"


def _tls(settings: EndpointSettings) -> Iterator[str]:
    tls = settings.tls
    for table, name in _PAIRS:
        if getattr(getattr(settings, table), name) and getattr(getattr(settings, table), f"{name}_file"):
            yield f"{table}.{name}: it is given as a text and as a file"
    for name in ("ca", "cert", "key"):
        text = getattr(tls, name)
        if len(text) > PEM_MAX:
            yield f"tls.{name}: {len(text)} characters, the limit is {PEM_MAX}"
        if name != "key" and "PRIVATE KEY" in text:
            yield f"tls.{name}: there is a private key in it, which is shown to nobody only in tls.key"
    if (tls.key or tls.key_file) and not (tls.cert or tls.cert_file):
        yield "tls.key: a key without a certificate"
    if tls.cert and not (tls.key or tls.key_file):
        yield "tls.key: a certificate without a key"
    if tls.server_name and parse_address(tls.server_name) is None:
        try:
            normal_host(tls.server_name)
        except EncodeError:
            yield f"tls.server_name: {tls.server_name[:80]!r} is no host name"


def _headers(settings: EndpointSettings) -> Iterator[str]:
    headers = settings.headers
    if len(headers) > HEADERS_MAX:
        yield f"headers: {len(headers)} headers, the limit is {HEADERS_MAX}"
    size = sum(len(name) + len(value) + 4 for name, value in headers.items())
    if size > HEADERS_OCTETS:
        yield f"headers: {size} octets, the limit is {HEADERS_OCTETS}"
    if len({name.lower() for name in headers}) != len(headers):
        yield "headers: a name is there twice"
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            yield f"headers: {name[:80]!r} is no name of a header"
        elif name.lower() in RESERVED_HEADERS or name.lower().startswith(RESERVED_PREFIXES):
            yield f"headers: {name} is not set here"
        elif not _VISIBLE.fullmatch(value) or value != value.strip():
            yield f"headers: the value of {name} is not plain ASCII, or has spaces around it"


_RULES: Final[Sequence[Callable[[EndpointSettings], Iterator[str]]]] = (_urls, _forms, _auth, _tls, _headers)


# ----------------------------------------------------------------------------------------------- secrets


def take_out(settings: EndpointSettings) -> tuple[EndpointSettings, dict[str, str]]:
    """The settings without their secrets, and the secrets by where they were."""
    secrets = {}
    if settings.auth.secret:
        secrets["auth.secret"] = settings.auth.secret
    if settings.tls.key:
        secrets["tls.key"] = settings.tls.key
    for name, value in settings.headers.items():
        if value and name.lower() not in SHOWN_HEADERS:
            secrets[f"headers.{name}"] = value
    return _with(settings, dict.fromkeys(secrets, "")), secrets


def take_out_urls(settings: EndpointSettings) -> tuple[EndpointSettings, dict[str, str]]:
    """The settings with nothing but the sites of their URLs, and those URLs that have more than that by where they
    were: for where they are stored. They are shown whole to who may see the endpoint."""
    urls = {}
    for path, url in (("url", settings.url), ("auth.token_url", settings.auth.token_url)):
        if url and url != (site := str(split_url(url)[0])):
            urls[path] = (site, url)
    shown = _with(settings, {path: site for path, (site, _) in urls.items()})
    return shown, {path: url for path, (_, url) in urls.items()}


def put_back(settings: EndpointSettings, secrets: Mapping[str, str]) -> EndpointSettings:
    """The reverse."""
    return _with(settings, secrets)


def keep_secrets(settings: EndpointSettings, before: EndpointSettings | None) -> EndpointSettings:
    """The settings as they were put, with secrets of the present ones where they have an empty text.

    Raises:
        EncodeError: one is missing: there is none to keep, or it would go somewhere else than before.
    """
    for wrong in _urls(settings):
        raise EncodeError(wrong)
    kept, missing = {}, ""
    for path, wanted in _wanted(settings):
        if not wanted:
            continue
        found = take_out(before)[1].get(path) if before is not None else None
        if found is None:
            missing = missing or f"{path}: it is missing"
        elif not _same_place(path, settings, before):
            missing = missing or f"{path}: it must be given again, because what it is for was changed"
        else:
            kept[path] = found
    if missing:
        raise EncodeError(missing)
    return _with(settings, kept)


def _wanted(settings: EndpointSettings) -> Iterator[tuple[str, bool]]:
    """Where a secret may be, and whether it is not there although it should be."""
    auth, tls = settings.auth, settings.tls
    yield "auth.secret", "secret" in AUTH[auth.kind].needs and not auth.secret and not auth.secret_file
    yield "tls.key", bool(tls.cert) and not tls.key and not tls.key_file
    for name, value in settings.headers.items():
        yield f"headers.{name}", not value and name.lower() not in SHOWN_HEADERS


def _same_place(path: str, settings: EndpointSettings, before: EndpointSettings | None) -> bool:
    """Whether a secret of the settings before goes with the new ones to where it went before, and as before."""
    if before is None or split_url(settings.url)[0] != split_url(before.url)[0]:
        return False
    if path == "tls.key":
        return settings.tls.cert == before.tls.cert
    return path != "auth.secret" or _who(settings.auth) == _who(before.auth)


def _who(auth: EndpointAuth) -> tuple[str, str, str]:
    return auth.kind, auth.user, auth.token_url


def _with(settings: EndpointSettings, secrets: Mapping[str, str]) -> EndpointSettings:
    changed: dict[str, Any] = {}
    for path, value in secrets.items():
        table, _, name = path.partition(".")
        if not name:
            changed[table] = value
        elif table == "headers":
            changed["headers"] = {**changed.get("headers", settings.headers), name: value}
        else:
            changed[table] = msgspec.structs.replace(changed.get(table, getattr(settings, table)), **{name: value})
    return msgspec.structs.replace(settings, **changed)
