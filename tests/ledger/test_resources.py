"""Named documents with an etag."""

from __future__ import annotations

import pytest

from gateway.errors import EtagMismatch
from gateway.ledger import Ledger
from gateway.ledger.resources import etag_of
from tests.ledger.conftest import Clock, Open

KIND = "subscription"


async def test_put_get_delete(open_ledger: Open) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    etag, created = await ledger.put_resource(KIND, "billing/é", {"queue": "orders", "n": 1})
    assert created
    clock.now += 1
    other, created = await ledger.put_resource(KIND, "billing/é", {"queue": "other"})
    assert not created
    assert other != etag
    found = await ledger.get_resource(KIND, "billing/é")
    assert found is not None
    assert (found.kind, found.name, found.spec, found.etag) == (KIND, "billing/é", {"queue": "other"}, other)
    assert found.updated_at - found.created_at == 1_000_000
    assert await ledger.get_resource("bridge", "billing/é") is None
    assert await ledger.delete_resource(KIND, "billing/é")
    assert not await ledger.delete_resource(KIND, "billing/é")
    assert await ledger.get_resource(KIND, "billing/é") is None


async def test_the_same_again_changes_nothing(open_ledger: Open) -> None:
    clock = Clock()
    ledger = await open_ledger(clock=clock)
    first = await ledger.put_resource(KIND, "a", {"x": 1, "y": 2})
    clock.now += 1
    assert await ledger.put_resource(KIND, "a", {"y": 2, "x": 1}) == (first[0], False)
    found = await ledger.get_resource(KIND, "a")
    assert found is not None
    assert found.updated_at == found.created_at
    assert etag_of({"x": 1, "y": 2}) == etag_of({"y": 2, "x": 1}) == first[0]


async def test_if_match(ledger: Ledger) -> None:
    with pytest.raises(EtagMismatch, match="does not exist"):
        await ledger.put_resource(KIND, "a", {}, "*")
    with pytest.raises(EtagMismatch):
        await ledger.delete_resource(KIND, "a", "x")
    etag, created = await ledger.put_resource(KIND, "a", {}, "")
    assert created
    with pytest.raises(EtagMismatch, match=etag):
        await ledger.put_resource(KIND, "a", {"n": 1}, "")
    with pytest.raises(EtagMismatch):
        await ledger.put_resource(KIND, "a", {"n": 1}, "other")
    with pytest.raises(EtagMismatch):
        await ledger.delete_resource(KIND, "a", "other")
    assert not (await ledger.put_resource(KIND, "a", {"n": 1}, etag))[1]
    assert not (await ledger.put_resource(KIND, "a", {"n": 2}, "*"))[1]
    assert await ledger.delete_resource(KIND, "a", etag_of({"n": 2}))
    assert ledger.healthy


async def test_list(ledger: Ledger) -> None:
    names = [f"s{number:02}" for number in range(12)]
    for name in reversed(names):
        await ledger.put_resource(KIND, name, {"name": name})
    await ledger.put_resource("bridge", "s05", {})
    first, cursor = await ledger.list_resources(KIND, limit=5)
    second, cursor = await ledger.list_resources(KIND, cursor, 5)
    third, last = await ledger.list_resources(KIND, cursor, 5)
    assert [found.name for found in [*first, *second, *third]] == names
    assert (cursor, last) == ("s09", None)
    assert await ledger.list_resources("nothing") == ([], None)
