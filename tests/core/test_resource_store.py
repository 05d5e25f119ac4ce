"""One kind of resource: what a write asks for, what the configuration file hides, and etags."""

from __future__ import annotations

import logging

import pytest

from gateway.core.work.resources import ResourceStore, StoredSettings, etag_of
from gateway.errors import EtagMismatch, ReadOnly
from gateway.ledger import Ledger

REFUSED = object()
OLD, NEW = {"queue": "old"}, {"queue": "new"}
HERE = StoredSettings(OLD, "e1")
UNREADABLE: StoredSettings[dict[str, str]] = StoredSettings(None, "e1")


@pytest.fixture
async def store(ledger: Ledger) -> ResourceStore[dict[str, str]]:
    return ResourceStore(ledger, "bridge", {"fixed": OLD})


@pytest.mark.parametrize(
    ("if_match", "absent", "same", "other"),
    [
        (None, "", None, REFUSED),
        ("", "", REFUSED, REFUSED),
        ("*", REFUSED, None, "*"),
        ("e1", REFUSED, None, "e1"),
        ("e2", REFUSED, REFUSED, REFUSED),
    ],
)
async def test_the_table_of_conditions(
    store: ResourceStore[dict[str, str]], if_match: str | None, absent: object, same: object, other: object
) -> None:
    for before, settings, expected in ((None, NEW, absent), (HERE, OLD, same), (HERE, NEW, other)):
        if expected is REFUSED:
            with pytest.raises(EtagMismatch, match="the bridge 'orders'"):
                store.condition("orders", before, settings, if_match)
        else:
            assert store.condition("orders", before, settings, if_match) == expected


async def test_what_cannot_be_read_is_put_right_by_its_etag_only(store: ResourceStore[dict[str, str]]) -> None:
    assert store.condition("orders", UNREADABLE, OLD, "e1") == "e1"
    with pytest.raises(EtagMismatch, match="exists with other settings"):
        store.condition("orders", UNREADABLE, OLD, None)


async def test_the_configuration_file_hides_what_the_ledger_has(
    store: ResourceStore[dict[str, str]], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("fixed", "orders"):
        await store.put(name, NEW, "")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [row.name for row in await store.rows()] == ["orders"]
    assert [record.message for record in caplog.records] == ["bridge.hidden"]
    assert await store.row("fixed") is None
    with pytest.raises(ReadOnly, match="the bridge 'fixed' is defined by the configuration file"):
        store.refuse_configured("fixed")
    assert store.reconfigure({}) == {"fixed": OLD}
    store.refuse_configured("fixed")
    assert {row.name for row in await store.rows()} == {"fixed", "orders"}


async def test_somebody_else_was_quicker(store: ResourceStore[dict[str, str]]) -> None:
    etag, created = await store.put("orders", OLD, "")
    assert created
    for condition in ("", "another"):
        with pytest.raises(EtagMismatch):
            await store.put("orders", NEW, condition)
    assert not (await store.put("orders", NEW, etag))[1]
    assert await store.delete("orders", None)
    assert not await store.delete("orders", None)


async def test_more_than_a_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger.store.RESOURCES_PAGE", 3)
    store: ResourceStore[dict[str, str]] = ResourceStore(ledger, "tap", {})
    for number in range(10):
        await store.put(f"{number:02}", NEW, "")
    assert [row.name for row in await store.rows()] == [f"{number:02}" for number in range(10)]


def test_an_etag_follows_the_settings() -> None:
    assert etag_of(OLD) == etag_of(dict(OLD)) != etag_of(NEW)
