"""What one user of the embedded broker may hold beside others: connections, and bytes of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.operations import (
    BindQueue,
    Cancel,
    Close,
    CloseChannel,
    Confirmed,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Deliver,
    Failed,
    OpenChannel,
    Operation,
    PurgeQueue,
    Refused,
    SelectConfirm,
    TxSelect,
    UnbindQueue,
)
from gateway.broker.broker import Broker
from gateway.broker.declared import Kind
from gateway.budgets import BudgetBounds, Budgets
from gateway.budgets import ShareHolder as BudgetClient
from gateway.config import EmbeddedSettings, EmbeddedUser
from gateway.limits import BrokerLimits
from tests.broker.clients import SECONDS_1970, Client, ack, publishing

MEMORY = 4 << 20
SHARE = MEMORY // 4
LARGE = b"x" * 300_000
"""Three of them fit into a share."""
NAMES = ("root", "alice", "bob")


def bounds(**totals: int) -> BudgetBounds:
    return BudgetBounds(0.25, 0.1, {"embedded_bytes": MEMORY, **totals})


def made(*names: str, **totals: int) -> tuple[Broker, Budgets]:
    """Return a broker with these users, and its budgets."""
    budgets = Budgets(bounds(**totals))
    numbers = iter(range(1 << 30))
    users = tuple(EmbeddedUser(name=name, password="p") for name in names or NAMES)
    broker = Broker(
        EmbeddedSettings(users=users, queue_memory=MEMORY),
        random_octets=lambda size: next(numbers).to_bytes(size, "big"),
        wall_clock=lambda: SECONDS_1970,
        limits=BrokerLimits(ack_timeout=0),
        budgets=budgets,
    )
    return broker, budgets


def fill(client: Client, queue: str = "q", count: int = 3) -> None:
    """Publish so many large messages, with confirms."""
    client(DeclareQueue(1, queue), SelectConfirm(1))
    for _ in range(count):
        (told,) = client.publish(queue, LARGE)
        assert isinstance(told, Confirmed)


def test_a_user_at_its_share_is_refused_and_others_are_not() -> None:
    broker, budgets = made()
    alice, bob = Client(broker, user="alice"), Client(broker, user="bob")
    fill(alice)
    (refused,) = alice.publish("q", LARGE)
    assert isinstance(refused, Refused)
    assert refused.code == 506
    assert refused.text.startswith("RESOURCE_ERROR - budget embedded_bytes: 'alice' holds ")
    fill(bob)
    held = budgets["embedded_bytes"]
    assert [client.name for client, _ in held.largest(9)] == ["alice", "bob"]
    assert held.held == broker.memory.used
    assert held.refusals == {"share": 1, "total": 0, "dropped": 0}
    bob.get("q")  # a message is its publisher's, whichever user takes it
    (told,) = alice.publish("q", LARGE)
    assert isinstance(told, Confirmed)


def test_a_user_without_confirms_waits_for_its_share() -> None:
    broker, _ = made()
    alice, more, bob = Client(broker, user="alice"), Client(broker, user="alice"), Client(broker, user="bob")
    fill(alice)
    waits = b"y" * 150_000
    assert more(publishing("q", waits)) == []
    assert more.connection.waits
    assert not bob.connection.waits
    assert bob.publish("q", b"z") == []
    assert broker.next_timeout() is None
    alice(PurgeQueue(1, "q"))
    assert not more.connection.waits
    more()
    assert more.drain("q") == [waits]
    assert broker.memory.used == 0
    assert not broker._waiting_for_share


def test_one_that_waits_and_goes() -> None:
    broker, budgets = made()
    alice, more = Client(broker, user="alice"), Client(broker, user="alice")
    fill(alice)
    more(publishing("q", b"y" * 150_000))
    broker.disconnect(more.connection, 0.0)
    alice(PurgeQueue(1, "q"))
    assert not broker._waiting_for_share
    assert budgets["embedded_connections"].held == 1


def test_what_cannot_wait_costs_its_channel() -> None:
    broker, _ = made()
    alice, more = Client(broker, user="alice"), Client(broker, user="alice")
    fill(alice)
    more(TxSelect(1))
    code, text = more.failure(publishing("q", LARGE))
    assert (code, "budget embedded_bytes: 'alice'" in text) == (506, True)
    assert more.failure(publishing("q", LARGE))[0] == 506, "and one too large for its share's last fifth"


def test_dead_letters_are_their_publishers() -> None:
    broker, budgets = made()
    alice, bob = Client(broker, user="alice"), Client(broker, user="bob")
    bob(DeclareQueue(1, "dead"))
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    alice(DeclareQueue(1, "q", arguments={**dead, "x-max-length": 1}))
    for _ in range(3):
        alice.publish("q", b"x" * 1_000)
    assert [client.name for client, _ in budgets["embedded_bytes"].largest(9)] == ["alice"]
    bob(PurgeQueue(1, "dead"))
    bob(PurgeQueue(1, "q"))
    assert (budgets["embedded_bytes"].largest(9), broker.memory.used) == ([], 0)


def test_what_is_out_counts_until_it_is_acknowledged() -> None:
    broker, budgets = made()
    alice, bob = Client(broker, user="alice"), Client(broker, user="bob")
    fill(alice)
    told = bob(Consume(1, "q", "tag"))
    assert sum(isinstance(each, Deliver) for each in told) == 3
    (refused,) = alice.publish("q", LARGE)
    assert isinstance(refused, Refused)
    bob(ack(1, 3))
    assert budgets["embedded_bytes"].held == 0
    (told_alice,) = alice.publish("q", LARGE)
    assert isinstance(told_alice, Confirmed)


def test_one_message_goes_however_small_the_share_is() -> None:
    broker, _ = made()
    alice = Client(broker, user="alice")
    alice(DeclareQueue(1, "q"), SelectConfirm(1))
    (told,) = alice.publish("q", b"x" * (SHARE + 1))
    assert isinstance(told, Confirmed)
    (refused,) = alice.publish("q", b"x")
    assert isinstance(refused, Refused)


def test_connections_of_a_user() -> None:
    broker, budgets = made(embedded_connections=20)
    alice = [Client(broker, user="alice") for _ in range(5)]
    assert all(client.connection.open for client in alice)
    told = refusal(broker, "alice")
    assert told.code == 530
    assert told.text.startswith("NOT_ALLOWED - budget embedded_connections: 'alice' holds 5 connections")
    assert Client(broker, user="bob").connection.open
    broker.disconnect(alice[0].connection, 0.0)
    assert Client(broker, user="alice").connection.open
    assert budgets["embedded_connections"].held == 6


def test_the_gateway_itself_gets_in() -> None:
    """It logs in as the first user, for which a tenth is reserved."""
    broker, _ = made("root", "alice", "bob", "carol", "dave", embedded_connections=20)
    for name, count in (("alice", 5), ("bob", 5), ("carol", 5), ("dave", 3)):
        for _ in range(count):
            assert Client(broker, user=name).connection.open
    assert "2 are reserved for admin" in refusal(broker, "dave").text
    assert Client(broker, user="root").connection.open


def test_a_user_that_is_alone_has_everything() -> None:
    broker, budgets = made("guest", embedded_connections=4)
    clients = [Client(broker) for _ in range(4)]
    assert all(client.connection.open for client in clients)
    fill(clients[0], count=10)
    assert budgets["embedded_bytes"].largest(9) == [(BudgetClient("guest"), broker.memory.used)]


def test_shares_may_change() -> None:
    broker, budgets = made()
    alice = Client(broker, user="alice")
    fill(alice)
    budgets.configure(BudgetBounds(0.25, 0.1, {"embedded_bytes": MEMORY}, clients={"alice": 0.5}))
    fill(alice)
    assert isinstance(alice.publish("q", LARGE)[-1], Refused)


def refusal(broker: Broker, user: str) -> Close:
    """Return what the broker sends to a client of that user that does not get in."""
    recorder: Any = []

    class Refusing(Client):
        def __call__(self, *operations: Any, now: float | None = None) -> Any:
            told = super().__call__(*operations, now=now)
            recorder.extend(told)
            return told

    Refusing(broker, user=user)
    (told,) = [each for each in recorder if isinstance(each, Close)]
    return told


@pytest.mark.parametrize("user", ["alice", "bob"])
def test_nothing_is_left_of_a_user_that_has_gone(user: str) -> None:
    broker, budgets = made()
    client = Client(broker, user=user)
    client(DeclareQueue(1, "q", exclusive=True))
    client.publish("q", LARGE)
    broker.disconnect(client.connection, 0.0)
    while broker.next_timeout() == 0.0:
        broker.handle_timeout(0.0)
    assert (budgets["embedded_bytes"].held, budgets["embedded_connections"].held) == (0, 0)


# ------------------------------------------------------------------------------------------------- what is declared

FEW = {kind.value: 8 for kind in Kind if kind is not Kind.OCTETS}
"""Two of each are a share; of channels the client that every test has is one."""


def refusal_of(answers: list[Operation]) -> str:
    """Return the text of the refusal at the end of these answers, which must be 506; empty: it is missing."""
    last = answers[-1]
    if isinstance(last, Failed | Refused | CloseChannel):
        assert last.code == 506
        return last.text
    return ""


DECLARE: dict[Kind, Callable[[int], Operation]] = {
    Kind.CHANNELS: OpenChannel,
    Kind.EXCHANGES: lambda number: DeclareExchange(1, f"e{number}", "topic"),
    Kind.QUEUES: lambda number: DeclareQueue(1, f"q{number}"),
    Kind.BINDINGS: lambda number: BindQueue(1, "shared", "amq.topic", f"k{number}"),
    Kind.CONSUMERS: lambda number: Consume(1, "shared", f"t{number}"),
}
UNDO: dict[Kind, Callable[[int], Operation]] = {
    Kind.CHANNELS: lambda number: CloseChannel(number, 200, ""),
    Kind.EXCHANGES: lambda number: DeleteExchange(1, f"e{number}"),
    Kind.QUEUES: lambda number: DeleteQueue(1, f"q{number}"),
    Kind.BINDINGS: lambda number: UnbindQueue(1, "shared", "amq.topic", f"k{number}", {}),
    Kind.CONSUMERS: lambda number: Cancel(1, f"t{number}"),
}


@pytest.mark.parametrize("kind", DECLARE, ids=lambda kind: kind.value)
def test_a_user_has_a_share_of_what_is_declared(kind: Kind) -> None:
    broker, budgets = made(**FEW)
    root, alice, bob = Client(broker, user="root"), Client(broker, user="alice"), Client(broker, user="bob")
    root(DeclareQueue(1, "shared"))
    first = 2 if kind is Kind.CHANNELS else 1
    for number in range(first, 3):
        assert not refusal_of(alice(DECLARE[kind](number)))
    assert budgets[kind.value].largest(1) == [(BudgetClient("alice"), 2)]
    text = refusal_of(alice(DECLARE[kind](3)))
    assert f"budget {kind.value}: 'alice' holds 2 " in text
    assert budgets[kind.value].refusals["share"] == 1
    assert not refusal_of(bob(DECLARE[kind](first))), "others go on"


@pytest.mark.parametrize("kind", DECLARE, ids=lambda kind: kind.value)
def test_what_is_gone_counts_no_more(kind: Kind) -> None:
    broker, budgets = made(**FEW)
    root, alice = Client(broker, user="root"), Client(broker, user="alice")
    root(DeclareQueue(1, "shared"))
    held = budgets["embedded_declared_bytes"].held
    for number in range(2, 12):
        assert not refusal_of(alice(DECLARE[kind](number)))
        alice(UNDO[kind](number))
    assert budgets[kind.value].held == (2 if kind is Kind.CHANNELS else kind is Kind.QUEUES)
    assert budgets["embedded_declared_bytes"].held == held


def test_what_somebody_else_deletes_counts_no_more() -> None:
    broker, budgets = made(**FEW)
    root, alice = Client(broker, user="root"), Client(broker, user="alice")
    alice(DeclareQueue(1, "q"), DeclareExchange(1, "e", "topic"), BindQueue(1, "q", "e", "a.b"), Consume(1, "q", "t"))
    assert {kind.value: budgets[kind.value].held for kind in DECLARE} == {
        "embedded_channels": 2, "embedded_exchanges": 1, "embedded_queues": 1, "embedded_bindings": 1,
        "embedded_consumers": 1,
    }  # fmt: skip
    root(DeleteQueue(1, "q"))
    root(DeleteExchange(1, "e"))
    for client in (alice, root):
        broker.disconnect(client.connection, 0.0)
    assert {kind.value: budgets[kind.value].held for kind in Kind} == dict.fromkeys(Kind, 0)


def test_names_and_arguments_count() -> None:
    broker, budgets = made(embedded_declared_bytes=8_000)
    alice, bob = Client(broker, user="alice"), Client(broker, user="bob")
    texts = (refusal_of(alice(DeclareQueue(1, f"q{number}".ljust(200, "x")))) for number in range(9))
    assert not next(texts)
    assert "budget embedded_declared_bytes: 'alice' holds " in next(filter(None, texts))
    assert budgets["embedded_declared_bytes"].held <= 2_000
    assert not refusal_of(bob(DeclareQueue(1, "q".ljust(200, "y"))))


def test_a_user_that_is_alone_has_no_share() -> None:
    broker, _ = made("root", **FEW)
    root = Client(broker, user="root")
    assert not any(refusal_of(root(DeclareQueue(1, f"q{number}"))) for number in range(8))
