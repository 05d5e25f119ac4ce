"""Management servers that answer well, badly, slowly and not at all."""

from __future__ import annotations

import gzip
import json
import math
import time
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.config import BrokerSettings
from gateway.management import ManagementProblem, QueueList, QueueRow, brokerj, rabbitmq, read_queues
from gateway.management.client import ANSWER_MAX
from gateway.outbound import OutboundRules
from tests.management import fake
from tests.management.fake import Answer, management, octets

AMQP = "amqp://user:of-the-url@broker.example/"
FULL = {
    "name": "orders", "vhost": "/", "type": "quorum", "state": "running", "durable": True, "auto_delete": False,
    "exclusive": False, "arguments": {"x-dead-letter-exchange": "dead"}, "effective_policy_definition": {},
    "messages": 7, "messages_ready": 5, "messages_unacknowledged": 2, "message_bytes": 70, "consumers": 1,
    "message_stats": {
        "publish_details": {"rate": 1.234}, "deliver_get_details": {"rate": 2}, "ack_details": {"rate": 0.0},
    },
}  # fmt: skip


async def read(
    answer: Callable[[str], Answer], within: float = 5.0, rows_max: int = 50_000, product: str = "", vhost: str = ""
) -> QueueList:
    async with management(answer) as server:
        settings = BrokerSettings(url=AMQP + vhost, management=server.url)
        return await read_queues("shop", settings, product, rows_max=rows_max, within=within)


async def reason_of(answer: Callable[[str], Answer], within: float = 5.0) -> str:
    with pytest.raises(ManagementProblem) as caught:
        await read(answer, within)
    reason = caught.value.reason
    assert reason[0].isupper()
    assert reason.endswith(".")
    assert "of-the-url" not in reason
    return reason


async def test_what_rabbitmq_tells() -> None:
    found = await read(fake.rabbitmq([FULL]))
    assert found.reason == ""
    assert found.rows == [
        QueueRow(
            name="orders", vhost="/", depth=7, ready=5, unacknowledged=2, bytes=70, consumers=1, publish_rate=1.23,
            deliver_rate=2.0, ack_rate=0.0, state="running", type="quorum", durable=True, auto_delete=False,
            exclusive=False, dead_letters=True, dead_letter_exchange="dead",
        )
    ]  # fmt: skip


async def test_a_policy_sets_a_dead_letter_exchange_and_an_argument_wins() -> None:
    policy = {"dead-letter-exchange": "", "dead-letter-routing-key": "late"}
    rows = (
        await read(
            fake.rabbitmq(
                [
                    {"name": "a", "effective_policy_definition": policy},
                    {"name": "b", "effective_policy_definition": policy, "arguments": {"x-dead-letter-exchange": "x"}},
                    {"name": "c", "effective_policy_definition": {}},
                ]
            )
        )
    ).rows
    facts = [(row.dead_letters, row.dead_letter_exchange, row.dead_letter_routing_key) for row in rows]
    assert facts == [(True, "", "late"), (True, "x", "late"), (False, None, None)]


@pytest.mark.parametrize(
    "change",
    [
        {}, {"arguments": []}, {"arguments": {"x-dead-letter-exchange": 7}}, {"effective_policy_definition": []},
        {"effective_policy_definition": {"dead-letter-exchange": "p", "dead-letter-routing-key": "k"}, "arguments": {}},
        {"effective_policy_definition": None}, {"message_stats": []}, {"message_stats": {}}, {"messages": None},
        {"message_stats": {"publish_details": []}}, {"message_stats": {"ack_details": {"rate": 1 << 70}}},
        {"name": ""}, {"name": "x" * 256}, {"state": "x" * 65}, {"type": "\x1b"}, {"more": {"a": [1]}},
    ],
    ids=repr,
)  # fmt: skip
async def test_a_queue_is_the_same_on_a_page_of_odd_ones(change: dict[str, Any]) -> None:
    queue = {**FULL, **change}
    alone, odd = [{"items": each, "page_count": 1} for each in ([queue], [queue, {"name": "odd", "messages": "7"}])]
    rabbitmq._pages.decode(json.dumps(alone))  # these types are expected
    with pytest.raises(msgspec.ValidationError):
        rabbitmq._pages.decode(json.dumps(odd))
    first, second = await read(lambda _: (200, alone)), await read(lambda _: (200, odd))
    assert [*first.rows, QueueRow(name="odd", vhost="/")] == second.rows
    assert first.reason == second.reason


@pytest.mark.parametrize("wrong", [None, "7", -1, 1.5, True, [], {}, 1 << 70], ids=repr)
def test_what_is_no_count_is_not_known(wrong: Any) -> None:
    names = ("messages", "messages_ready", "messages_unacknowledged", "message_bytes", "consumers")
    row = rabbitmq.row_of({"name": "q", **dict.fromkeys(names, wrong)}, "/")
    assert row == QueueRow(name="q", vhost="/")


@pytest.mark.parametrize("wrong", [None, "1", -1.0, math.nan, math.inf, True, [1], {"rate": 1}], ids=repr)
def test_what_is_no_rate_is_not_known(wrong: Any) -> None:
    stats = {f"{name}_details": {"rate": wrong} for name in ("publish", "deliver_get", "ack")}
    assert rabbitmq.row_of({"name": "q", "message_stats": stats}, "/") == QueueRow(name="q", vhost="/")
    assert rabbitmq.row_of({"name": "q", "message_stats": wrong}, "/") == QueueRow(name="q", vhost="/")


@pytest.mark.parametrize("name", [None, 7, "", "x" * 256, "ä" * 128, "\ud800", ["a"]], ids=repr)
async def test_a_queue_without_a_readable_name_is_left_out_and_counted(name: Any) -> None:
    assert rabbitmq.row_of({"name": name}, "/") is None
    assert brokerj.row_of([name, *[None] * 11], "/") is None
    if name == "\ud800":
        return  # no such text is JSON
    found = await read(lambda _: (200, {"items": [{"name": name}, {"name": "b"}, "no object"], "page_count": 1}))
    assert [row.name for row in found.rows] == ["b"]
    assert found.reason == "2 queues have a name that cannot be read and are left out."


@pytest.mark.parametrize("wrong", [7, "x" * 65, "\x1b[31m", "", None, ["a"]], ids=repr)
def test_a_state_that_is_no_word_is_not_known(wrong: Any) -> None:
    row = rabbitmq.row_of({"name": "q", "state": wrong, "type": wrong, "durable": wrong}, "/")
    assert row == QueueRow(name="q", vhost="/")


async def test_ten_thousand_queues_come_by_pages_each_once() -> None:
    rows = [{"name": f"queue-{number:05}", "messages": number} for number in range(10_000)]
    began = time.monotonic()
    found = await read(fake.rabbitmq(rows), within=60)
    print(f"10,000 queues in {time.monotonic() - began:.2f} s")
    assert [row.name for row in found.rows] == [row["name"] for row in rows]
    assert found.reason == ""


async def test_a_queue_that_moves_to_the_next_page_is_listed_once() -> None:
    def answer(target: str) -> Answer:
        last = "page=2" in target.split("&")
        items = [{"name": "b", "messages": 2 if last else 1}] + [{"name": "c"}] * last
        return 200, {"items": items, "page_count": 2}

    found = await read(answer)
    assert [(row.name, row.depth) for row in found.rows] == [("b", 2), ("c", None)]


async def test_queues_that_go_while_they_are_read_are_no_problem() -> None:
    def answer(target: str) -> Answer:
        if "page=2" in target.split("&"):
            return 400, {"error": "page_out_of_range"}
        return 200, {"items": [{"name": "b"}], "page_count": 2}

    assert (await read(answer)).reason == ""


async def test_a_list_ends_where_a_later_page_fails() -> None:
    def answer(target: str) -> Answer:
        return (503, "") if "page=2" in target.split("&") else (200, {"items": [{"name": "b"}], "page_count": 2})

    found = await read(answer)
    assert [row.name for row in found.rows] == ["b"]
    assert found.reason == (
        "The list is not complete: The management API answers 503: the broker starts, stops or is overloaded."
    )


async def test_no_more_queues_are_kept_than_the_limit() -> None:
    rows = [{"name": f"queue-{number:04}"} for number in range(2_000)]
    async with management(fake.rabbitmq(rows)) as server:
        settings = BrokerSettings(url=AMQP, management=server.url)
        found = await read_queues("shop", settings, rows_max=600)
        assert len(server.asked) == 2, "nothing is asked for that is not kept"
    assert len(found.rows) == 600
    assert found.reason == "The list ends after 600 queues, which is as many as the gateway keeps."


async def test_a_server_whose_pages_never_end_is_given_up() -> None:
    async with management(lambda _: (200, {"items": [{"name": "same"}], "page_count": 1 << 60})) as server:
        found = await read_queues("shop", BrokerSettings(url=AMQP, management=server.url), rows_max=5_000)
        assert len(server.asked) == 11
    assert [row.name for row in found.rows] == ["same"]


BROKEN: dict[str, tuple[Answer, str]] = {
    "401": ((401, {}), "refuses the login (401)"),
    "403": ((403, {}), "refuses the login (403)"),
    "301": (octets(301, b"", "location: http://127.0.0.1:1/secret"), "redirects (301), which is not followed"),
    "404": ((404, {}), "has neither RabbitMQ's API nor Broker-J's, or no virtual host '/' (404)"),
    "418": ((418, {}), "answers 418"),
    "500": ((500, {}), "answers 500: the broker starts, stops or is overloaded"),
    "503": ((503, b"<html>"), "answers 503"),
    "no JSON": ((200, b"<html>login</html>"), "the answer is not JSON"),
    "no UTF-8": ((200, b'{"items": ["\xff"]}'), "the answer is not JSON"),
    "half of it": ((200, b'{"items": ['), "the answer is not JSON"),
    "deep": ((200, b"[" * 200_000), "the answer is not JSON"),
    "a number": ((200, 7), "something else than a list of queues"),
    "an object": ((200, {"error": "x"}), "something else than a list of queues"),
    "items of another type": ((200, {"items": {"a": 1}}), "something else than a list of queues"),
    "compressed": (
        octets(200, gzip.compress(b"[]"), "content-encoding: gzip"), "compresses its answers, which nobody asked for",
    ),
    "no HTTP": (b"AMQP\x00\x00\x09\x01" * 3, "cannot be reached"),
    "hang up": (b"", "cannot be reached"),
    "hang up in the middle": (b"HTTP/1.1 200 X\r\ncontent-length: 100\r\n\r\n[", "cannot be reached"),
    "many headers": (b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 1_000 + b"\r\n", "cannot be reached"),
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
async def test_a_server_that_misbehaves_gives_a_reason(how: str) -> None:
    answer, expected = BROKEN[how]
    assert expected in await reason_of(lambda _: answer)


async def test_a_redirect_is_not_followed() -> None:
    async with management(lambda _: (200, {"items": []})) as elsewhere:
        await reason_of(lambda _: octets(302, b"", f"location: {elsewhere.url}/api/queues/%2F"))
        assert elsewhere.asked == []


@pytest.mark.parametrize("how", ["nothing", "drips"])
async def test_a_server_that_is_slow_is_given_up_in_time(how: str) -> None:
    began = time.monotonic()
    head = b"HTTP/1.1 200 X\r\ncontent-length: 1000000\r\n\r\n["
    reason = await reason_of(lambda _: None if how == "nothing" else head + b" " * 100, within=0.5)
    assert reason == "The management API took more than 0.5 s." or (how == "drips" and "cannot be reached" in reason)
    assert time.monotonic() - began < 5


async def test_time_is_counted_over_all_pages() -> None:
    async with management(lambda _: (200, {"items": [{"name": "a"}], "page_count": 1_000})) as server:
        server.pause = 0.2
        began = time.monotonic()
        found = await read_queues("shop", BrokerSettings(url=AMQP, management=server.url), within=0.7)
        assert time.monotonic() - began < 5
    assert found.reason == "The list is not complete: The management API took more than 0.7 s."


async def test_a_huge_answer_is_not_read() -> None:
    head = b"HTTP/1.1 200 X\r\ncontent-length: 1000000000\r\n\r\n"
    body = head + b'"' + b"x" * (ANSWER_MAX * 3)
    tracemalloc.start()
    try:
        reason = await reason_of(lambda _: body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reason == "An answer of the management API has more than 4,194,304 bytes."
    assert peak < ANSWER_MAX * 8


async def test_nobody_listens() -> None:
    async with management(lambda _: None) as server:
        url = server.url
    with pytest.raises(ManagementProblem, match="cannot be reached"):
        await read_queues("shop", BrokerSettings(url=AMQP, management=url))


async def test_that_of_a_broker_over_http_is_only_where_brokers_may_be() -> None:
    rules = OutboundRules().beside(["10.0.0.0/8"], "broker_allow")
    async with management(fake.rabbitmq([])) as server:
        settings = BrokerSettings(url=AMQP, management=server.url, password="x")
        with pytest.raises(ManagementProblem, match=r"denies brokers.shop.management: .* \(loopback, RFC 1122\)"):
            await read_queues("shop", settings, rules=rules)
        assert server.asked == []
        assert (await read_queues("shop", settings, rules=rules.beside(["127.0.0.0/8"], "broker_allow"))).rows == []


# ------------------------------------------------------------------------------------------------ the login


@pytest.mark.parametrize(
    ("user", "file", "sent"),
    [
        ("", "", "user:of-the-url"),
        ("", "of-the-file\n", "user:of-the-file"),
        ("watcher:p%40ss@", "", "watcher:p@ss"),
        ("watcher:p%40ss@", "of-the-file", "watcher:p@ss"),
        ("watcher@", "of-the-file", "watcher:of-the-file"),
    ],
)
async def test_which_login_is_sent(user: str, file: str, sent: str, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(file)
    async with management(fake.rabbitmq([])) as server:
        url = server.url.replace("://", f"://{user}")
        settings = BrokerSettings(url=AMQP, management=f"{url}/", password_file=str(path) if file else "")
        assert (await read_queues("shop", settings)).rows == []
        assert server.logins == {b64encode(sent.encode()).decode()}
        assert server.asked[0].startswith("/api/queues/%2F?")


async def test_a_password_does_not_travel_in_clear_unless_it_may() -> None:
    settings = BrokerSettings(url=AMQP, management="http://192.0.2.1:15672")
    with pytest.raises(ManagementProblem, match="would travel in clear"):
        await read_queues("shop", settings)
    allowed = BrokerSettings(url=AMQP, management="http://nowhere.invalid:15672", allow_plain_without_tls=True)
    with pytest.raises(ManagementProblem, match="cannot be reached"):
        await read_queues("shop", allowed, within=2)


async def test_the_ports_of_the_gateway_are_never_called() -> None:
    async with management(fake.rabbitmq([])) as server:
        settings = BrokerSettings(url=AMQP, management=server.url)
        with pytest.raises(ManagementProblem, match="is this gateway itself"):
            await read_queues("shop", settings, own=[("127.0.0.1", server.port)])
        assert server.asked == []


async def test_a_password_file_that_is_missing_is_named(tmp_path: Path) -> None:
    settings = BrokerSettings(url=AMQP, management="http://127.0.0.1:1", password_file=str(tmp_path / "none"))
    with pytest.raises(ManagementProblem, match=r"password_file .*none: No such file"):
        await read_queues("shop", settings)


# ------------------------------------------------------------------------------------------------- Broker-J

ROW = ["orders", "standard", "ACTIVE", True, "PERMANENT", "NONE", {"destination": "dead"}, 7, 5, 2, 70, 1]
HOSTS = {"headers": [], "results": [["other", False], ["de'fault", True]], "total": 2}


def broker_j(tables: list[Any], hosts: Any = HOSTS) -> Callable[[str], Answer]:
    left = iter(tables)

    def answer(target: str) -> Answer:
        if target.startswith("/api/latest/querybroker/virtualhost"):
            return 200, hosts
        return (200, next(left)) if target.startswith("/api/latest/") else (404, b"Unknown path")

    return answer


@pytest.mark.parametrize("product", ["", "RabbitMQ", "Apache Qpid Broker-J Core"])
async def test_what_broker_j_tells(product: str) -> None:
    async with management(broker_j([{"results": [ROW], "total": 1}])) as server:
        found = await read_queues("shop", BrokerSettings(url=AMQP, management=server.url), product)
        assert "where=%24parent.name%20%3D%20%27de%27%27fault%27" in server.asked[-1], "a quote is doubled"
        assert server.asked[0].startswith("/api/latest" if "Qpid" in product else "/api/queues")
    assert found.rows == [
        QueueRow(
            name="orders", vhost="/", depth=7, ready=5, unacknowledged=2, bytes=70, consumers=1, state="active",
            type="standard", durable=True, auto_delete=False, exclusive=False, dead_letters=True,
            dead_letter_exchange="dead",
        )
    ]  # fmt: skip


async def test_broker_j_by_pages() -> None:
    rows = [[f"queue-{number:04}", *ROW[1:]] for number in range(1_100)]
    pages = [{"results": rows[start : start + 500], "total": 1_100} for start in (0, 500, 1_000)]
    found = await read(broker_j(pages), vhost="other")
    assert [row.name for row in found.rows] == [row[0] for row in rows]
    assert found.reason == ""


@pytest.mark.parametrize(
    ("hosts", "table", "why"),
    [
        (HOSTS, [], "something else than a table"),
        (HOSTS, {"results": 7, "total": 1}, "something else than a table"),
        (HOSTS, {"results": [], "total": "1"}, "something else than a table"),
        ({"results": [["other", False], "x", [1]], "total": 1}, {}, "has no virtual host '/'"),
        (json.loads("[]"), {}, "something else than a table"),
    ],
)
async def test_broker_j_that_misbehaves(hosts: Any, table: Any, why: str) -> None:
    assert why in await reason_of(broker_j([table], hosts))


async def test_a_row_of_broker_j_in_another_form_is_left_out() -> None:
    found = await read(broker_j([{"results": [ROW[:-1], 7, ROW], "total": 3}]))
    assert [row.name for row in found.rows] == ["orders"]
    assert found.reason.startswith("2 queues have a name")
