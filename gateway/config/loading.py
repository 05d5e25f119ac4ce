"""Reading the configuration: file, environment, options; and what is wrong with it, by its name."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gateway.config.access import JWT_CLIENT
from gateway.config.bounds import check_budgets
from gateway.config.bridges import BridgeSettings, check_bridge
from gateway.config.brokers import LOCAL_BROKERS, check_broker
from gateway.config.document import Config
from gateway.config.fronts import FrontSettings, check_front
from gateway.config.ledger import PipelineSettings
from gateway.config.subscriptions import check_subscription
from gateway.config.taps import TapSettings, check_tap
from gateway.errors import ConfigurationError
from gateway.limits import DEFAULT_LIMITS
from gateway.validation import explain

ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "GATEWAY_ROLE": ("role",),
    "GATEWAY_HTTP_HOST": ("http", "host"),
    "GATEWAY_HTTP_PORT": ("http", "port"),
    "GATEWAY_OPS_HOST": ("ops", "host"),
    "GATEWAY_OPS_PORT": ("ops", "port"),
    "GATEWAY_CLUSTER_HOST": ("cluster", "host"),
    "GATEWAY_CLUSTER_PORT": ("cluster", "port"),
    "GATEWAY_AMQP_PORT": ("embedded", "port"),
    "GATEWAY_DATA_DIR": ("data_dir",),
    "GATEWAY_LEDGER_URL": ("ledger", "url"),
    "GATEWAY_SECRETS_FILE": ("ledger", "secrets_file"),
    "GATEWAY_LOG_LEVEL": ("log_level",),
    "GATEWAY_TRACING_ENDPOINT": ("tracing", "endpoint"),
    **{
        f"GATEWAY_PIPELINE__{field.name.upper()}": ("pipeline", field.name)
        for field in msgspec.structs.fields(PipelineSettings)
        if field.name != "spark"
    },
}
"""Variable -> setting. ``GATEWAY_CONFIG`` names the file. Each may also come as ``NAME_FILE``, a file with its text."""


def load(
    path: str | Path | None,
    environ: dict[str, str] | os._Environ[str] = os.environ,
    overrides: dict[str, Any] | None = None,
) -> Config:
    """Read the configuration file (TOML, or JSON where its name ends so; None: development defaults), then the
    environment, then ``overrides`` (dotted setting name to value; None values are passed over).

    Raises:
        ConfigurationError: naming the file, the setting and what is wrong with it.
    """
    where = "configuration" if path is None else str(path)
    document = {} if path is None else _read(Path(path))
    misfits = {}
    for variable, setting in ENVIRONMENT.items():
        if (text := _variable(environ, variable)) is not None:
            value, wrong = _typed(setting, text)
            _assign(document, setting, value)
            if wrong:
                misfits[".".join(setting)] = f"{variable}: {wrong}"
    for name, value in (overrides or {}).items():
        if value is not None:
            _assign(document, tuple(name.split(".")), value)
            misfits.pop(name, None)
    for name, wrong in misfits.items():  # not the file is to be corrected
        raise ConfigurationError(f"{wrong} ({name})")
    for name, value in _endless(document, ""):
        # TOML has inf and nan. Least values do not keep inf out, and clocks and databases have no such number.
        raise ConfigurationError(f"{where}: {name} is {value}, not a finite number")
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {explain(error, document, Config, what='setting')}") from None
    _check(where, config)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows write a byte order mark
        return _json(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _check(where: str, config: Config) -> None:
    """Rules over several settings."""
    if config.http.bodies_max < config.http.body_max:
        raise ConfigurationError(
            f"{where}: http.bodies_max is {config.http.bodies_max}, less than http.body_max = {config.http.body_max}"
        )
    embedded = config.embedded
    if embedded.message_max > max(embedded.queue_memory, DEFAULT_LIMITS.message_max):
        raise ConfigurationError(
            f"{where}: embedded.message_max is {embedded.message_max}, more than embedded.queue_memory = "
            f"{embedded.queue_memory}. Raise embedded.queue_memory, or lower embedded.message_max."
        )
    if (wrong := check_budgets(config)) is not None:
        raise ConfigurationError(f"{where}: budgets.{wrong}")
    _check_listeners(where, config)
    clients = [("api_keys: name", key.name) for key in config.api_keys]
    clients += [("access.certificates: client", each.client) for each in config.access.certificates]
    for setting, client in clients:
        if client.startswith(JWT_CLIENT):
            raise ConfigurationError(f"{where}: {setting} {client!r}: {JWT_CLIENT} begins clients with tokens only")
    for name, broker in config.brokers.items():
        if (wrong := check_broker(broker)) is not None:
            raise ConfigurationError(f"{where}: brokers.{name}.{wrong}")
    for name, subscription in config.subscriptions.items():
        for setting in ("broker", "dead_letter_broker"):
            broker_name = getattr(subscription, setting)
            if (broker_name or setting == "broker") and not _known(broker_name, config):
                raise ConfigurationError(f"{where}: subscriptions.{name}.{setting}: there is no broker {broker_name!r}")
    for name, subscription in config.subscriptions.items():
        if (wrong := check_subscription(subscription)) is not None:
            raise ConfigurationError(f"{where}: subscriptions.{name}.{wrong}")
        if subscription.push and subscription.push not in config.endpoints:
            raise ConfigurationError(
                f"{where}: subscriptions.{name}.push: there is no endpoint {subscription.push!r} in this file"
            )
    for name, bridge in config.bridges.items():
        _check_bridge(f"{where}: bridges.{name}", bridge, config)
    for name, tap in config.taps.items():
        _check_tap(f"{where}: taps.{name}", tap, config)
    for name, front in config.fronts.items():
        _check_front(f"{where}: fronts.{name}", front, config)


def _check_listeners(where: str, config: Config) -> None:
    """What would let a port be open to others than those who are meant, or to nobody."""
    http, embedded = config.http.tls, config.embedded.tls
    for name, tls, authorities in (("http.tls", http, "client_ca_file"), ("embedded.tls", embedded, "ca_file")):
        for setting in ("key_file", authorities):
            if getattr(tls, setting) and not tls.cert_file:
                raise ConfigurationError(
                    f"{where}: {name}.{setting} is set, and {name}.cert_file is not: there is no TLS"
                )
    if http.clients == "required" and not http.client_ca_file:
        raise ConfigurationError(
            f"{where}: http.tls.clients is 'required', and http.tls.client_ca_file does not say who may sign them"
        )
    if config.embedded.enabled and not config.embedded.users:
        raise ConfigurationError(f"{where}: embedded.users is empty: nobody could log in, the gateway neither")


def _variable(environ: dict[str, str] | os._Environ[str], name: str) -> str | None:
    """The text of a variable; or, where there is one of its name with ``_FILE``, that of the file that it names."""
    text, file = environ.get(name), environ.get(f"{name}_FILE")
    if file is None:
        return text
    if text is not None:
        raise ConfigurationError(f"{name} and {name}_FILE are both set")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigurationError(f"{name}_FILE: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{name}_FILE: {file}: not UTF-8") from None


def broker_names(config: Config) -> frozenset[str]:
    """The brokers that there are: those of the file, and the embedded one by its versions."""
    return frozenset({*config.brokers, *(LOCAL_BROKERS if config.embedded.enabled else ())})


def _known(broker: str, config: Config) -> bool:
    return broker in config.brokers or (config.embedded.enabled and broker in LOCAL_BROKERS)


def _check_bridge(where: str, bridge: BridgeSettings, config: Config) -> None:
    if (wrong := check_bridge(bridge)) is not None:
        raise ConfigurationError(f"{where}.{wrong}")
    for setting, name in (
        ("source.broker", bridge.source.broker),
        ("target.broker", bridge.target.broker),
        ("dead_letter.broker", bridge.dead_letter.broker or bridge.source.broker),
    ):
        if not _known(name, config):
            raise ConfigurationError(f"{where}.{setting}: there is no broker {name!r}")


def _check_tap(where: str, tap: TapSettings, config: Config) -> None:
    if (wrong := check_tap(tap, config.retention)) is not None:
        raise ConfigurationError(f"{where}.{wrong}")
    for setting in ("broker", "dead_letter_broker"):
        if (name := getattr(tap, setting)) and not _known(name, config):
            raise ConfigurationError(f"{where}.{setting}: there is no broker {name!r}")


def _check_front(where: str, front: FrontSettings, config: Config) -> None:
    if (wrong := check_front(front)) is not None:
        raise ConfigurationError(f"{where}.{wrong}")
    for setting, name in (
        ("broker", front.broker),
        *(("virtual_hosts", each) for each in front.virtual_hosts.values()),
    ):
        if name and not _known(name, config):
            raise ConfigurationError(f"{where}.{setting}: there is no broker {name!r}")


def _json(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise json.JSONDecodeError("not an object", text, 0)
    return found


def _typed(setting: tuple[str, ...], text: str) -> tuple[Any, str]:
    """A variable's text as the setting's type, and nothing; or the text itself, and why it is invalid."""
    kind: Any = Config
    for name in setting:
        (kind,) = (field.type for field in msgspec.structs.fields(kind) if field.name == name)
    try:
        return msgspec.convert(text, kind, strict=False), ""
    except msgspec.ValidationError as error:
        return text, explain(error, text, kind, strict=False).detail


def _endless(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Malformed numbers, and where they stand."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _endless(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _endless(each, f"{place}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, value


def _assign(document: dict[str, Any], setting: tuple[str, ...], value: Any) -> None:
    table = document
    for part in setting[:-1]:
        table = table.setdefault(part, {})
    table[setting[-1]] = value
