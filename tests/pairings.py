"""Which pairings of a test run in ``make test``.

Many tests run over several brokers, versions, databases or formats. ``make test`` runs each of them once on each
broker, and once where it talks to none. ``make test-all``, and pytest on its own, run all pairings. The name of the
test decides which one it is: always the same one, and all tests together cover every pairing.

A test that is marked ``long`` runs only where all pairings run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import pytest

VARIABLE: Final = "GATEWAY_TEST_PAIRINGS"
ONCE: Final = "once"
"""The value of :data:`VARIABLE` with which each test runs once on each broker."""
BROKERS: Final = ("rabbitmq", "brokerj", "embedded")
NEWEST: Final = ("rabbitmq43",)
"""Pairings that only ``make test-all`` runs."""
PAIRINGS: Final = {
    "access": ("url",),
    "api": ("gateway",),
    "bridges": ("real",),
    "broker": ("version", "peer", "consuming_version", "publishing_version", "source", "target"),
    "commands": ("as_json",),
    "conformance": ("far_end", "version"),
    "doctor": ("version", "kind"),
    "faults/test_backups.py": ("kind",),
    "faults/test_dead_letters_killed.py": ("house",),
    "faults/test_offsets.py": ("kind", "version"),
    "faults/test_poison.py": ("peer",),
    "front": ("far_end", "version", "embedded", "estate"),
    "hostile": ("version", "role"),
    "interop": ("version", "port", "server"),
    "ledger": ("url", "bare_url", "place"),
    "outbound": ("_asyncio_loop_factory",),
    "pipeline/spark": ("kind",),
    "pipeline/unit": ("ledger", "read"),
    "taps": ("house", "end"),
    "test_app.py": ("broker", "source", "target"),
    "test_app_brokers.py": ("client",),
    "test_app_delivery_limits.py": ("server",),
    "test_app_subscriptions.py": ("peer",),
    "test_app_values.py": ("broker",),
    "tracing": ("broker",),
    "webhooks": ("version",),
}
"""Folder or file below ``tests/`` -> which arguments of its tests are pairings. The first one that fits counts."""
BY_PROTOCOL: Final = ("broker", "hostile")
"""Folders whose tests run once in 0-10 and once in one of the others: two protocols, and two implementations."""


def runs_all() -> bool:
    """Whether this run is of all pairings."""
    return os.environ.get(VARIABLE) != ONCE


def _arguments(path: str) -> tuple[str, ...]:
    return next((names for place, names in PAIRINGS.items() if path == place or path.startswith(f"{place}/")), ())


def _words(value: Any) -> set[str]:
    parts = value if isinstance(value, tuple) else (value, getattr(value, "broker", ""), getattr(value, "value", ""))
    return {part for part in parts if isinstance(part, str)}


def _side(path: str, values: Iterable[Any]) -> str:
    """What a test runs on once: a broker, or a protocol. Empty where it has none."""
    words = set().union(*map(_words, values))
    if path.startswith(BY_PROTOCOL):
        return "0-10" if "0-10" in words else ""
    return next((broker for broker in BROKERS if broker in words), "")


def _same(value: Any) -> Hashable:
    """What is equal for equal arguments."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return type(value), value


def once(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return which of the tests run in ``make test``, and which do not; in their order."""
    groups: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long"):
            continue
        call = getattr(item, "callspec", None)
        path = item.nodeid.partition("::")[0].removeprefix("tests/")
        names = {name for name in _arguments(path) if call and name in call.params}
        if not names:
            groups[item.nodeid].append(item)
            continue
        chosen = [call.params[name] for name in names]
        if not any(isinstance(value, str) and value in NEWEST for value in chosen):
            others = [(name, _same(value)) for name, value in call.params.items() if name not in names]
            test = item.nodeid.partition("[")[0]
            groups[(test, _side(path, chosen), tuple(others))].append(item)
    kept = {group[crc32(group[0].nodeid.encode()) % len(group)] for group in groups.values()}
    return [item for item in items if item in kept], [item for item in items if item not in kept]
