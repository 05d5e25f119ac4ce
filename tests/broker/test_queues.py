"""Queues: declarations, limits, expiry, order."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Cancelled,
    Confirmed,
    Consume,
    Consuming,
    Credit,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    Get,
    GotNothing,
    PurgeQueue,
    QueryQueue,
    Refused,
    Removed,
    SelectConfirm,
    Settlement,
)
from gateway.amqp.values import Timestamp, Typed
from gateway.limits import BrokerLimits
from gateway.session import Version
from gateway.v010.version import V0_10
from gateway.v08.version import V0_8
from tests.broker.clients import SECONDS_1970, Client, ack, make_broker, publishing


@pytest.fixture
def client() -> Client:
    return Client(make_broker())


# ------------------------------------------------------------------------------------------- declarations


def test_declared(client: Client) -> None:
    declared = client.one(DeclareQueue(1, "q", durable=True, arguments={"x-max-length": 5}), Declared)
    assert declared == Declared(1, 2, 2, "q", 0, 0, True, {"x-max-length": 5}, auto_delete=False)
    client.publish("q")
    client(Consume(1, "q", "tag", acquired=False))
    client.take()
    again = client.one(DeclareQueue(1, "q", passive=True), Declared)
    assert (again.message_count, again.consumer_count) == (1, 1)
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 1


def test_named_by_the_server(client: Client) -> None:
    first = client.one(DeclareQueue(1, "", exclusive=True), Declared).queue
    second = client.one(DeclareQueue(1, "", exclusive=True), Declared).queue
    assert first.startswith("amq.gen-")
    assert len(first) == len("amq.gen-") + 22
    assert first != second
    assert client.failure(DeclareQueue(1, "amq.mine")) == (
        403,
        "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
    )


def test_an_empty_name_is_the_queue_declared_last(client: Client) -> None:
    assert client.failure(Get(1, "")) == (404, "NOT_FOUND - no previously declared queue")
    name = client.one(DeclareQueue(1, ""), Declared).queue
    client(BindQueue(1, "", "amq.direct"))
    client.publish(name, b"x", "amq.direct")
    assert client.one(DeclareQueue(1, "", passive=True), Declared).message_count == 1
    assert client.drain("") == [b"x"]
    assert isinstance(client.one(Consume(1, "", "tag"), Consuming), Consuming)
    assert client.one(PurgeQueue(1, ""), Removed).message_count == 0


def test_what_is_not_there(client: Client) -> None:
    text = "NOT_FOUND - no queue 'q' in vhost '/'"
    for request in (
        DeclareQueue(1, "q", passive=True),
        QueryQueue(1, "q"),
        Get(1, "q"),
        Consume(1, "q"),
        PurgeQueue(1, "q"),
    ):
        assert client.failure(request) == (404, text)
    assert client.one(DeleteQueue(1, "q"), Removed).message_count == 0


def test_a_text_fits_a_short_string(client: Client) -> None:
    code, text = client.failure(Get(1, "é" * 127))
    assert code == 404
    assert len(text.encode()) <= 255
    assert text.startswith("NOT_FOUND - no queue 'éé")


@pytest.mark.parametrize(
    ("difference", "code", "argument"),
    [
        ({"durable": True}, 406, "'durable'"),
        ({"auto_delete": True}, 406, "'auto_delete'"),
        ({"exclusive": True}, 405, "locked"),
        (
            {"arguments": {"x-max-length": 6}},
            406,
            "'x-max-length' for queue 'q' in vhost '/': received '6' but current is '5'",
        ),
        ({"arguments": {}}, 406, "received none but current is '5'"),
    ],
)
def test_redeclare(client: Client, difference: dict[str, Any], code: int, argument: str) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-length": 5}))
    client.one(DeclareQueue(1, "q", arguments={"x-max-length": Typed("int64", 5)}), Declared)
    found, text = client.failure(DeclareQueue(1, "q", **{"arguments": {"x-max-length": 5}} | difference))
    assert found == code
    assert argument in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-unheard-of": 1},
        {"x-queue-type": "quorum"},
        {"x-queue-mode": "lazy"},
        {"x-expires": 0},
        {"x-expires": "soon"},
        {"x-message-ttl": -1},
        {"x-max-length": True},
        {"x-overflow": "explode"},
        {"x-max-priority": 256},
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-single-active-consumer": "perhaps"},
        {"qpid.lifetime_policy": "SHORT"},
    ],
)
def test_arguments_that_are_refused_by_name(client: Client, arguments: dict[str, Any]) -> None:
    code, text = client.failure(DeclareQueue(1, "q", arguments=arguments))
    assert code == 406
    assert text.startswith("PRECONDITION_FAILED - ")
    assert next(iter(arguments)) in text
    assert "queue 'q' in vhost '/'" in text


def test_classic_is_what_every_queue_is(client: Client) -> None:
    client.one(DeclareQueue(1, "q", arguments={"x-queue-type": "classic"}), Declared)
    client.one(DeclareQueue(1, "q"), Declared)
    client.one(DeclareQueue(1, "p"), Declared)
    client.one(DeclareQueue(1, "p", arguments={"x-queue-type": "classic"}), Declared)


# --------------------------------------------------------------------------------------------- exclusive


def test_exclusive(client: Client) -> None:
    other = Client(client.broker)
    client(DeclareQueue(1, "q", exclusive=True))
    client.one(DeclareQueue(1, "q", exclusive=True), Declared)
    for request in (
        DeclareQueue(1, "q", exclusive=True),
        DeclareQueue(1, "q", passive=True),
        Get(1, "q"),
        Consume(1, "q"),
        PurgeQueue(1, "q"),
        DeleteQueue(1, "q"),
        BindQueue(1, "q", "amq.direct"),
    ):
        code, text = other.failure(request)
        assert code == 405
        assert text.startswith("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'.")
    other.publish("q", b"x")
    assert client.drain("q") == [b"x"]


def test_exclusive_queues_go_with_their_connection(client: Client) -> None:
    client(DeclareQueue(1, "q", exclusive=True, durable=True), DeclareQueue(1, "stays"))
    client.broker.disconnect(client.connection, 0)
    other = Client(client.broker)
    assert other.failure(QueryQueue(1, "q"))[0] == 404
    other.one(QueryQueue(1, "stays"), Declared)


@pytest.mark.parametrize("version", [V0_8, V0_10])
def test_durable_subscriptions_outlive_their_connection(version: Version) -> None:
    broker = make_broker()
    client = Client(broker, version)
    client(
        DeclareQueue(1, "subscription", durable=True, exclusive=True), BindQueue(1, "subscription", "amq.topic", "#")
    )
    client(DeclareQueue(1, "temporary", exclusive=True))
    broker.disconnect(client.connection, 0)
    publisher = Client(broker)
    publisher.publish("k", b"x", "amq.topic")
    again = Client(broker, version)
    again.one(DeclareQueue(1, "subscription", durable=True, exclusive=True), Declared)
    assert publisher.failure(Get(1, "subscription"))[0] == 405
    assert again.drain("subscription") == [b"x"]
    assert "temporary" not in broker.virtual_host("/").queues


def test_qpid_policies(client: Client) -> None:
    arguments = {"qpid.exclusivity_policy": "CONTAINER", "qpid.lifetime_policy": "PERMANENT"}
    client(DeclareQueue(1, "stays", durable=True, arguments=arguments))
    client(DeclareQueue(1, "goes", arguments={"qpid.lifetime_policy": "DELETE_ON_CONNECTION_CLOSE"}))
    client(DeclareQueue(1, "shared", arguments={"qpid.lifetime_policy": "DELETE_ON_NO_OUTBOUND_LINKS"}))
    other = Client(client.broker)
    assert other.failure(Get(1, "stays"))[0] == 405
    other.one(Get(1, "goes"), GotNothing)
    other(Consume(1, "shared", "tag"))
    client.broker.disconnect(client.connection, 0)
    assert sorted(client.broker.virtual_host("").queues) == ["shared", "stays"]
    client.broker.disconnect(other.connection, 0)
    assert sorted(client.broker.virtual_host("").queues) == ["stays"]


def test_link_policy_is_one_consumer(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"qpid.exclusivity_policy": "LINK"}), Consume(1, "q", "tag"))
    assert client.failure(Consume(1, "q", "other"))[0] == 403


# ------------------------------------------------------------------------------------------------- delete


def test_delete(client: Client) -> None:
    client(
        DeclareQueue(1, "q"), BindQueue(1, "q", "amq.fanout"), publishing("q"), publishing("", exchange="amq.fanout")
    )
    assert client.failure(DeleteQueue(1, "q", if_empty=True)) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' is not empty",
    )
    assert client.one(DeleteQueue(1, "q"), Removed).message_count == 2
    assert client.broker.memory.used == 0
    client(DeclareQueue(1, "q"))
    client.publish("", b"x", "amq.fanout")
    assert client.drain("q") == []


def test_delete_tells_consumers(client: Client) -> None:
    other = Client(client.broker)
    client(DeclareQueue(1, "q"))
    other(Consume(1, "q", "tag"))
    assert client.failure(DeleteQueue(1, "q", if_unused=True)) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' in use",
    )
    client(DeleteQueue(1, "q"))
    assert other.take() == [Cancelled(1, "tag")]
    assert client.broker.virtual_host("/").consumers == 0
    client(DeclareQueue(1, "q"))
    other(Consume(1, "q", "tag"))


def test_a_delivery_of_a_deleted_queue_can_be_settled(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q"), publishing("q"))
    for _ in range(2):
        client.get("q", no_ack=False)
    client(DeleteQueue(1, "q"))
    assert client(ack(1), ack(2, settlement=Settlement.RELEASE)) == []
    assert client.broker.memory.used == 0


def test_auto_delete(client: Client) -> None:
    client(DeclareQueue(1, "q", auto_delete=True), Consume(1, "q", "one"), Consume(1, "q", "two"))
    vhost = client.broker.virtual_host("/")
    client(Cancel(1, "one"))
    assert "q" in vhost.queues
    client(Cancel(1, "two"))
    assert "q" not in vhost.queues


def test_purge_leaves_what_is_out(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q", b"1"), publishing("q", b"2"), publishing("q", b"3"))
    client.get("q", no_ack=False)
    assert client.one(PurgeQueue(1, "q"), Removed).message_count == 2
    client(ack(1, settlement=Settlement.RELEASE))
    assert client.drain("q") == [b"1"]
    assert client.broker.memory.used == 0


def test_limits_on_objects() -> None:
    limits = BrokerLimits(queues=2, exchanges=7, bindings=1, consumers=1)
    client = Client(make_broker(limits))
    client(DeclareQueue(1, "a"), DeclareQueue(1, "b"))
    assert client.failure(DeclareQueue(1, "c"))[0] == 506
    client(DeclareQueue(1, "a"))
    client(DeclareExchange(1, "x"))
    assert client.failure(DeclareExchange(1, "y"))[0] == 506
    client(BindQueue(1, "a", "x"), BindQueue(1, "a", "x"))
    assert client.failure(BindQueue(1, "b", "x"))[0] == 506
    client(Consume(1, "a", "tag"))
    assert client.failure(Consume(1, "b", "tag2"))[0] == 506


# ------------------------------------------------------------------------------------------------- lengths


def test_max_length_drops_the_head(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-length": 2}))
    for number in range(5):
        client.publish("q", b"%d" % number)
    assert client.drain("q") == [b"3", b"4"]
    assert client.broker.memory.used == 0


def test_max_length_bytes(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-length-bytes": 10}))
    for body in (b"aaaa", b"bbbb", b"cccc"):
        client.publish("q", body)
    assert client.drain("q") == [b"bbbb", b"cccc"]
    client.publish("q", b"x" * 11)
    assert client.drain("q") == []


def test_a_waiting_consumer_is_served_before_the_limit(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-length": 0}), Consume(1, "q", "tag", no_ack=True))
    client.take()
    client.broker.receive(client.connection, [publishing("q", b"x")], 0)
    assert client.bodies() == [b"x"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_reject_publish(client: Client, overflow: str) -> None:
    client(DeclareQueue(1, "dead"))
    arguments = {
        "x-max-length": 1,
        "x-overflow": overflow,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    client(DeclareQueue(1, "q", arguments=arguments), SelectConfirm(1))
    assert client.publish("q", b"1") == [Confirmed(1, 5, 5)]
    (refused,) = client.publish("q", b"2")
    assert isinstance(refused, Refused)
    assert (refused.first, refused.last) == (6, 6)
    assert client.drain("q") == [b"1"]
    assert client.drain("dead") == ([b"2"] if overflow.endswith("dlx") else [])
    assert client.broker.memory.used == 0


def test_reject_publish_without_confirms_drops(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    assert client.publish("q", b"1") == []
    assert client.publish("q", b"2") == []
    assert client.drain("q") == [b"1"]


def test_priorities(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-priority": 5}))
    for priority in (None, 3, 0, 5, 200, 3):
        client.publish("q", str(priority).encode(), priority=priority)
    assert client.drain("q") == [b"5", b"200", b"3", b"3", b"None", b"0"]


def test_requeued_messages_take_their_old_places(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-max-priority": 1}))
    for number in range(8):
        client.publish("q", b"%d" % number, priority=number % 2)
    got = [client.get("q", no_ack=False) for _ in range(7)]
    assert [each.message.body for each in got if each] == [b"1", b"3", b"5", b"7", b"0", b"2", b"4"]
    client(
        ack(6, settlement=Settlement.RELEASE),
        ack(3, settlement=Settlement.RELEASE),
        ack(1, settlement=Settlement.RELEASE),
    )
    client.publish("q", b"8")
    first = client.get("q")
    assert first is not None
    assert first.redelivered
    assert (first.message.body, first.message_count) == (b"1", 4)
    assert client.drain("q") == [b"5", b"2", b"6", b"8"]


# -------------------------------------------------------------------------------------------------- expiry


def test_message_ttl(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-message-ttl": 1_000}), now=10)
    client.publish("q", b"1")
    client.publish("q", b"2", expiration="400")
    client(publishing("q", b"3", expiration="5000"), now=10.5)
    broker = client.broker
    assert broker.next_timeout() == 11
    broker.handle_timeout(10.9)
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 3
    broker.handle_timeout(11)
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 1
    assert broker.next_timeout() == 11.5
    broker.handle_timeout(11.5)
    assert client.drain("q") == []
    assert broker.next_timeout() is None
    assert broker.memory.used == 0


def test_expired_messages_are_never_delivered(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q", b"1", expiration="100"), publishing("q", b"2"), now=10)
    client.now = 20
    assert client.drain("q") == [b"2"]


def test_a_message_behind_one_that_stays_expires_at_the_head(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q", b"1"), publishing("q", b"2", expiration="100"), now=10)
    client.broker.handle_timeout(11)
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 2
    client.now = 11
    client.get("q")
    assert client.broker.next_timeout() == 10.1
    client.broker.handle_timeout(11)
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 0


def test_ttl_0_is_now_or_never(client: Client) -> None:
    client(DeclareQueue(1, "q"))
    client.publish("q", b"1", expiration="0")
    assert client.one(QueryQueue(1, "q"), Declared).message_count == 0
    client(Consume(1, "q", "tag", no_ack=True))
    client.broker.receive(client.connection, [publishing("q", b"2", expiration="0")], 0)
    assert client.bodies() == [b"2"]


def test_endless_expiration(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q", expiration="9" * 20), publishing("q", expiration="0" * 30 + "1"))
    assert client.broker.next_timeout() is None
    client.get("q")
    assert client.broker.next_timeout() == 0.001


@pytest.mark.parametrize("expiration", ["", "-1", "1.5", "soon", "٣"])
def test_expiration_that_is_no_number(client: Client, expiration: str) -> None:
    client(DeclareQueue(1, "q"))
    code, text = client.failure(publishing("q", expiration=expiration))
    assert code == 406
    assert f"invalid expiration '{expiration}'" in text


def test_requeued_messages_still_expire(client: Client) -> None:
    client(DeclareQueue(1, "q"), publishing("q", b"1", expiration="1000"), now=10)
    client.get("q", no_ack=False)
    client.broker.handle_timeout(12)
    client(ack(1, settlement=Settlement.RELEASE), now=12)
    client.broker.handle_timeout(12)
    assert client.drain("q") == []


def test_x_expires(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-expires": 1_000}), now=10)
    client(Consume(1, "q", "tag"), now=10.5)
    client.broker.handle_timeout(20)
    client.take()
    client(Cancel(1, "tag"), now=30)
    assert client.broker.next_timeout() == 31
    client(Get(1, "q"), now=30.9)
    client.broker.handle_timeout(31)
    assert client.broker.next_timeout() == 31.9
    client.broker.handle_timeout(31.9)
    assert client.failure(QueryQueue(1, "q"))[0] == 404


# -------------------------------------------------------------------------------------------- dead letters


def deaths(client: Client, queue: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    got = client.get(queue)
    assert got is not None
    headers = got.message.properties.headers
    assert headers is not None
    return headers, headers["x-death"]


def with_dead_letters(client: Client, **arguments: Any) -> None:
    client(DeclareQueue(1, "dead"), DeclareExchange(1, "dlx", "fanout"), BindQueue(1, "dead", "dlx"))
    client(DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "dlx"} | arguments))


def test_rejected(client: Client) -> None:
    with_dead_letters(client)
    client.publish("q", b"x", headers={"mine": 1}, message_id="m")
    client.get("q", no_ack=False)
    client(ack(1, settlement=Settlement.REJECT))
    got = client.get("dead")
    assert got is not None
    assert (got.exchange, got.routing_key, got.message.body, got.redelivered) == ("dlx", "q", b"x", False)
    assert got.message.properties.message_id == "m"
    assert got.message.properties.headers == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-death": [
            {
                "count": Typed("int64", 1),
                "reason": "rejected",
                "queue": "q",
                "time": Timestamp(int(SECONDS_1970)),
                "exchange": "",
                "routing-keys": ["q"],
            }
        ],
    }
    assert client.broker.memory.used == 0


def test_expired_and_its_expiration(client: Client) -> None:
    with_dead_letters(client)
    client.publish("q", b"x", expiration="100")
    client.broker.handle_timeout(1)
    got = client.get("dead")
    assert got is not None
    assert got.message.properties.expiration is None
    headers = got.message.properties.headers or {}
    assert headers["x-first-death-reason"] == "expired"
    assert headers["x-death"][0]["original-expiration"] == "100"


def test_maxlen_and_routing_key(client: Client) -> None:
    with_dead_letters(client, **{"x-max-length": 1, "x-dead-letter-routing-key": "other"})
    client.publish("q", b"1")
    client.publish("q", b"2")
    got = client.get("dead")
    assert got is not None
    assert (got.routing_key, got.message.body) == ("other", b"1")
    assert (got.message.properties.headers or {})["x-first-death-reason"] == "maxlen"


def test_deaths_are_counted_per_queue_and_reason(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}))
    client.publish("q", b"x")
    for delivery in range(1, 4):
        client.get("q", no_ack=False)
        client(ack(delivery, settlement=Settlement.REJECT))
    headers, entries = deaths(client, "q")
    assert [entry["count"] for entry in entries] == [Typed("int64", 3)]
    assert headers["x-first-death-queue"] == "q"


def test_newest_death_first(client: Client) -> None:
    client(DeclareQueue(1, "last"))
    client(
        DeclareQueue(
            1, "b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "last", "x-max-length": 0}
        )
    )
    client(
        DeclareQueue(
            1, "a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 0}
        )
    )
    client.publish("a", b"x")
    headers, entries = deaths(client, "last")
    assert [(entry["queue"], entry["reason"]) for entry in entries] == [("b", "maxlen"), ("a", "expired")]
    assert headers["x-first-death-queue"] == "a"


def test_a_cycle_that_nobody_ends_is_cut(client: Client) -> None:
    client(
        DeclareQueue(
            1, "a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 0}
        )
    )
    client(
        DeclareQueue(
            1, "b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-message-ttl": 0}
        )
    )
    client.publish("a", b"x")
    assert client.broker.memory.used == 0


def test_a_cycle_with_a_rejection_goes_on(client: Client) -> None:
    client(
        DeclareQueue(
            1, "a", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b", "x-message-ttl": 100}
        )
    )
    client(DeclareQueue(1, "b", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"}))
    client.publish("a", b"x")
    client.broker.handle_timeout(1)
    client.get("b", no_ack=False)
    client(ack(1, settlement=Settlement.REJECT), now=1)
    client.broker.handle_timeout(2)
    _, entries = deaths(client, "b")
    assert [(entry["queue"], entry["count"].value) for entry in entries] == [("a", 2), ("b", 1)]


def test_a_foreign_x_death_is_put_aside(client: Client) -> None:
    with_dead_letters(client, **{"x-message-ttl": 0})
    client.publish("q", headers={"x-death": "nonsense"})
    assert len(deaths(client, "dead")[1]) == 1
    client.publish("q", headers={"x-death": ["nonsense", {"queue": "q", "reason": "expired", "count": "many"}]})
    assert deaths(client, "dead")[1][0]["count"] == Typed("int64", 1)


def test_a_dead_letter_exchange_that_is_not_there(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "none", "x-message-ttl": 0}))
    client.publish("q", b"x")
    assert client.broker.memory.used == 0


def test_alternate_exchange_of_a_queue() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "dead"), BindQueue(1, "dead", "amq.fanout"))
    client(DeclareQueue(1, "q", arguments={"alternate-exchange": "amq.fanout"}))
    client(publishing("q", b"0", expiration="0"), publishing("q", b"1"), publishing("q", b"2"))
    client(Get(1, "q"))
    client(ack(1, settlement=Settlement.REJECT))
    assert client.one(DeleteQueue(1, "q"), Removed).message_count == 1
    assert client.drain("dead") == [b"1", b"2"]
    assert client.broker.memory.used == 0


def test_alternate_and_dead_letter_exchange_are_one_across_versions(client: Client) -> None:
    client(DeclareQueue(1, "q", arguments={"x-dead-letter-exchange": "amq.fanout"}))
    other = Client(client.broker, V0_10)
    other.one(DeclareQueue(1, "q", arguments={"alternate-exchange": "amq.fanout"}), Declared)
    code, text = other.failure(DeclareQueue(1, "q", arguments={"alternate-exchange": "amq.topic"}))
    assert code == 406
    assert "dead-letter-exchange" in text


def test_exclusive_queues_that_go_early_are_forgotten(client: Client) -> None:
    for number in range(3):
        client(DeclareQueue(1, f"q{number}", exclusive=True, auto_delete=True), Consume(1, f"q{number}", "tag"))
        client(Cancel(1, "tag"))
    client(DeclareQueue(1, "q", exclusive=True), DeleteQueue(1, "q"))
    client(DeclareQueue(1, "stays", arguments={"qpid.lifetime_policy": "DELETE_ON_CONNECTION_CLOSE"}))
    assert [queue.name for queue in client.connection.owned] == ["stays"]


def test_strings_may_be_octets(client: Client) -> None:
    client.one(DeclareQueue(1, "q", arguments={"x-overflow": b"reject-publish"}), Declared)


def test_an_expired_head_makes_room_for_what_is_behind_it() -> None:
    client = Client(make_broker(), V0_10)
    client(DeclareQueue(1, "q"), Consume(1, "q", "d", credit=True), Credit(1, "d", None, 10))
    client(publishing("q", b"x" * 100, expiration="1000"), publishing("q", b"small"))
    assert client.bodies() == []
    client.broker.handle_timeout(1)
    assert client.bodies() == [b"small"]


def test_what_is_too_large_for_one_goes_to_another_and_the_next_to_the_first() -> None:
    client = Client(make_broker(), V0_10)
    other = Client(client.broker)
    client(DeclareQueue(1, "q"), Consume(1, "q", "d", credit=True), Credit(1, "d", None, 10))
    client.publish("q", b"x" * 100)
    other(Consume(1, "q", "tag", no_ack=True))
    client.broker.receive(other.connection, [publishing("q", b"small")], 0)
    assert client.bodies() == [b"small"]
