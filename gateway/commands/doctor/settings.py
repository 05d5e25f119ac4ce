"""The configuration: the file, the variables, and what only all of it together tells.

The service stops at the first thing that is wrong. Here everything is checked, so that you can correct a file in one
go: names that are no setting, with the nearest one that is; then values, each alone; then the whole.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import inspect

from gateway.commands.doctor.findings import Report
from gateway.config import ENVIRONMENT, Config, load
from gateway.errors import ConfigurationError
from gateway.validation import closest, explain, place_of

VARIABLES: Final = frozenset(
    {"GATEWAY_API_KEY", "GATEWAY_CA", "GATEWAY_CERT", "GATEWAY_CONFIG", "GATEWAY_KEY", "GATEWAY_URL"}
)
"""Variables of the command line, beside those of settings."""
HEADER_SECRET: Final = 8
"""A header of an endpoint whose value has fewer characters holds no secret."""
KEY_LINE: Final = 40
"""A line of ``ledger.secrets_file`` has more characters than this; what has fewer is no key."""
_LINKS: Final = re.compile(r"GATEWAY(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""Variables that Kubernetes makes for a service whose name begins with ``gateway``."""
_FILE_MISSING: Final = "Name it with --config or GATEWAY_CONFIG; without one the gateway is a development tool."


def examine(
    report: Report, path: str | None, environ: Mapping[str, str], overrides: Mapping[str, Any]
) -> Config | None:
    """The configuration, None where it cannot be used."""
    where = path or "no file"
    document = _read(report, path) if path is not None else {}
    if document is None:
        return None
    known = _variables(report, environ)
    wrong = [*_unknown(report, document, where), *_values(report, document, where)]
    if wrong or not known:
        return None
    try:
        config = load(path, dict(environ), dict(overrides))
    except ConfigurationError as error:
        text = str(error).removeprefix(f"{path}: ")
        report.fail(
            "config.rule", where, text, do="Correct the setting that it names: docs/reference/settings.md has them all."
        )
        return None
    report.ok("config.file", where, _summary(config) if path else "development: the embedded broker, on loopback")
    if path is not None:
        _rights(report, path, config)
    return config


def _read(report: Report, path: str) -> dict[str, Any] | None:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        found = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        report.fail("config.file", path, "there is no such file", do=_FILE_MISSING)
    except OSError as error:
        who = f" by user {os.geteuid()}" if hasattr(os, "geteuid") else ""
        report.fail("config.file", path, f"it cannot be read{who}: {error.strerror}", do="Correct its rights.")
    except UnicodeDecodeError as error:
        report.fail("config.file", path, f"it is not UTF-8, at octet {error.start}", do="Save it as UTF-8.")
    except ValueError as error:
        kind = "JSON" if Path(path).suffix == ".json" else "TOML"
        report.fail(
            "config.file", path, f"it is no {kind}: {error}", do="Correct that line: texts stand in quotation marks."
        )
    else:
        if isinstance(found, dict):
            return found
        report.fail("config.file", path, "it is no object of JSON", do="It must begin with {.")
    return None


# --------------------------------------------------------------------------------------------------- names


def _unknown(report: Report, document: dict[str, Any], file: str) -> Iterator[str]:
    """Names that are no setting; they are taken out of the document."""
    for table, place, name in list(_walk(document, inspect.type_info(Config), "")):
        known = [field.encode_name for field in table.fields]
        close = closest(name, known)
        elsewhere = HOMES.get(name, ())
        if close:
            do = f"Write {close}."
        elif elsewhere:
            do = f"It belongs to {' or '.join(elsewhere[:3])}."
        else:
            do = f"Take it out. {place or 'The top of the file'} has: {', '.join(known)}."
        dotted = f"{place}.{name}" if place else name
        report.fail(
            "config.unknown", f"{file}: {dotted}", f"there is no setting {dotted}",
            why="A misspelt setting would silently be its default, so the gateway does not start.", do=do,
        )  # fmt: skip
        yield dotted


def _walk(value: Any, kind: inspect.Type, place: str) -> Iterator[tuple[inspect.StructType, str, str]]:
    match kind:
        case inspect.StructType(fields=fields) if isinstance(value, dict):
            types = {field.encode_name: field.type for field in fields}
            for name in list(value):
                if name in types:
                    yield from _walk(value[name], types[name], f"{place}.{name}" if place else name)
                else:
                    del value[name]
                    yield kind, place, name
        case inspect.DictType(value_type=inner) if isinstance(value, dict):
            for name, each in value.items():
                yield from _walk(each, inner, f"{place}.{name}")
        case inspect.VarTupleType(item_type=inner) if isinstance(value, list):
            for number, each in enumerate(value):
                yield from _walk(each, inner, f"{place}[{number}]")


def _homes(kind: inspect.Type, place: str, found: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    match kind:
        case inspect.StructType(fields=fields):
            for field in fields:
                if place:
                    found[field.encode_name] = (*found.get(field.encode_name, ()), f"[{place}]")
                _homes(field.type, f"{place}.{field.encode_name}" if place else field.encode_name, found)
        case inspect.DictType(value_type=inspect.StructType() as inner):
            _homes(inner, f"{place}.NAME", found)
        case inspect.VarTupleType(item_type=inspect.StructType() as inner):
            _homes(inner, place, found)
    return found


HOMES: Final = _homes(inspect.type_info(Config), "", {})
"""Name of a setting -> the tables that have it."""


# -------------------------------------------------------------------------------------------------- values


def _values(report: Report, document: dict[str, Any], file: str) -> Iterator[str]:
    """Values that do not fit, table by table and entry by entry."""
    for name, value in document.items():
        for number, part in _parts(value):
            try:
                msgspec.convert({name: part}, Config)
            except msgspec.ValidationError as error:
                misfit = explain(error, {name: part}, Config, what="setting")
                path = misfit.path
                place = place_of((*path[:1], number, *path[2:]) if isinstance(part, list) and path[1:] else path)
                report.fail(
                    "config.value", f"{file}: {place}", misfit.detail,
                    do="Correct the value: docs/reference/settings.md has its form.",
                )  # fmt: skip
                yield place


def _parts(value: Any) -> Iterator[tuple[int, Any]]:
    """A table in pieces that stand for themselves: entries of a table of tables, items of a list, settings. With each
    its number."""
    if isinstance(value, dict) and value:
        yield from enumerate({key: each} for key, each in value.items())
    elif isinstance(value, list) and value:
        yield from enumerate([each] for each in value)
    else:
        yield 0, value


def _variables(report: Report, environ: Mapping[str, str]) -> bool:
    """Whether every variable that is a setting can be used."""
    settings = {each for name in ENVIRONMENT for each in (name, f"{name}_FILE")}
    fit = True
    for name in sorted(environ):
        if name in settings:
            try:
                load(None, {name: environ[name]})
            except ConfigurationError as error:
                fit = False
                _variable_wrong(report, name, environ[name], str(error))
            continue
        if not name.startswith("GATEWAY_") or name in VARIABLES or _LINKS.fullmatch(name):
            continue
        close = get_close_matches(name, [*settings, *VARIABLES], 1, 0.8)
        if close:
            report.warn(
                "config.variable", name, "the gateway knows no such variable",
                why="It is passed over, and the setting keeps its default.", do=f"{close[0]} may be meant.",
            )  # fmt: skip
    return fit


def _variable_wrong(report: Report, name: str, value: str, said: str) -> None:
    text = said.removeprefix("configuration: ").removeprefix(f"{name}: ")
    if value.startswith(("tcp://", "udp://")) and _LINKS.fullmatch(name):
        report.fail(
            "config.variable", name, text, why="Kubernetes made this variable for a service of that name.",
            do="Set enableServiceLinks: false in the pod's specification, or name the service otherwise.",
        )  # fmt: skip
    else:
        report.fail("config.variable", name, text, do="Correct the variable, or take it away.")


# --------------------------------------------------------------------------------------------------- whole


def _summary(config: Config) -> str:
    parts = [f"role {config.role}"]
    for name in ("brokers", "subscriptions", "bridges", "taps", "endpoints", "api_keys"):
        if number := len(getattr(config, name)):
            kind = name.replace("_", " ")
            parts.append(f"{number} {kind.removesuffix('s') if number == 1 else kind}")
    return "it can be used: " + ", ".join(parts)


def _rights(report: Report, path: str, config: Config) -> None:
    """A file that holds secrets is nobody else's to read."""
    if os.stat(path).st_mode & 0o004 and any(_in_the_file(config)):
        report.warn(
            "config.rights", path, "everybody on this machine can read it, and there are secrets in it",
            do=f"chmod 640 {path}, and have it belong to the gateway's group; or put the secrets into files of their "
            "own (password_file, key_file, secret_file).",
        )  # fmt: skip


def _in_the_file(config: Config) -> Iterator[bool]:
    yield any(password_in(broker.url) and not broker.password_file for broker in config.brokers.values())
    yield any(password_in(broker.management) for broker in config.brokers.values())
    yield any(broker.password or broker.tls.key for broker in config.brokers.values())
    yield any(key.key for key in config.api_keys)
    yield any(endpoint.auth.secret or endpoint.tls.key for endpoint in config.endpoints.values())


def password_in(url: str) -> str:
    """The password of a URL as it is written there; empty: there is none."""
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _urls(config: Config) -> Iterator[str]:
    """All URLs that may hold a login."""
    yield config.ledger.url
    for broker in config.brokers.values():
        yield from (broker.url, broker.management)


def secrets_of(config: Config) -> Iterator[str]:
    """All secrets that the configuration holds itself, as they are written and as they are meant."""
    for url in _urls(config):
        yield password_in(url)
        yield unquote(password_in(url))
    for broker in config.brokers.values():
        yield from (broker.password, broker.tls.key, _text_of(broker.password_file))
    for key in config.api_keys:
        yield key.key
        yield _text_of(key.key_file)
    for endpoint in config.endpoints.values():
        yield from (endpoint.auth.secret, _text_of(endpoint.auth.secret_file), endpoint.tls.key)
        yield from (value for value in endpoint.headers.values() if len(value) >= HEADER_SECRET)
    for user in config.embedded.users:
        yield user.password
    for front in config.fronts.values():
        for each in front.users:
            yield from (each.password, _text_of(each.password_file))
    yield _text_of(config.cluster.secret_file)
    yield from (line for line in _text_of(config.ledger.secrets_file).split() if len(line) >= KEY_LINE)


def secrets_in(path: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """Texts of a file that cannot be used, and of variables, that may be secrets: passwords of URLs, and every value
    under a name for secrets."""
    text = _text_of(path or "") + "\n".join(f'{name} = "{environ[name]}"' for name in environ if "GATEWAY" in name)
    yield from re.findall(r"://[^/\s:@\"']*:([^/\s@\"']+)@", text)
    yield from re.findall(
        r"\b(?:key|password|secret|authorization)[\"']?\s*[:=]\s*[\"']([^\"'\n]+)", text, re.IGNORECASE
    )


def users_of(config: Config) -> Iterator[str]:
    """Names that are no secrets."""
    for url in _urls(config):
        try:
            yield urlsplit(url).username or "guest"
        except ValueError:
            continue
    yield from (user.name for user in config.embedded.users)
    yield from (user.name for front in config.fronts.values() for user in front.users)
    yield from ("gateway", "postgres")


def _text_of(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
