"""How much of the ledger each client fills, on both databases."""

from __future__ import annotations

from gateway.ledger import New
from gateway.ledger.writing import holdings
from tests.ledger.conftest import Open
from tests.ledger.test_outbox import put


async def test_what_each_client_has(open_ledger: Open) -> None:
    ledger = await open_ledger()
    assert await ledger.read(holdings.scheduled) == {}
    await put(ledger, 3)
    await put(ledger, 1, client="f\u00fcr \x00alle", payload=b"x" * 100_000)
    assert await ledger.read(holdings.scheduled) == {"shop": (3, 18), "f\u00fcr \x00alle": (1, 100_000)}
    changes: list[tuple[str, int]] = []
    ledger.on_keys = lambda client, count: changes.append((client, count))
    for client, key in (("shop", "a"), ("shop", "b"), ("shop", "b"), ("bank", "a")):
        await ledger.claim_key(client, key, b"f" * 32, ())
    await ledger.free_key("bank", "a")
    assert await ledger.read(holdings.idempotency_keys) == {"shop": 2}
    assert changes == [("shop", 1), ("shop", 1), ("bank", 1), ("bank", -1)]
    names = [f"key {number}" for number in range(600)]
    assert await ledger.read(lambda connection: holdings.known_keys(connection, "shop", ["a", "c", *names, "b"])) == 2
    assert isinstance(await ledger.claim_key("bank", "a", b"g" * 32, ()), New)
