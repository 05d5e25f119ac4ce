"""The source and the sink against a real gateway, on both databases: it says what the made-up one says."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_value

from gateway.errors import CursorOwned, ServiceRefused, SourceGone
from gateway.ledger.db.engine import Database
from gateway.ledger.logs.log_rows import ROW
from gateway.logs import arrow
from gateway.pipeline.schema import COLUMNS
from gateway.pipeline.source import adbc
from gateway.pipeline.source.cursor import Cursor
from gateway.pipeline.source.datasource import GatewayDataSource
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.messages import Keys, Sender, messages_of
from gateway.pipeline.source.options import Connection, WriteOptions, parse
from gateway.pipeline.source.reader import LogReader
from tests.faults.harness import GatewayProcess
from tests.ledgers import sqlite_ledger
from tests.pipeline.fake import FakeGateway
from tests.pipeline.service import NOW, serving, url_of

ROWS = 3_000
TYPES = {"int": "integer", "bigint": "long"}


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.broker)])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a ledger."""
    if request.param == "sqlite":
        yield sqlite_ledger(tmp_path_factory.mktemp("ledger"))
        return
    server = request.getfixturevalue("postgresql")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
def process(ledger: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with :data:`ROWS` rows in each log."""
    with serving(ledger, tmp_path_factory.mktemp("gateway"), ROWS, ROWS) as found:
        yield found


@pytest.fixture
def url_file(ledger: str, tmp_path: Path) -> str:
    file = tmp_path / "ledger-url"
    file.write_text(ledger)
    return str(file)


def schema(log: str, *names: str) -> StructType:
    return StructType(
        [
            StructField(each.name, _parse_datatype_json_value(TYPES.get(each.type, each.type)))
            for each in COLUMNS[log]
            if not names or each.name in names
        ]
    )


def read(process: GatewayProcess, log: str, *names: str, **options: str) -> pa.Table:
    source = GatewayDataSource({"url": url_of(process), "log": log, **options})
    reader = source.reader(schema(log, *names))
    assert isinstance(reader, LogReader)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return pa.Table.from_batches(batches)


def transports(url_file: str) -> list[dict[str, str]]:
    return [{"format": "arrow"}, {"format": "ndjson"}, {"transport": "adbc", "ledger_url_file": url_file}]


def test_all_transports_give_the_same_rows(process: GatewayProcess, url_file: str) -> None:
    for log in COLUMNS:
        found = [read(process, log, rows_max="1000", **options) for options in transports(url_file)]
        assert found[0].equals(found[1]), log
        assert found[0].equals(found[2]), log
        assert found[0].column("sequence").to_pylist() == list(range(1, ROWS + 1))
        assert found[0].schema.names == [each.name for each in COLUMNS[log]]


def test_a_row_is_what_was_put_in(process: GatewayProcess) -> None:
    rows = read(process, "messages").to_pylist()
    row = rows[32]
    assert row["body"] == b"%020d" % 33
    assert row["exchange"] == '{"type":"binary","value":"YmFkLf8="}'
    assert (row["routing_key"], row["tap"], row["redelivered"], row["size"]) == ("key.5", "tap-1", True, 20)
    assert round(row["accepted_at"].timestamp() * 1e6) == NOW + 33, "UTC, to the microsecond"
    events = read(process, "events").to_pylist()
    assert events[3]["detail"] == '{"n":4}'
    assert (events[3]["exchange"], events[3]["size"], events[3]["origin"]) == ("x", 20, "http")
    assert (events[4]["exchange"], events[4]["size"], events[4]["accepted_at"]) == (None, None, None)


def test_large_messages_come_in_statements_that_are_bounded(
    process: GatewayProcess, url_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    real = arrow.read

    def spied(connection: Any, log: Any, shard: int, after: int, upto: int, *more: Any) -> Any:
        asked.append((after, upto))
        return real(connection, log, shard, after, upto, *more)

    monkeypatch.setattr(arrow, "read", spied)
    options = {"transport": "adbc", "ledger_url_file": url_file}
    whole = read(process, "messages", **options)
    assert asked == [(0, ROWS)]
    monkeypatch.setattr(adbc, "OCTETS", 100_000)
    asked.clear()
    assert read(process, "messages", **options).equals(whole)
    assert [upto for _, upto in asked] == [*(after for after, _ in asked[1:]), ROWS], "one behind the other"
    sizes = [sum(map(weight, whole.slice(after, upto - after).to_pylist())) for after, upto in asked]
    assert max(sizes) <= 100_000
    assert min(sizes[:-1]) > 99_000, "as many as go"
    asked.clear()
    read(process, "messages", "sequence", "tap", **options)
    assert asked == [(0, ROWS)], "what is asked for is small"
    asked.clear()
    monkeypatch.setattr(adbc, "OCTETS", 1)
    assert read(process, "messages", end='{"0": 20}', **options).equals(whole.slice(0, 20))
    assert asked == [(each, each + 1) for each in range(20)]


def weight(row: dict[str, Any]) -> int:
    """What a row counts for at least."""
    return ROW + sum(len(row[name]) for name in ("body", "properties", "routing_key", "origin_id", "queue"))


def test_filters_and_columns_are_the_services(process: GatewayProcess, url_file: str) -> None:
    for options in transports(url_file):
        found = read(process, "messages", "tap", "sequence", tap="tap-1", routing_key="key.5", **options)
        assert found.column("sequence").to_pylist() == [n for n in range(1, ROWS + 1) if n % 2 and n % 7 == 5]
        assert set(found.column("tap").to_pylist()) == {"tap-1"}


def test_the_made_up_gateway_says_the_same(process: GatewayProcess, gateway: FakeGateway) -> None:
    """Or tests with it would prove nothing."""
    there = {"log": "messages", "shard": 0, "after": 0, "upto": 5}
    claim = {"log": "events", "owner": "one", "start": "latest", "take_over": False}
    with httpx.Client(trust_env=False) as client:
        for method, path, query, body in (
            ("GET", "/v1/log/head", {"log": "messages"}, None),
            ("GET", "/v1/log", there, None),
            ("GET", "/v1/log", {**there, "upto": 1_000_001}, None),
            ("GET", "/v1/log", {**there, "upto": 500_000}, None),
            ("POST", "/v1/log/cursors/parity:claim", {}, claim),
            ("POST", "/v1/log/cursors/parity:claim", {}, claim),
            ("POST", "/v1/log/cursors/parity:claim", {}, {**claim, "owner": "two"}),
            ("PUT", "/v1/log/cursors/parity", {}, {"owner": "one", "epoch": 2, "position": {"0": 1}}),
            ("PUT", "/v1/log/cursors/parity", {}, {"owner": "one", "epoch": 1, "position": {"0": 1}}),
            ("GET", "/v1/log/cursors/parity", {}, None),
            ("POST", "/v1/log/cursors/parity:release", {}, {"owner": "one", "epoch": 2}),
            ("GET", "/v1/log/cursors/none", {}, None),
        ):
            theirs, ours = (
                client.request(method, base + path, params=query, json=body)  # type: ignore[arg-type]
                for base in (url_of(process), gateway.url)
            )
            place = f"{method} {path} {query} {body}"
            assert theirs.status_code == ours.status_code, f"{place}: {theirs.text}"
            if path == "/v1/log" and ours.is_success:
                assert theirs.headers["log-range-rows"] == ours.headers["log-range-rows"]
                assert theirs.headers["content-type"].partition(";")[0] == ours.headers["content-type"]
                continue
            real, made_up = theirs.json(), ours.json()
            if ours.is_success:
                assert made_up.keys() - {"heard"} <= real.keys(), place
                assert made_up.get("epoch") == real.get("epoch"), place
                assert made_up.get("owner") == real.get("owner"), place
            elif made_up["code"] != "no_such_resource":
                assert made_up["code"] == real["code"], place


def test_a_cursor_is_fenced(process: GatewayProcess) -> None:
    https = [Http(Connection(url=url_of(process))) for _ in range(2)]
    one, two = (Cursor(http, "events", "fenced", owner) for http, owner in zip(https, ("one", "two"), strict=True))
    try:
        assert one.claim("earliest", take_over=False) == {}
        one.put({"0": 10})
        one.check()
        with pytest.raises(CursorOwned, match="cursor 'fenced' is owned by 'one'"):
            two.claim("earliest", take_over=False)
        assert two.claim("earliest", take_over=True) == {"0": 10}
        one.put({"0": 20})
        with pytest.raises(CursorOwned, match="is owned by 'two'"):
            one.check()
    finally:
        one.close()
        two.close()


def test_a_gateway_that_is_killed_while_it_is_read_from_comes_back_and_nothing_is_missing(
    process: GatewayProcess,
) -> None:
    """Row by row, so that the range is not read before the gateway is gone."""
    source = GatewayDataSource({"url": url_of(process), "log": "messages", "format": "ndjson"})
    reader = source.reader(schema("messages", "sequence"))
    assert isinstance(reader, LogReader)
    (partition,) = reader.partitions()
    process.kill()
    back = threading.Timer(0.5, process.start)
    back.start()
    found = [number for batch in reader.read(partition) for number in batch.column("sequence").to_pylist()]
    back.join()
    assert found == list(range(1, ROWS + 1))


def test_messages_are_published_once_with_everything_that_belongs_to_them(process: GatewayProcess) -> None:
    rows = read(process, "messages").slice(0, 200).drop_columns(["exchange"])
    rows = rows.set_column(rows.schema.get_field_index("routing_key"), "routing_key", pa.array(["copies"] * 200))
    options = parse(WriteOptions, {"url": url_of(process), "broker": "local-0-9-1", "id": "copy", "chunk_rows": "64"})
    with httpx.Client(trust_env=False, base_url=url_of(process)) as client:
        client.put("/v1/brokers/local-0-9-1/queues/copies", json={}).raise_for_status()
        counts = []
        for _ in range(2):
            http = Http(options)
            keys = Keys(options.id, "w", 0)
            sent = Sender(http, options).send(messages_of(rows.to_batches(), options, keys))
            http.close()
            counts.append((sent.rows, sent.published, sent.repeated, sent.refused))
        assert counts == [(200, 200, 0, 0), (200, 0, 200, 0)]
        assert client.get("/v1/brokers/local-0-9-1/queues/copies").json()["messages"] == 200
        subscription: dict[str, Any] = {"broker": "local-0-9-1", "queue": "copies"}
        client.put("/v1/subscriptions/copies", json=subscription).raise_for_status()
        pulled = client.post("/v1/subscriptions/copies:pull", json={"max_messages": 1, "wait": 5}).json()["messages"]
        (message,) = (each.get("message", each) for each in pulled)
        assert base64.b64encode(b"%020d" % 1).decode() in str(message) or f"{1:020}" in str(message)
        assert message["properties"] == {"priority": 3}, "no delivery mode, for the message had none"


def test_what_retention_took_is_named_or_passed_over(process: GatewayProcess, ledger: str, url_file: str) -> None:
    """The last test: rows are gone afterwards."""
    process.terminate()
    engine = Database(ledger).readers()
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO log_floors VALUES ('messages', 0, 1001, 'age', 1767225600000000) "
            "ON CONFLICT (log, shard) DO UPDATE SET floor = 1001"
        )
        connection.exec_driver_sql("DELETE FROM message_log WHERE sequence <= 1000")
    engine.dispose()
    process.start()
    for options in transports(url_file):
        with pytest.raises(SourceGone, match=r"shard 0, 400 < sequence <= 1000\. Retention overtook"):
            read(process, "messages", "sequence", start='{"0": 400}', **options)
        passed = read(process, "messages", "sequence", start='{"0": 400}', failOnDataLoss="false", **options)
        assert passed.column("sequence").to_pylist() == list(range(1_001, ROWS + 1))
        assert read(process, "messages", "sequence", **options).num_rows == ROWS - 1_000


def test_a_key_is_asked_for_and_sent(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hush-hush")
    with serving(sqlite_ledger(tmp_path), tmp_path, 5, key="hush-hush") as found:
        with pytest.raises(ServiceRefused, match=r"answered 401: .* The API key comes from the file"):
            read(found, "messages")
        assert read(found, "messages", api_key_file=str(file)).num_rows == 5
