"""``/v1/log`` and its cursors: ranges whole or broken off, over a real server where that matters."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.api.app import Api
from gateway.api.history import log as api_log
from gateway.api.history import log_range
from gateway.api.history.log_range import ARROW, NDJSON
from gateway.app import _listen, _port, _serving
from gateway.config import HttpSettings
from gateway.core import Gateway
from gateway.errors import LedgerUnavailable
from gateway.ledger import EventKind, Log, LogEntry, MessageIds
from gateway.ledger.logs import arrow_pool
from gateway.ledger.logs import log as ledger_log
from tests.api.conftest import problem
from tests.audited import ON_PURPOSE
from tests.ledger.logs import spooled

pa = pytest.importorskip("pyarrow", reason="the extra of the pipeline: make test installs it")

new_id = MessageIds()
ALL = {"log": "messages", "shard": 0, "after": 0}


async def spool(gateway: Gateway, count: int, size: int = 5) -> None:
    await gateway.ledger.log.spool([spooled(body=b"%0*d" % (size, number)) for number in range(1, count + 1)])


@pytest.fixture
async def server(gateway: Gateway) -> AsyncIterator[str]:
    """The API on a port."""
    with contextlib.closing(_listen("127.0.0.1", 0, "http")) as listener:
        async with _serving(Api(gateway, HttpSettings()), listener, 5.0):
            yield f"http://127.0.0.1:{_port(listener)}"


async def test_how_far_a_log_goes(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await spool(gateway, 3)
    assert (await client.get("/v1/log/head?log=messages")).json() == {
        "log": "messages", "shards": [{"shard": 0, "floor": 1, "head": 3, "retired": False}],
        "position": {"0": 3}, "start": {"0": 0},
        "arrow": True,
    }  # fmt: skip
    assert (await client.get("/v1/log/head", params={"log": "events"})).json()["position"] == {"0": 0}
    problem(await client.get("/v1/log/head?log=other"), 422, "invalid_parameter")


async def test_a_range_as_ndjson(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await spool(gateway, 5)
    answer = await client.get("/v1/log", params={**ALL, "after": 1, "upto": 4})
    assert (answer.status_code, answer.headers["content-type"], answer.headers["log-range-rows"]) == (200, NDJSON, "3")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["sequence"] for row in rows] == [2, 3, 4]
    assert rows[0] | {"message_id": ""} == {
        "shard": 0, "sequence": 2, "message_id": "", "tap": "orders", "accepted_at": "2027-01-15T08:00:00Z",
        "broker": "rabbit", "version": "0-9-1", "queue": "new", "exchange": "orders", "routing_key": "eu.new",
        "redelivered": False, "origin_id": "", "properties": '{"content_type":"text/plain"}', "body": "MDAwMDI=",
        "size": 5, "sha256": rows[0]["sha256"],
    }  # fmt: skip
    chosen = await client.get("/v1/log", params={**ALL, "upto": 1, "columns": "size,sequence"})
    assert chosen.text == '{"sequence":1,"size":5}\n'
    assert (await client.get("/v1/log", params={**ALL, "upto": 0})).text == ""
    head = await client.head("/v1/log", params={**ALL, "upto": 4})
    assert (head.headers["log-range-rows"], head.text) == ("4", "")


async def test_filters(client: httpx.AsyncClient, gateway: Gateway) -> None:
    logs = gateway.ledger.log
    await logs.spool([spooled(tap="a"), spooled(tap="b", exchange=""), spooled(tap="c", queue="caf\udce9")])

    async def found(**where: str) -> list[int]:
        answer = await client.get("/v1/log", params={**ALL, "upto": 3, "columns": "sequence", **where})
        assert answer.headers["log-range-rows"] == "3"
        return [json.loads(line)["sequence"] for line in answer.text.splitlines()]

    assert await found(tap="a, c") == [1, 3]
    assert await found(exchange="amq.default") == await found(exchange="") == [2]
    assert (await client.get("/v1/log?log=messages&shard=0&after=0&upto=3&columns=sequence&queue=caf%E9")).text == (
        '{"sequence":3}\n'
    )
    assert await found(version="0-10") == []
    problem(await client.get("/v1/log", params={**ALL, "upto": 3, "kind": "looped"}), 422, "invalid_parameter")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"upto": 0, "after": 1}, "upto: 0 is not from after (1)"),
        ({"upto": 1_000_001}, "upto: 1000001 is not from after (0) to 1000000 behind that"),
        ({"upto": 1, "columns": "sequence,colour"}, "'colour' is no column of the log 'messages'"),
        ({"upto": 1, "shard": -1}, "shard: expected an integer >= 0, got '-1'"),
        ({"upto": "x"}, "upto: expected an integer, got 'x'"),
        ({"upto": 1, "colour": "red"}, "colour: there is no such query parameter"),
    ],
)
async def test_what_is_no_range(client: httpx.AsyncClient, given: dict[str, Any], words: str) -> None:
    assert words in problem(await client.get("/v1/log", params=ALL | given), 422, "invalid_parameter")["detail"]


async def test_what_is_gone_and_what_is_not_there_yet(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await spool(gateway, 9)
    await gateway.ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 4})
    await gateway.ledger.history.keeper.trim()
    gone = problem(await client.get("/v1/log", params={**ALL, "after": 2, "upto": 9}), 410, "log_range_gone")
    assert gone["detail"].startswith("rows 3 to 4 of shard 0 of the log 'messages' are gone since 20")
    assert gone["detail"].endswith("Z: all cursors are behind it; it begins at 5")
    gone = problem(await client.get("/v1/log", params={**ALL, "after": 0, "upto": 3}), 410, "log_range_gone")
    assert "rows 1 to 3 of" in gone["detail"]
    ahead = problem(await client.get("/v1/log", params={**ALL, "after": 4, "upto": 10}), 409, "log_range_ahead")
    assert "upto is 10; shard 0 of the log 'messages' ends at 9 at present" in ahead["detail"]
    problem(await client.get("/v1/log", params={**ALL, "shard": 7, "upto": 1}), 409, "log_range_ahead")
    assert (await client.get("/v1/log", params={**ALL, "after": 4, "upto": 9})).text.count("\n") == 5


async def test_arrow_and_what_it_takes(
    client: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_log, "SEGMENT_OCTETS", 4_000)
    monkeypatch.setattr(log_range, "SEGMENT", 7)
    await spool(gateway, 30, 1_000)
    answer = await client.get("/v1/log", params={**ALL, "upto": 30}, headers={"accept": f"{ARROW}, {NDJSON};q=0.5"})
    assert (answer.status_code, answer.headers["content-type"], answer.headers["log-range-rows"]) == (200, ARROW, "30")
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["sequence"].to_pylist() == list(range(1, 31))
    assert max(len(batch) for batch in table.to_batches()) == 3  # no more than four thousand octets are held
    monkeypatch.setattr(arrow_pool, "find_spec", lambda _: None)
    refused = await client.get("/v1/log", params={**ALL, "upto": 3}, headers={"accept": ARROW})
    assert "amqp-gateway[arrow]" in problem(refused, 406, "no_arrow")["detail"]
    answer = await client.get("/v1/log", params={**ALL, "upto": 3}, headers={"accept": f"{ARROW}, {NDJSON}"})
    assert answer.headers["content-type"] == NDJSON
    assert not (await client.get("/v1/log/head?log=events")).json()["arrow"]


async def test_only_so_many_at_once(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await spool(gateway, 1)
    gateway.ledger.log.readers = api_log.READERS_MAX
    problem(await client.get("/v1/log", params={**ALL, "upto": 1}), 503, "overloaded")
    gateway.ledger.log.readers -= 1
    assert (await client.get("/v1/log", params={**ALL, "upto": 1})).status_code == 200
    assert gateway.ledger.log.readers == api_log.READERS_MAX - 1


# ------------------------------------------------------------------------------------ answers that are not whole


async def cut(server: str, upto: int, **more: Any) -> str:
    """What came of an answer that was broken off."""
    octets: list[bytes] = []

    async def read() -> None:
        async with (
            httpx.AsyncClient(base_url=server) as client,
            client.stream("GET", "/v1/log", params={**ALL, "upto": upto, **more}) as answer,
        ):
            assert answer.headers["log-range-rows"] == str(upto)
            async for piece in answer.aiter_bytes():
                octets.append(piece)  # noqa: PERF401  # those before the error count

    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
        await read()
    return b"".join(octets).decode()


async def test_rows_that_go_while_they_are_read(server: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is above the range by the end of it: some may have been missing, and the reader must not take it for
    whole, whether its rows can be counted or not."""
    monkeypatch.setattr(log_range, "PAGE", 10)
    await spool(gateway, 30)
    await gateway.ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 25})
    rows = gateway.ledger.log.rows

    async def read(log: Any, shard: int, after: int, *more: Any) -> Any:
        if after == 10:
            await gateway.ledger.history.keeper.trim()
        return await rows(log, shard, after, *more)

    monkeypatch.setattr(gateway.ledger.log, "rows", read)
    assert (await cut(server, 30)).count("\n") == 15
    async with httpx.AsyncClient(base_url=server) as client:  # and then it is told
        problem(await client.get("/v1/log", params={**ALL, "upto": 30}), 410, "log_range_gone")


async def test_rows_that_go_while_they_are_filtered(
    server: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spool(gateway, 20)
    await gateway.ledger.log.claim_cursor("a", Log.MESSAGES, "one", {"0": 15})
    rows = gateway.ledger.log.rows

    async def read(*arguments: Any) -> Any:
        await gateway.ledger.history.keeper.trim()
        return await rows(*arguments)

    monkeypatch.setattr(gateway.ledger.log, "rows", read)
    await cut(server, 20, tap="orders")


async def test_a_row_that_is_missing(server: str, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    await spool(gateway, 20)
    ON_PURPOSE.add(b"")  # nobody can say which message it was
    await gateway.ledger.task(
        lambda connection, _: connection.exec_driver_sql("DELETE FROM message_log WHERE sequence = 7")
    )
    assert (await cut(server, 20)).count("\n") == 19
    assert [record.message for record in caplog.records] == ["log.rows_missing", "log.cut_off"]


async def test_a_database_that_goes_away(server: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_range, "PAGE", 10)
    await spool(gateway, 30)
    rows = gateway.ledger.log.rows

    async def read(log: Any, shard: int, after: int, *more: Any) -> Any:
        if after == 20:
            raise LedgerUnavailable("away")
        return await rows(log, shard, after, *more)

    monkeypatch.setattr(gateway.ledger.log, "rows", read)
    assert (await cut(server, 30)).count("\n") == 20
    assert gateway.ledger.log.readers == 0


class Slow:
    """A client that reads when it is told."""

    def __init__(self, server: str, upto: int) -> None:
        self._url = httpx.URL(server)
        self._upto = upto

    async def __aenter__(self) -> Slow:
        self.reader, self.writer = await asyncio.open_connection(self._url.host, self._url.port, limit=1_000)
        target = f"/v1/log?log=messages&shard=0&after=0&upto={self._upto}"
        self.writer.write(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await self.reader.readuntil(b"\r\n\r\n")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


async def held_up(gateway: Gateway, calls: list[int]) -> int:
    """How many segments are read while nobody takes them."""
    before = -1
    async with asyncio.timeout(20):
        while before != len(calls) or not calls:
            before = len(calls)
            await asyncio.sleep(0.3)
    return before


@pytest.fixture
def segments(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where segments began."""
    rows, calls = gateway.ledger.log.rows, []  # type: ignore[var-annotated]

    async def read(log: Any, shard: int, after: int, *more: Any) -> Any:
        calls.append(after)
        return await rows(log, shard, after, *more)

    monkeypatch.setattr(gateway.ledger.log, "rows", read)
    monkeypatch.setattr(log_range, "PAGE", 4)
    monkeypatch.setattr(log_range, "LOOK", 0.01)
    return calls


async def test_a_reader_that_takes_nothing_holds_up_itself_alone(
    server: str, gateway: Gateway, segments: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not taken is not read, however long the range; and one that takes nothing for too long is cut off."""
    await spool(gateway, 400, 100_000)
    async with Slow(server, 400) as slow:
        assert await held_up(gateway, segments) < 50
        monkeypatch.setattr(log_range, "STUCK", 0.1)
        async with Slow(server, 400):
            async with asyncio.timeout(20):
                while gateway.ledger.log.readers == 2:
                    await asyncio.sleep(0.01)
        assert gateway.ledger.log.readers == 1
        slow.writer.close()
        async with asyncio.timeout(20):
            while gateway.ledger.log.readers:
                await asyncio.sleep(0.01)


async def test_a_gateway_that_shuts_down_waits_for_no_reader(
    server: str, gateway: Gateway, segments: list[int]
) -> None:
    await spool(gateway, 400, 100_000)
    async with Slow(server, 400) as slow:
        await held_up(gateway, segments)
        gateway.drain()
        async with asyncio.timeout(20):
            while gateway.ledger.log.readers:
                await asyncio.sleep(0.01)
        rest = b""
        with contextlib.suppress(ConnectionResetError):
            while more := await slow.reader.read(100_000_000):
                rest = (rest + more)[-100:]
        assert not rest.endswith(b"0\r\n\r\n"), "it would look like all of it"
    assert len(segments) < 100


# ---------------------------------------------------------------------------------------------------- cursors


async def test_the_life_of_a_cursor(client: httpx.AsyncClient, gateway: Gateway) -> None:
    await spool(gateway, 5)
    claim = {"log": "messages", "owner": "q-1"}
    found = (await client.post("/v1/log/cursors/archive:claim", json=claim)).json()
    assert (found["position"], found["epoch"], found["owner"], found["backlog"]) == ({"0": 0}, 1, "q-1", 5)
    assert found["backlog_octets"] > 5 * 5
    owned = problem(
        await client.post("/v1/log/cursors/archive:claim", json=claim | {"owner": "q-2"}), 409, "cursor_owned"
    )
    assert "'q-1'" in owned["detail"]
    taken = await client.post("/v1/log/cursors/archive:claim", json=claim | {"owner": "q-2", "take_over": True})
    assert taken.json()["epoch"] == 2
    stale = await client.put("/v1/log/cursors/archive", json={"owner": "q-1", "epoch": 1, "position": {"0": 3}})
    assert "owned by 'q-2', in epoch 2" in problem(stale, 409, "cursor_owned")["detail"]
    move = {"owner": "q-2", "epoch": 2, "position": {"0": 3}}
    for _ in range(2):
        assert (await client.put("/v1/log/cursors/archive", json=move)).json()["backlog"] == 2
    ahead = await client.put("/v1/log/cursors/archive", json=move | {"position": {"0": 6}})
    problem(ahead, 409, "log_range_ahead")
    for position in ({"x": 1}, {"0": -1}, {str(number): 1 for number in range(1_001)}):
        bad = await client.put("/v1/log/cursors/archive", json=move | {"position": position})
        problem(bad, 422, "invalid_parameter")
    problem(await client.delete("/v1/log/cursors/archive"), 409, "cursor_owned")
    released = await client.post("/v1/log/cursors/archive:release", json={"owner": "q-2", "epoch": 2})
    assert released.json()["owner"] == ""
    listed = (await client.get("/v1/log/cursors")).json()["cursors"]
    assert [each["name"] for each in listed] == ["archive"]
    assert (await client.get("/v1/log/cursors/archive")).json()["position"] == {"0": 3}
    assert (await client.delete("/v1/log/cursors/archive")).status_code == 204
    problem(await client.get("/v1/log/cursors/archive"), 404, "cursor_not_found")
    problem(await client.put("/v1/log/cursors/archive", json=move), 404, "cursor_not_found")


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("a", {"log": "messages"}, "invalid_request"),
        ("a", {"log": "other", "owner": "x"}, "invalid_request"),
        ("a", {"log": "events", "owner": ""}, "invalid_request"),
        ("a", {"log": "events", "owner": "x\n"}, "invalid_parameter"),
        ("a%0A", {"log": "events", "owner": "x"}, "invalid_parameter"),
        ("a", {"log": "events", "owner": "x", "start": "now"}, "invalid_request"),
        ("a", {"log": "events", "owner": "x", "start": {"a": 1}}, "invalid_parameter"),
    ],
)
async def test_claims_that_are_none(client: httpx.AsyncClient, name: str, body: dict[str, Any], code: str) -> None:
    problem(await client.post(f"/v1/log/cursors/{name}:claim", json=body), 422, code)


async def test_pages_of_cursors(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await client.post(f"/v1/log/cursors/{name}:claim", json={"log": "events", "owner": "x", "start": "latest"})
    page = await client.get("/v1/log/cursors?limit=2")
    assert [each["name"] for each in page.json()["cursors"]] == ["a", "b"]
    rest = await client.get(page.links["next"]["url"])
    assert [each["name"] for each in rest.json()["cursors"]] == ["c"]
    assert "next" not in rest.links


async def test_who_may(client_with_keys: Any) -> None:
    for scopes, status in ((("admin",), 200), (("consume:*/*", "publish:*/*"), 403)):
        async with client_with_keys(*scopes) as client:
            answers = [
                await client.get("/v1/log/head?log=events"),
                await client.get("/v1/log?log=events&shard=0&after=0&upto=0"),
                await client.get("/v1/log/cursors"),
                await client.post("/v1/log/cursors/a:claim", json={"log": "events", "owner": "x"}),
                await client.get("/v1/pipeline/runs"),
            ]
            assert {answer.status_code for answer in answers} == {status}


async def test_the_log_of_events_by_kind(client: httpx.AsyncClient, gateway: Gateway) -> None:
    entries = [
        LogEntry(new_id(), kind, 5, "b", "0-10", {"n": 1})
        for kind in (EventKind.DELIVERED, EventKind.LOOPED, EventKind.RELEASED)
    ]
    await gateway.ledger.record(entries)
    answer = await client.get(
        "/v1/log?log=events&shard=0&after=0&upto=3&columns=sequence,kind,detail,exchange&kind=looped,released"
    )
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"sequence": 2, "kind": "looped", "detail": '{"n":1}', "exchange": None},
        {"sequence": 3, "kind": "released", "detail": '{"n":1}', "exchange": None},
    ]
