"""One publish that its broker dislikes among many: it is found and named, and all others are confirmed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.amqp.operations import (
    Closed,
    CloseReason,
    Confirmed,
    Failed,
    OpenChannel,
    Publish,
    QueryExchange,
    SelectConfirm,
)
from gateway.errors import (
    AccessRefused,
    BrokerUnavailable,
    FrameSyntaxError,
    GatewayError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    PublishRefused,
    RemoteError,
)
from gateway.fidelity import annotation
from gateway.upstreams import PublishReceipt, Upstream
from gateway.upstreams.publishing import isolation, publisher
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, until

ROUTED = PublishReceipt(True)
RESENT = PublishReceipt(True, resent=True)


class Fussy:
    """A broker that stores what it gets and confirms it a moment later, and closes over what is poison; what comes
    behind that on the same channel it does not look at."""

    def __init__(self, broker: FakeBroker, code: int = 406, text: str = "bad", closes: str = "channel") -> None:
        self.broker = broker
        self.code = code
        self.text = text
        self.closes = closes
        self.stored: Counter[bytes] = Counter()
        self.marked: set[bytes] = set()
        self.deaths = 0
        self.most = 0
        """Most that were without an outcome at once."""
        self.delay = 0.005
        self.mute: set[bytes] = set()
        """Stored, and never confirmed."""
        self._dead: set[tuple[Peer, int]] = set()
        self._open = 0
        broker.on[Publish] = self.take
        broker.on[OpenChannel] = self.open

    def open(self, peer: Peer, operation: OpenChannel) -> None:
        self._dead.discard((peer, operation.channel))

    def is_poison(self, operation: Publish) -> bool:
        return operation.message.body.startswith(b"poison")

    def take(self, peer: Peer, operation: Publish) -> bool:
        place = (peer, operation.channel)
        if place in self._dead or (peer, 0) in self._dead:
            return True
        if self.is_poison(operation):
            self.deaths += 1
            self._open = 0
            if self.closes == "names":  # 0-10
                self._dead.add(place)
                n = operation.serial
                peer.send(Failed(operation.channel, n, n, self.code, self.text))
                peer.close_channel(operation.channel, self.code, self.text)
            elif self.closes == "channel":
                self._dead.add(place)
                peer.close_channel(operation.channel, self.code, self.text)
            else:
                self._dead.add((peer, 0))
                peer.send(Closed(0, CloseReason.PEER, self.code, self.text))
                peer.stream.close()
            return True
        body = operation.message.body
        self.stored[body] += 1
        if annotation(operation.message.properties, "resent"):
            self.marked.add(body)
        self._open += 1
        self.most = max(self.most, self._open)
        if body not in self.mute:
            asyncio.get_running_loop().call_later(self.delay, self.confirm, peer, operation)
        return True

    def confirm(self, peer: Peer, operation: Publish) -> None:
        self._open = max(0, self._open - 1)
        if (peer, operation.channel) not in self._dead and not peer.lost:
            peer.send(Confirmed(operation.channel, operation.serial, operation.serial))


def bodies(count: int, poison: Sequence[int]) -> list[bytes]:
    return [b"poison %d" % index if index in poison else b"%d" % index for index in range(count)]


async def publish_all(upstream: Upstream, messages: Sequence[bytes], exchange: str = "") -> list[object]:
    futures = [upstream.publish_nowait(exchange, "k", Message(body), timeout=10) for body in messages]
    return await asyncio.gather(*futures, return_exceptions=True)


def judge(fussy: Fussy, messages: Sequence[bytes], results: Sequence[object], window: int) -> None:
    """The culprits named, all others confirmed and stored, duplicates at most a window, each of them marked."""
    for body, result in zip(messages, results, strict=True):
        if body.startswith(b"poison"):
            assert isinstance(result, RemoteError), (body, result)
            assert fussy.text in str(result)
        else:
            assert isinstance(result, PublishReceipt), (body, result)
            assert fussy.stored[body] in (1, 2), body
            assert result.resent or fussy.stored[body] == 1
    again = [body for body, count in fussy.stored.items() if count > 1]
    assert len(again) <= window
    assert set(again) <= fussy.marked


@pytest.mark.parametrize("closes", ["channel", "names", "connection"])
@pytest.mark.parametrize("seed", range(3))
async def test_the_culprits_are_named_and_all_others_confirmed(
    broker: FakeBroker, start: Start, closes: str, seed: int
) -> None:
    chance = random.Random(seed)
    upstream = await start(broker, proving=True, publish_window=100)
    fussy = Fussy(broker, closes=closes)
    await publish_all(upstream, [b"w%d" % n for n in range(300)])  # the window is wide open
    assert fussy.most > 50
    messages = bodies(100, chance.sample(range(100), 3))
    judge(fussy, messages, await publish_all(upstream, messages), window=100)
    assert upstream.status().pending == 0
    await upstream.wait_up(30)
    assert await publish_all(upstream, [b"after"]) == [ROUTED]


async def test_other_exchanges_never_notice(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    both = await asyncio.gather(
        publish_all(upstream, bodies(30, [7])),
        publish_all(upstream, [b"other %d" % n for n in range(30)], "amq.direct"),
    )
    assert both[1] == [ROUTED] * 30
    judge(fussy, bodies(30, [7]), both[0], 30)


async def test_all_channels_of_a_connection_are_isolated_together(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 501, "FRAME_ERROR", closes="connection")
    for exchange in ("", "amq.direct"):
        await publish_all(upstream, [b"%s %d" % (exchange.encode(), n) for n in range(50)], exchange)
    fussy.stored.clear()
    one, two = bodies(40, [20]), [b"other %d" % n for n in range(40)]
    results = await asyncio.gather(publish_all(upstream, one), publish_all(upstream, two, "amq.direct"))
    judge(fussy, one, results[0], 40)
    judge(fussy, two, results[1], 40)
    assert fussy.deaths == 2  # in the window, and alone


async def test_a_window_of_nothing_but_poison(broker: FakeBroker, start: Start) -> None:
    """As many channels as culprits, and not a window of messages for each."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    await publish_all(upstream, [b"%d" % n for n in range(100)])
    results = await publish_all(upstream, bodies(50, range(50)))
    assert {type(result) for result in results} == {PreconditionFailed}
    sent = sum(operation.message.body.startswith(b"poison") for operation in broker.all(Publish))
    assert sent <= 50 + 50 + 5, sent
    assert fussy.deaths <= 51


async def test_in_transactions(transacting: FakeBroker, start: Start) -> None:
    transacting.put("k")
    upstream = await start(transacting, proving=True)
    held: dict[int, list[Publish]] = {}

    def take(peer: Peer, operation: Publish) -> bool:
        """A transaction with poison stores nothing."""
        batch = held.setdefault(operation.channel, [])
        batch.append(operation)
        if len(batch) == 1:
            asyncio.get_running_loop().call_later(0.005, commit, peer, operation.channel)
        return True

    def commit(peer: Peer, channel: int) -> None:
        batch = held.pop(channel)
        if any(operation.message.body.startswith(b"poison") for operation in batch):
            peer.close_channel(channel, 406, "PRECONDITION_FAILED - partial tx completion")
            return
        for operation in batch:
            transacting.queues["k"].append((operation.message, False))
        peer.send(Confirmed(channel, batch[0].serial, batch[-1].serial))

    transacting.on[Publish] = take
    messages = bodies(60, [31])
    results = await publish_all(upstream, messages)
    for body, result in zip(messages, results, strict=True):
        assert isinstance(result, OutcomeUnknown if body.startswith(b"poison") else PublishReceipt), (body, result)
    assert "partial" in str(results[31])  # a queue that is full now may have had room for the first attempt
    with pytest.raises(PublishRefused, match="partial"):
        await upstream.publish("", "k", Message(b"poison alone"))
    assert Counter(message.body for message, _ in transacting.queues["k"]) == Counter(set(messages) - {b"poison 31"})


async def test_the_first_publish_of_a_lane_goes_alone(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    fussy.delay = 0.15
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % n)) for n in range(20)]
    await until(lambda: len(broker.all(Publish)) == 1)
    await asyncio.sleep(0.01)
    assert len(broker.all(Publish)) == 1
    assert await asyncio.gather(*futures) == [ROUTED] * 20
    assert fussy.most > 1


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (403, "ACCESS_REFUSED - access to exchange 'amq.direct' in vhost '/' refused for user 'guest'", AccessRefused),
        (403, "ACCESS_REFUSED - cannot publish to internal exchange 'amq.direct' in vhost '/'", AccessRefused),
        (404, "NOT_FOUND - no exchange 'amq.direct' in vhost '/'", NotFound),
    ],
)
async def test_a_flood_to_a_refused_exchange_costs_one_channel(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch, code: int, text: str, kind: type[GatewayError]
) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, code, text)
    for _ in range(3):
        results = await publish_all(upstream, bodies(50, range(50)), "amq.direct")
        assert {type(result) for result in results} == {kind}
        assert len({id(result) for result in results}) > 1
    assert fussy.deaths == 1
    assert len(broker.all(Publish)) == 1
    assert await publish_all(upstream, [b"good"]) == [ROUTED]  # elsewhere
    monkeypatch.setattr(isolation, "REFUSED_FOR", -1.0)
    await upstream.declare_exchange("amq.direct")  # whoever says that it is there now is believed
    assert await publish_all(upstream, [b"now"], "amq.direct") == [ROUTED]


async def test_what_is_refused_is_forgotten_after_a_while(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "REFUSED_FOR", 0.05)
    upstream = await start(broker, proving=True)
    with pytest.raises(NotFound):
        await upstream.publish("later", "k", Message())
    broker.exchanges.add("later")
    with pytest.raises(NotFound):
        await upstream.publish("later", "k", Message())
    assert len(broker.all(QueryExchange)) == 1
    await asyncio.sleep(0.06)
    assert not (await upstream.publish("later", "k", Message())).routed


async def test_a_refused_routing_key_is_remembered_and_the_others_are_free(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 403, "ACCESS_REFUSED - access to topic 'bad' in exchange 'amq.direct' in vhost '/' refused")
    for _ in range(5):
        with pytest.raises(AccessRefused):
            await upstream.publish("amq.direct", "bad", Message(b"poison"))
        assert await publish_all(upstream, [b"good"], "amq.direct") == [ROUTED]
    assert fussy.deaths == 1


async def test_a_refusal_that_costs_the_connection_is_remembered_longer(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "REFUSED_FOR", -1.0)
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 403, "Permission is denied", closes="connection")
    for _ in range(5):
        with pytest.raises(AccessRefused):
            await upstream.publish("amq.direct", "bad", Message(b"poison"))
        assert await upstream.wait_up(30)
    assert fussy.deaths == 1
    assert await publish_all(upstream, [b"good"], "amq.direct") == [ROUTED]


async def test_refusals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "REFUSALS_MAX", 3)
    refusals = isolation.Refusals()
    error = RemoteError(403, "denied")
    for n in range(5):
        refusals.add("e", f"key {n}", error, 2.0)
    refusals.add("e", "another", PreconditionFailed(406, "says nothing of others"), 2.0)
    assert [n for n in range(5) if refusals.find("e", f"key {n}", 1.0)] == [2, 3, 4]
    assert refusals.find("e", "key 4", 10.0) is None
    refusals.forget("e")
    assert not refusals


async def test_the_limit_of_a_broker_is_learned(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    text = "PRECONDITION_FAILED - message size 5000 is larger than configured max size 4000"
    fussy = Fussy(broker, 406, text)
    fussy.is_poison = lambda operation: len(operation.message.body) > 4000  # type: ignore[method-assign]
    with pytest.raises(PreconditionFailed, match="larger"):
        await upstream.publish("", "k", Message(bytes(5000)))
    for _ in range(3):
        with pytest.raises(LimitExceeded, match="the broker's own limit of 4000"):
            await upstream.publish("", "k", Message(bytes(4001)))
    assert await publish_all(upstream, [bytes(4000)]) == [ROUTED]
    assert fussy.deaths == 1
    before = broker.connections
    broker.kill()  # the next one may take more
    await until(lambda: broker.connections >= before + 3)
    assert await upstream.wait_up(30)
    with pytest.raises(PreconditionFailed):
        await upstream.publish("", "k", Message(bytes(5000)))


async def test_suspects_whose_exchange_is_gone_stay_unknown(broker: FakeBroker, start: Start) -> None:
    """Some may have been stored while it was there."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 404, "NOT_FOUND - no exchange 'amq.direct' in vhost '/'")
    await publish_all(upstream, [b"w%d" % n for n in range(50)], "amq.direct")
    broker.exchanges.discard("amq.direct")
    results = await publish_all(upstream, bodies(10, range(5, 10)), "amq.direct")
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert "no exchange" in str(results[0])
    assert all(isinstance(result, GatewayError) and result.resent for result in results)
    assert fussy.deaths == 1
    with pytest.raises(NotFound):
        await upstream.publish("amq.direct", "k", Message())


@pytest.mark.parametrize("closed", [Closed(0, CloseReason.PEER, 320, "CONNECTION_FORCED"), None])
async def test_nothing_is_sent_again_after_a_mere_loss(broker: FakeBroker, start: Start, closed: Closed | None) -> None:
    upstream = await start(broker)
    fussy = Fussy(broker)
    fussy.delay = 5
    futures = [upstream.publish_nowait("", "k", Message(b"%d" % n)) for n in range(10)]
    await until(lambda: len(broker.all(Publish)) == 10)
    for peer in list(broker.peers):
        if closed is not None:
            peer.send(closed)
        peer.stream.close()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert await upstream.wait_up(30)
    assert set(fussy.stored.values()) == {1}


async def test_the_broker_goes_while_the_culprit_is_looked_for(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(100)])
    fussy.delay = 5
    futures = [upstream.publish_nowait("", "k", Message(body)) for body in bodies(10, [9])]
    await until(lambda: fussy.deaths == 1)
    await until(lambda: sum(fussy.stored.values()) == 110)  # the first of them alone
    broker.kill()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert await upstream.wait_up(30)
    fussy.delay = 0.001
    assert await publish_all(upstream, [b"after"]) == [ROUTED]


async def test_what_waits_when_the_connection_dies_over_one_publish_is_sent_later(
    broker: FakeBroker, start: Start
) -> None:
    upstream = await start(broker, proving=True, publish_window=5)
    fussy = Fussy(broker, closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(30)])
    messages = bodies(40, [2])
    judge(fussy, messages, await publish_all(upstream, messages), 5)


async def test_one_alone_on_its_channel_is_not_blamed_for_what_ended_the_connection(
    broker: FakeBroker, start: Start
) -> None:
    """The culprit was among several of another channel."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, closes="connection")
    for exchange in ("", "amq.direct"):
        await publish_all(upstream, [b"w%d" % n for n in range(30)], exchange)
    fussy.delay = 5.0
    innocent = asyncio.create_task(publish_all(upstream, [b"innocent"], "amq.direct"))
    await until(lambda: fussy.stored[b"innocent"])
    others = asyncio.create_task(publish_all(upstream, [b"1", b"poison"]))
    await until(lambda: fussy.deaths)
    fussy.delay = 0.005
    one, poison = await others
    assert isinstance(one, PublishReceipt)
    assert isinstance(poison, RemoteError)
    assert await innocent == [RESENT]


async def test_a_lane_that_opens_while_the_connection_dies_over_one_publish(broker: FakeBroker, start: Start) -> None:
    """What ends the connection is no answer to those who only wait for their channel."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 403, "Permission is denied", closes="connection")
    await publish_all(upstream, [b"w"])
    opening: list[SelectConfirm] = []

    def hold(peer: Peer, operation: SelectConfirm) -> bool:
        opening.append(operation)
        return len(opening) == 1

    broker.on[SelectConfirm] = hold
    innocent = upstream.publish_nowait("amq.direct", "k", Message(b"innocent"))
    await until(lambda: len(opening) == 1)
    with pytest.raises(AccessRefused):
        await upstream.publish("", "bad", Message(b"poison"))
    assert await innocent == ROUTED
    assert fussy.deaths == 1


async def test_what_waits_has_an_end(broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection dies over a publish, and the broker does not come back."""
    monkeypatch.setattr(publisher, "_TICK", 0.02)
    upstream = await start(broker, proving=True, publish_window=5)
    fussy = Fussy(broker, closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(30)])
    broker.down = True
    futures = [upstream.publish_nowait("", "k", Message(body), timeout=1.0) for body in bodies(8, [2])]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown] * 5 + [BrokerUnavailable] * 3
    assert fussy.deaths == 1


async def test_close_while_the_culprit_is_looked_for(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True, publish_window=5)
    fussy = Fussy(broker, closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(30)])
    broker.down = True
    futures = [upstream.publish_nowait("", "k", Message(body)) for body in bodies(8, [2])]
    await until(lambda: fussy.deaths == 1)
    async with asyncio.timeout(20):  # and not until their time is up
        await upstream.close(0.01)
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown] * 5 + [BrokerUnavailable] * 3


async def test_a_caller_that_leaves_is_not_repeated(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    await publish_all(upstream, [b"w%d" % n for n in range(100)])
    futures = [upstream.publish_nowait("", "k", Message(body)) for body in bodies(10, [9])]
    await until(lambda: fussy.deaths == 1)
    for future in futures[5:9]:
        future.cancel()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == (
        [PublishReceipt] * 5 + [asyncio.CancelledError] * 4 + [PreconditionFailed]
    )
    assert [fussy.stored[b"%d" % n] for n in range(9)] == [2] * 5 + [1] * 4


async def test_a_broker_that_fails_over_a_message_leaves_it_unknown(broker: FakeBroker, start: Start) -> None:
    """541 is its own word for not knowing what it did."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 541, "INTERNAL_ERROR", closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(100)])
    results = await publish_all(upstream, bodies(10, [5]))
    assert [type(result) for result in results] == [PublishReceipt] * 5 + [OutcomeUnknown] + [PublishReceipt] * 4
    assert fussy.deaths == 2


async def test_a_queue_that_confirms_nothing_holds_nobody_up(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_TICK", 0.01)
    monkeypatch.setattr(isolation, "PATIENCE", 0.3)  # long beside a confirm, even where this process waits its turn
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    fussy.delay = 0.0
    fussy.mute = {b"stuck"}
    stuck = upstream.publish_nowait("", "k", Message(b"stuck"), timeout=1.5)  # the first of its lane
    assert await publish_all(upstream, [b"w%d" % n for n in range(50)]) == [ROUTED] * 50
    messages = bodies(20, [19])  # and as the first suspect
    results = await publish_all(upstream, messages)
    assert not stuck.done() or isinstance(stuck.exception(), OutcomeUnknown)
    judge(fussy, messages, results, 21)
    stuck.cancel()


async def test_suspects_whose_time_is_up_hold_nobody_up(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_TICK", 0.02)
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, 501, "FRAME_ERROR", closes="connection")
    await publish_all(upstream, [b"%d" % n for n in range(10)])
    broker.on[SelectConfirm] = lambda peer, operation: broker.on.pop(SelectConfirm) is not None  # the first: silence
    suspects = [upstream.publish_nowait("", "k", Message(body), timeout=1.0) for body in (b"a", b"poison", b"b")]
    await until(lambda: fussy.deaths == 1)
    assert await upstream.wait_up(30)
    other = upstream.publish_nowait("amq.direct", "k", Message(b"other"), timeout=2)
    for result in await asyncio.gather(*suspects, return_exceptions=True):
        assert isinstance(result, OutcomeUnknown)
    assert await other == ROUTED


async def test_suspects_that_all_have_their_outcome_hold_nobody_up(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The culprit does no harm the second time: the windows open with the last outcome, not with the next tick."""
    monkeypatch.setattr(publisher, "_TICK", 60.0)
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker, closes="connection")
    await publish_all(upstream, [b"w%d" % n for n in range(100)])
    fussy.is_poison = lambda operation: operation.message.body == b"once" and not fussy.deaths  # type: ignore[method-assign]
    assert await publish_all(upstream, [b"1", b"once", b"2"]) == [RESENT] * 3
    assert fussy.deaths == 1
    async with asyncio.timeout(5):
        assert await publish_all(upstream, [b"after"]) == [ROUTED]
        assert await publish_all(upstream, [b"other"], "amq.direct") == [ROUTED]


async def test_a_caller_that_leaves_as_its_repeat_is_confirmed(broker: FakeBroker, start: Start) -> None:
    """The outcome of the second attempt finds nobody, and that is no fault."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    await publish_all(upstream, [b"w%d" % n for n in range(100)])
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    futures = [upstream.publish_nowait("", "k", Message(body)) for body in bodies(3, [2])]
    await until(lambda: fussy.deaths == 1)
    upstream.on_answered.append(lambda seconds: futures[0].cancel())  # the first on the new channel
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError, PublishReceipt, PreconditionFailed]
    assert fussy.stored[b"0"] == 2
    assert faults == []


async def test_a_poisoned_flood_is_no_denial_of_service(broker: FakeBroker, start: Start) -> None:
    """Every tenth is poison, from many callers at once, each after its last."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    fussy.delay = 0.0

    async def caller(number: int) -> None:
        for n in range(20):
            body = b"%d-%d" % (number, n)
            if number == 0:
                with pytest.raises(PreconditionFailed):
                    await upstream.publish("", "k", Message(b"poison" + body))
            else:
                assert (await upstream.publish("", "k", Message(body))).routed

    await asyncio.gather(*map(caller, range(10)))
    assert sum(fussy.stored.values()) <= 2 * 180


async def test_unreadable_properties_cannot_be_marked() -> None:
    def broken(octets: bytes) -> None:
        raise FrameSyntaxError("no properties")

    message = Message(b"x", raw=RawProperties(b"?", "x", broken))  # type: ignore[arg-type]
    assert isolation.marked(message) is message
    assert annotation(isolation.marked(Message(b"x")).properties, "resent") == "1"


async def test_a_message_without_the_reserved_header_stays_without() -> None:
    bare = Message(b"x", Properties(type="t"), None, ())
    assert isolation.marked(bare) is bare
    assert isolation.marked(Message(b"x", relayed=True)).relayed


async def test_without_annotations_there_is_no_mark(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, annotate=False)
    seen: list[Publish] = []

    def take(peer: Peer, operation: Publish) -> bool:
        seen.append(operation)
        if len(seen) == 2:
            peer.close_channel(operation.channel, 406, "one of them")
        elif len(seen) > 2:
            peer.send(Confirmed(operation.channel, operation.serial, operation.serial))
        return True

    broker.on[Publish] = take
    assert await publish_all(upstream, [b"1", b"2"]) == [RESENT, RESENT]
    assert [operation.message.properties.headers for operation in seen] == [None] * 4


async def test_a_lane_that_does_not_open(broker: FakeBroker, start: Start) -> None:
    """The channel dies again before anything could be sent again."""
    upstream = await start(broker, proving=True)
    fussy = Fussy(broker)
    await publish_all(upstream, [b"w%d" % n for n in range(100)])

    def refuse(peer: Peer, operation: SelectConfirm) -> bool:
        peer.close_channel(operation.channel, 540, "no")
        return True

    broker.on[SelectConfirm] = refuse
    results = await publish_all(upstream, bodies(5, [2]))
    assert {type(result) for result in results} == {OutcomeUnknown}
    assert fussy.deaths == 1
