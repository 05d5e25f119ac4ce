"""What a process that died still had to send: the next one sends all of it, once."""

from __future__ import annotations

from tests.ledger.takeover import fill, send


async def test_every_kind_is_taken_over_once(url: str) -> None:
    await fill(url, 1_200)
    assert sorted(await send(url, 1_200)) == ["due", "in requests"]
