"""``/v1/audit``: the audit log, the newest rows first, by who, what and which path."""

from __future__ import annotations

import httpx
import pytest

from gateway.api.history import audit
from gateway.core import Gateway
from gateway.ledger.db.models import audit_log
from tests.api.conftest import problem


async def fill(gateway: Gateway, count: int = 6) -> None:
    entries = [
        (
            1_700_000_000_000_000 + number,
            {
                "action": "put_bridge" if number % 2 else "purge_queue",
                "actor": f"client-{number % 3}",
                "object": f"/v1/things/{number}",
                "result": 200,
                "more": number,
            },
        )
        for number in range(count)
    ]
    await gateway.ledger.audit.append(entries)


async def test_the_newest_rows_come_first(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await fill(gateway)
    found = (await client.get("/v1/audit", params={"limit": 2})).json()["entries"]
    assert [row["object"] for row in found] == ["/v1/things/5", "/v1/things/4"]
    assert (found[0]["action"], found[0]["result"], found[0]["detail"]) == ("put_bridge", "200", {"more": 5})
    assert found[0]["at"] == "2023-11-14T22:13:20.000005Z"


async def test_pages_lead_to_the_first_row(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await fill(gateway)
    seen: list[int] = []
    path: str | None = "/v1/audit?limit=2"
    while path:
        answer = await client.get(path)
        seen += [row["sequence"] for row in answer.json()["entries"]]
        path = answer.links["next"]["url"] if "next" in answer.links else None
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"actor": "client-1"}, [4, 1]),
        ({"action": "purge_queue"}, [4, 2, 0]),
        ({"object": "things/3"}, [3]),
        ({"actor": "client-1", "action": "put_bridge"}, [1]),
        ({"actor": "nobody"}, []),
    ],
)
async def test_filters(client: httpx.AsyncClient, gateway: Gateway, query: dict[str, str], numbers: list[int]) -> None:
    await fill(gateway)
    answer = await client.get("/v1/audit", params=query)
    assert [row["detail"]["more"] for row in answer.json()["entries"]] == numbers
    assert "next" not in answer.links


async def test_a_page_looks_at_so_many_rows(
    client: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "PART", 2)
    monkeypatch.setattr(audit, "SCANNED_MAX", 4)
    await fill(gateway)
    answer = await client.get("/v1/audit", params={"object": "things/0"})
    assert answer.json() == {"entries": []}
    following = await client.get(answer.links["next"]["url"])
    assert [row["detail"]["more"] for row in following.json()["entries"]] == [0]


async def test_a_row_that_is_no_json_any_more(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await fill(gateway, 1)
    await gateway.ledger.task(lambda connection, _: connection.execute(audit_log.update().values(entry=b"{")))
    (row,) = (await client.get("/v1/audit")).json()["entries"]
    assert (row["action"], row["detail"]) == ("", {"unreadable": True})


async def test_a_cursor_that_is_none(client: httpx.AsyncClient) -> None:
    problem(await client.get("/v1/audit?cursor=x"), 422, "invalid_parameter")
