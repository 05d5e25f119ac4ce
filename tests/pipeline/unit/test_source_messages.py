"""Rows to messages, and what became of each: the writer without Spark."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from gateway.errors import ConfigurationError, ServiceRefused, ServiceUnreachable
from gateway.pipeline.schema import COLUMNS, MESSAGES
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.messages import NAMED_MAX, TRIES_MAX, Counts, Keys, Sender, check_columns, messages_of
from gateway.pipeline.source.options import WriteOptions, parse
from tests.pipeline.fake import FakeGateway, batch_of
from tests.pipeline.unit.conftest import Time

Write = Callable[..., Counts]


def rows(count: int, **columns: Any) -> pa.RecordBatch:
    """Rows with bodies, and these columns."""
    bodies = [f"body {number}".encode() for number in range(count)]
    return pa.RecordBatch.from_pydict({"body": bodies, **{name: [value] * count for name, value in columns.items()}})


def counts(rows: int = 0, published: int = 0, repeated: int = 0, refused: int = 0) -> tuple[int, int, int, int]:
    return rows, published, repeated, refused


def counted(found: Counts) -> tuple[int, int, int, int]:
    return counts(found.rows, found.published, found.repeated, found.refused)


@pytest.fixture
def write(gateway: FakeGateway, clock: Time) -> Iterator[Write]:
    """``write(batch, rate="10")``: write it as one task does."""
    with ExitStack() as stack:

        def write(batch: pa.RecordBatch, partition: int = 0, attempt: str = "q:7", **options: str) -> Counts:
            given = parse(WriteOptions, {"url": gateway.url, "broker": "orders", "exchange": "x", **options})
            http = Http(given)
            stack.callback(http.close)
            sender = Sender(http, given, partition, clock, clock.sleep, clock)
            return sender.send(messages_of([batch], given, Keys(given.id, attempt, partition)))

        yield write


# -------------------------------------------------------------------------------------------------------- rows


def test_a_row_is_a_message_with_a_key(gateway: FakeGateway, write: Write) -> None:
    batch = rows(1, routing_key="k", properties='{"properties":{"priority":3}}', mandatory=True, key="mine", shard=3)
    assert counted(write(batch)) == counts(rows=1, published=1)
    assert gateway.published == {
        "mine": {
            "exchange": "x", "key": "mine", "routing_key": "k", "payload": "Ym9keSAw", "payload_encoding": "base64",
            "logged": {"properties": {"priority": 3}}, "mandatory": True,
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("properties", "marked"),
    [
        ('{"properties":{"priority":3}}', {"properties": {"priority": 3}, "reserved": {"resent": "1"}}),
        ('{"reserved":{"id":"i"}}', {"reserved": {"id": "i", "resent": "1"}}),
        (
            '{"reserved":{"type":"table","value":{"type":"t","value":"v"}}}',
            {"reserved": {"type": "table", "value": {"type": "t", "value": "v", "resent": "1"}}},
        ),
        (
            '{"reserved":{"type":"table","value":[["resent","0"],[{"type":"binary","value":"/w=="},1]]}}',
            {"reserved": {"type": "table", "value": [[{"type": "binary", "value": "/w=="}, 1], ["resent", "1"]]}},
        ),
        ('{"reserved":{"type":"int8","value":3}}', {"reserved": {"type": "int8", "value": 3}}),
        ('{"reserved":"text"}', {"reserved": "text"}),
    ],
)
def test_what_may_be_there_twice_is_marked(
    gateway: FakeGateway, write: Write, properties: str, marked: dict[str, Any]
) -> None:
    write(rows(1, properties=properties, redelivered=True, key="again"))
    write(rows(1, properties=properties, redelivered=False, key="once"))
    write(rows(1, redelivered=True, key="bare"))
    assert gateway.published["again"]["logged"] == marked
    assert gateway.published["once"]["logged"] == json.loads(properties)
    assert "logged" not in gateway.published["bare"]


def test_what_a_row_does_not_say_the_options_do(gateway: FakeGateway, write: Write) -> None:
    write(pa.RecordBatch.from_pydict({"body": ["text, é"]}), routing_key="k", exchange="")
    ((path, _),) = gateway.seen.items()
    (message,) = gateway.published.values()
    assert path == "POST /v1/brokers/orders/exchanges/amq.default:publish"
    assert base64.b64decode(message["payload"]).decode() == "text, é"
    assert message["routing_key"] == "k"


def test_rows_of_the_log_can_be_written_as_they_are(gateway: FakeGateway, write: Write) -> None:
    names = [each.name for each in COLUMNS[MESSAGES]]
    check_columns({each.name: each.type for each in COLUMNS[MESSAGES]})
    assert write(batch_of(MESSAGES, 0, list(range(1, 101)), names), id="replay:1").published == 100
    assert gateway.bodies() == [f"body 0 {number}".encode() for number in range(1, 101)]
    assert gateway.order[0] == "replay:1:00000000-0000-7000-0000-000000000001"
    assert {message["exchange"] for message in gateway.published.values()} == {f"exchange-{each}" for each in range(5)}


def test_a_name_that_is_not_utf_8_goes_out_as_the_octets_that_it_is(gateway: FakeGateway, write: Write) -> None:
    name = '{"type":"binary","value":"//4="}'
    write(rows(1, exchange=name, routing_key=name))
    (message,) = gateway.published.values()
    assert message["routing_key"] == {"type": "binary", "value": "//4="}
    assert gateway.paths[-1] == "/v1/brokers/orders/exchanges/%FF%FE:publish"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"payload": "binary"}, "the rows have no column body; a message is made of body, routing_key"),
        ({"body": "binary", "colour": "string"}, "nothing is made of the column 'colour'; a message is made of"),
        ({"body": "bigint"}, "the column body is bigint, not binary or string"),
        ({"body": "binary", "properties": "map<string,string>"}, "the column properties is map.*, not string"),
    ],
)
def test_columns_that_make_no_message_are_named(columns: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_columns(columns)


def test_rows_that_make_no_message_are_shown_without_their_bodies(write: Write) -> None:
    with pytest.raises(ConfigurationError, match=r"a row has no body: {'key': 'mine'}"):
        write(pa.RecordBatch.from_pydict({"body": pa.array([None], pa.binary()), "key": ["mine"]}))
    with pytest.raises(ConfigurationError, match=r"properties are no JSON object: .*'properties': 'none'"):
        write(rows(1, properties="none"))
    with pytest.raises(ConfigurationError, match=r"the key 'k{256}' is not 1 to 255 characters of printable ASCII"):
        write(rows(1, key="k" * 256))
    with pytest.raises(ConfigurationError, match="printable ASCII"):
        write(rows(1, key="é"))


# -------------------------------------------------------------------------------------------------------- keys


def test_the_same_rows_have_the_same_keys_and_no_two_rows_share_one() -> None:
    row = {"routing_key": "k"}
    one, again, other, later = (Keys("", *place) for place in (("q:7", 0), ("q:7", 0), ("q:7", 1), ("q:8", 0)))
    keys = [one.of(row, b"same"), one.of(row, b"same")]
    assert keys == [again.of(row, b"same"), again.of(row, b"same")]
    assert len({*keys, other.of(row, b"same"), later.of(row, b"same")}) == 4


def test_a_row_in_the_place_of_another_is_not_taken_for_it() -> None:
    """A task that gets its rows in another order publishes some twice, and loses none."""
    one, again = Keys("", "q:7", 0), Keys("", "q:7", 0)
    assert one.of({}, b"a") != again.of({}, b"b")
    assert one.of({"routing_key": "a"}, b"") != again.of({"routing_key": "b"}, b"")


def test_a_row_says_its_own_key_or_that_of_its_message() -> None:
    row = {"key": "mine", "message_id": "id-7"}
    assert Keys("replay:1", "w", 0).of(row, b"") == "mine"
    assert Keys("replay:1", "w", 0).of({**row, "key": None}, b"") == "replay:1:id-7"
    assert Keys("", "w", 0).of({**row, "key": ""}, b"").startswith("w:0:1:")


# --------------------------------------------------------------------------------------------- what became of it


def test_a_task_that_runs_again_publishes_nothing_twice(gateway: FakeGateway, write: Write) -> None:
    assert counted(write(rows(250), chunk_rows="100")) == counts(rows=250, published=250)
    assert counted(write(rows(250), chunk_rows="100")) == counts(rows=250, repeated=250)
    assert len(gateway.published) == 250
    assert gateway.bodies() == [f"body {number}".encode() for number in range(250)]


def test_a_request_whose_answer_is_lost_is_sent_again_under_the_same_keys(
    gateway: FakeGateway, write: Write, clock: Time
) -> None:
    gateway.fail("*:publish", 1, after=True)
    gateway.fail("*:publish", 1, cut=30)
    gateway.fail("*:publish", 1, status=503)
    assert counted(write(rows(50))) == counts(rows=50, repeated=50)
    assert gateway.received == 150
    assert len(gateway.published) == 50
    assert len(clock.slept) == 3


def test_a_gateway_that_stays_away_is_an_error_in_the_end(gateway: FakeGateway, write: Write, clock: Time) -> None:
    gateway.fail("*:publish", 1_000, status=503)
    with pytest.raises(ServiceUnreachable, match=r"answered 503: .* for 20 s, over"):
        write(rows(5), unavailable_timeout="20")


def test_messages_that_can_be_taken_later_are_sent_again_and_the_others_are_not(
    gateway: FakeGateway, write: Write
) -> None:
    refusals = {b"body 3": 2, b"body 7": 1}

    def later(message: dict[str, Any]) -> tuple[int, str, bool] | None:
        body = base64.b64decode(message["payload"])
        if refusals.get(body):
            refusals[body] -= 1
            return 504, "outcome_unknown", True
        return None

    gateway.refuses = later
    assert counted(write(rows(10))) == counts(rows=10, published=10)
    assert gateway.received == 10 + 2 + 1


def test_messages_that_are_never_taken_wait_no_longer_than_a_gateway_that_is_away(
    gateway: FakeGateway, write: Write, clock: Time
) -> None:
    gateway.refuses = lambda message: (503, "publish_refused", True)
    with pytest.raises(ServiceUnreachable, match="takes 5 messages later: no publish_refused for 20 s"):
        write(rows(5), unavailable_timeout="20")


def test_a_message_that_will_never_be_taken_fails_the_task_by_its_key(gateway: FakeGateway, write: Write) -> None:
    gateway.refuses = lambda message: (422, "unroutable", False)
    with pytest.raises(ServiceRefused, match="the message with key mine was not taken: 422 unroutable: no unroutable"):
        write(rows(1, key="mine"))


def test_or_it_is_counted_and_named_and_the_others_go_on(
    gateway: FakeGateway, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refuses = lambda message: (422, "unroutable", False) if message["payload"] == "Ym9keSAz" else None
    assert counted(write(rows(10), on_refused="count")) == counts(rows=10, published=9, refused=1)
    (said,) = caplog.records
    assert said.gateway_fields["reason"] == "422 unroutable: no unroutable"  # type: ignore[attr-defined]


def test_the_named_ones_are_not_without_end(
    gateway: FakeGateway, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refuses = lambda message: (422, "unroutable", False)
    assert write(rows(50), on_refused="count").refused == 50
    assert len(caplog.records) == 20


def test_a_request_that_is_too_large_is_divided(gateway: FakeGateway, write: Write) -> None:
    gateway.batch_max = 30
    assert counted(write(rows(100))) == counts(rows=100, published=100)
    assert gateway.bodies() == [f"body {number}".encode() for number in range(100)]


def test_a_single_message_that_is_too_large_is_refused(gateway: FakeGateway, write: Write) -> None:
    gateway.batch_max = 0
    with pytest.raises(ServiceRefused, match="body_too_large"):
        write(rows(1))
    assert counted(write(rows(2), on_refused="count")) == counts(rows=2, refused=2)


def test_requests_hold_so_many_rows_and_octets(gateway: FakeGateway, write: Write) -> None:
    write(rows(25), chunk_rows="10")
    assert gateway.seen.total() == 3
    big = pa.RecordBatch.from_pydict({"body": [bytes(1_000)] * 9})
    write(big, chunk_octets="5000")
    assert gateway.seen.total() == 3 + 3, "three to a request"


@pytest.mark.parametrize("octets", [b'{"results": []}', b"<html>", b"null"])
def test_something_that_is_no_gateway_is_refused(gateway: FakeGateway, write: Write, octets: bytes) -> None:
    gateway.fail("*:publish", 1, octets=octets)
    with pytest.raises(ServiceRefused, match="answered 200 with 0 results for 3 messages; is it a gateway"):
        write(rows(3))


def test_reasons_are_counted_and_the_first_are_named(gateway: FakeGateway, write: Write) -> None:
    codes = {b"body 1": "unroutable", b"body 4": "unroutable", b"body 6": "not_found"}
    gateway.refuses = lambda message: (
        (422, code, False) if (code := codes.get(base64.b64decode(message["payload"]))) else None
    )
    found = write(rows(10, key=""), on_refused="count", id="x")
    assert found.reasons == {"unroutable": 2, "not_found": 1}
    assert [why for _, why in found.named] == ["422 unroutable: no unroutable"] * 2 + ["422 not_found: no not_found"]
    both = Counts(reasons={"unroutable": 1}, named=[("k", "why")] * NAMED_MAX, began=1.0, ended=2.0)
    both.add(found)
    assert (both.reasons, len(both.named)) == ({"unroutable": 3, "not_found": 1}, NAMED_MAX)
    assert (both.began, both.ended) == (1.0, found.ended)


def test_what_was_refused_for_good_is_tried_under_another_key(gateway: FakeGateway, write: Write) -> None:
    """By each further attempt once; and once it is taken it is published no more."""
    gateway.refuses = lambda message: (422, "unroutable", False)
    for keys in ({"k"}, {"k", "k~2"}, {"k", "k~2", "k~3"}):
        assert write(rows(1, key="k"), on_refused="count", retry_refused="true").refused == 1
        assert gateway.finals == keys
    assert write(rows(1, key="k"), on_refused="count").refused == 1
    assert gateway.finals == {"k", "k~2", "k~3"}
    gateway.refuses = lambda message: (422, "unroutable", False) if message["key"] in gateway.finals else None
    assert counted(write(rows(1, key="k"), retry_refused="true")) == counts(rows=1, published=1)
    assert counted(write(rows(1, key="k"), retry_refused="true")) == counts(rows=1, repeated=1)
    assert gateway.order == ["k~4"]


def test_tries_are_not_without_end(gateway: FakeGateway, write: Write) -> None:
    gateway.finals = {"k", *(f"k~{number}" for number in range(2, TRIES_MAX + 1))}
    gateway.refuses = lambda message: (422, "unroutable", False)
    assert write(rows(1, key="k"), on_refused="count", retry_refused="true", unavailable_timeout="2000").refused == 1
    assert f"k~{TRIES_MAX + 1}" not in gateway.finals


# -------------------------------------------------------------------------------------------------------- pace


def test_the_rate_is_measured(gateway: FakeGateway, write: Write, clock: Time) -> None:
    """From the first request to when the one behind the last would have been due."""
    found = write(rows(1_000), rate="200")
    assert (found.ended - found.began) == pytest.approx(5.0)
    assert write(rows(0)).began == 0.0


def test_a_rate_is_shared_by_the_writers_and_kept(gateway: FakeGateway, write: Write, clock: Time) -> None:
    begun = clock.now
    write(rows(1_000), rate="200", writers="2")
    assert clock.now - begun == pytest.approx(10, abs=0.5)
    assert max(clock.slept) <= 0.5
    assert gateway.seen.total() == 20, "no request holds more than half a second's"


def test_writers_do_not_all_begin_at_once(write: Write, clock: Time) -> None:
    write(rows(10), partition=1, rate="20", writers="2")
    assert clock.slept[0] == pytest.approx(0.25)


def test_time_that_was_lost_is_not_made_up_for_by_a_burst(gateway: FakeGateway, write: Write, clock: Time) -> None:
    gateway.fail("*:publish", 8, status=503)
    write(rows(200), rate="100")
    assert sum(clock.slept) > 2
