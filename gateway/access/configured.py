"""Scopes that the configuration file gives to callers, and those among them that can match nothing.

A scope of the newer kinds (:data:`~gateway.access.scopes.STRICT`) that can match nothing is refused. The others were
taken before anybody looked, so that a configuration that has such a scope still starts: the log and ``gateway doctor``
name it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import NamedTuple

from gateway.access.scopes import STRICT, doubt, parse_scope
from gateway.config import Config, broker_names
from gateway.errors import ConfigurationError
from gateway.observing.telemetry import log


class Given(NamedTuple):
    """A scope of the configuration file."""

    where: str
    """The setting."""
    scope: str


class Doubt(NamedTuple):
    """A scope that matches nothing, or not what it seems to."""

    where: str
    scope: str
    why: str


def scopes_of(config: Config) -> Iterator[Given]:
    """All scopes of the configuration file."""
    for key in config.api_keys:
        for scope in key.scopes:
            yield Given(f"api_keys.{key.name}", scope)
    for each in config.access.certificates:
        for scope in each.scopes:
            yield Given(f"access.certificates {each.name}", scope)
    for name, scopes in config.access.tokens.scopes.items():
        for scope in scopes:
            yield Given(f"access.tokens.scopes.{name}", scope)


def doubts(config: Config, brokers: Collection[str] = ()) -> list[Doubt]:
    """The scopes that can match nothing. One that is malformed is not among them: other checks refuse it.
    ``brokers``: those that there are beside the configuration file's."""
    brokers, found = broker_names(config).union(brokers), []
    for where, scope in scopes_of(config):
        try:
            why = doubt(scope, brokers)
        except ConfigurationError:
            continue
        if why:
            found.append(Doubt(where, scope, why))
    return found


def check(config: Config) -> None:
    """Refuse scopes of the newer kinds that can match nothing. Raises ConfigurationError."""
    for where, scope, why in doubts(config):
        if parse_scope(scope).kind in STRICT:
            raise ConfigurationError(f"{where}: the scope {scope!r}: {why}")


def warn(config: Config, brokers: Collection[str] = ()) -> None:
    """Have the log name the scopes that can match nothing. ``brokers``: as of :func:`doubts`."""
    for where, scope, why in doubts(config, brokers):
        log("access.scope_matches_nothing", logging.WARNING, setting=where, scope=scope, reason=why)
