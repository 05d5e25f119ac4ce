"""A broker by name: its state, and what it tells of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.amqp.operations import Close, Closed, CloseReason, DeclareQueue, Opened, Publish
from gateway.config import BrokerSettings
from gateway.errors import AuthenticationFailed, BrokerUnavailable, ConfigurationError
from gateway.runtime.backoff import Backoff
from gateway.runtime.ids import ids
from gateway.session import ClientConfig, Session, Version
from gateway.upstreams import Status, Upstream, UpstreamState, keeper
from gateway.upstreams.topology import Desk, Topology
from gateway.v08.version import V0_8
from gateway.v091.version import V0_9_1
from tests.upstreams.conftest import Start
from tests.upstreams.fake import FakeBroker, Peer, bounce, until


async def test_up_and_closed(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker, wait=False)
    assert upstream.state is UpstreamState.CONNECTING
    assert upstream.product == upstream.product_version == ""
    states: list[UpstreamState] = []
    upstream.on_state.append(lambda upstream: states.append(upstream.state))
    assert await upstream.wait_up(30)
    status = upstream.status()
    assert isinstance(status, Status)
    assert (status.state, status.reason, status.version) == (UpstreamState.UP, "", V0_9_1)
    assert (status.product, status.product_version, status.publishing, status.consuming) == ("Fake", "1", True, True)
    assert upstream.capabilities is not None
    assert upstream.version is V0_9_1
    await upstream.start()  # a second time changes nothing
    await upstream.close()
    await upstream.close()
    assert states == [UpstreamState.UP, UpstreamState.CLOSED]
    await until(lambda: not broker.peers)
    assert not await upstream.wait_up(0.01)


async def test_a_close_that_was_given_up_is_made_again(start: Start) -> None:
    broker = FakeBroker(channel_max=2)
    upstream = await start(broker, consume_connections=3)
    broker.put("q")
    consumers = [await upstream.consume("q", 1, lambda _: None) for _ in range(5)]
    assert len(broker.peers) == 5, "three, and two for further consumers"
    for consumer in consumers:
        await consumer.close()
    broker.on[Close] = lambda peer, operation: True
    closing = asyncio.create_task(upstream.close())
    await until(lambda: any(isinstance(each, Close) for peer in broker.peers for each in peer.received))
    closing.cancel()
    await asyncio.wait([closing])
    assert broker.peers
    del broker.on[Close]
    await upstream.close()
    assert not broker.peers
    assert upstream.state is UpstreamState.CLOSED


async def test_a_close_comes_as_the_pause_before_the_next_attempt_is_over(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a timeout cancels its task, too."""
    monkeypatch.setattr(keeper.Keeper, "_pause", lambda keeper: 0.0)
    broker.down = True
    for turns in range(12):  # of the event loop; an attempt and its pause take fewer
        upstream = await start(broker, wait=False)
        await until(lambda upstream=upstream: upstream.state is UpstreamState.DOWN)  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await upstream.close()


async def test_a_link_that_ends_as_its_upstream_is_closed_is_no_failure(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    link = upstream._keepers["publish"].link
    assert link is not None
    for task in upstream._tasks:
        task.cancel()
    link.stream_lost(None)
    await upstream.close()
    assert failures == []


async def test_a_wrong_url_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError):
        Upstream("x", BrokerSettings(url="http://example"))


async def test_a_broker_that_is_away_is_tried_until_it_is_there(broker: FakeBroker, start: Start) -> None:
    broker.down = True
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.state is UpstreamState.DOWN)
    assert "connection refused" in upstream.reason
    broker.down = False
    assert await upstream.wait_up(30)
    await bounce(broker, upstream)
    assert upstream.state is UpstreamState.UP


async def test_one_lost_link_does_not_touch_the_others(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    broker.put("q", b"1")
    (delivery,) = await upstream.fetch("q", 1)
    await upstream.publish("", "q", delivery.message)
    peer = next(peer for peer in broker.peers if peer.of(Publish))
    peer.hang_up()
    await until(lambda: broker.connections == 4)
    assert await upstream.wait_up(30)
    assert not delivery.lost


async def test_credentials_are_failed_and_tried_slowly(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(peer: Peer, operation: Opened) -> bool:
        peer.send(Closed(0, CloseReason.AUTHENTICATION, 403, "ACCESS_REFUSED - Login was refused"))
        return True

    broker.on[Opened] = refuse
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.state is UpstreamState.FAILED)
    assert "Login was refused" in upstream.reason
    await asyncio.sleep(0.1)
    assert broker.connections == 3
    with pytest.raises(BrokerUnavailable, match="Login was refused"):
        await upstream.publish("", "q", None)  # type: ignore[arg-type]  # refused before it is looked at
    assert issubclass(AuthenticationFailed, BrokerUnavailable)


async def test_a_login_that_is_cut_is_tried_again_soon(broker: FakeBroker, start: Start) -> None:
    """A broker that comes up hangs up on logins; that is no refusal, and waits for no minute."""
    cut = 0

    def hang_up(peer: Peer, operation: Opened) -> bool:
        nonlocal cut
        cut += 1
        if cut > 6:
            return False
        peer.send(Closed(0, CloseReason.LOGIN_CUT, 0, "the server hung up on our credentials"))
        return True

    broker.on[Opened] = hang_up
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.state is UpstreamState.DOWN)
    assert "hung up on the login" in upstream.reason
    assert upstream.status().code == "login_cut"
    assert await upstream.wait_up(10)
    assert upstream.status().code == ""


async def test_a_broker_that_cuts_every_login_counts_as_one_that_refuses_us(broker: FakeBroker, start: Start) -> None:
    def hang_up(peer: Peer, operation: Opened) -> bool:
        peer.send(Closed(0, CloseReason.LOGIN_CUT, 0, "the server hung up on our credentials"))
        return True

    broker.on[Opened] = hang_up
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.state is UpstreamState.FAILED, 10.0)
    before = broker.connections
    assert before >= keeper.CUTS
    await until(lambda: broker.connections > before + 6, 10.0)  # and is tried all the same
    del broker.on[Opened]
    assert await upstream.wait_up(10)


async def test_the_pauses_after_logins_that_were_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "fraction", lambda: 1.0)
    settings = BrokerSettings(url="amqp://h/", reconnect_min=0.1, reconnect_max=20.0)
    kept = keeper.Keeper(keeper.Dialer("x", settings), "publish", up=pytest.fail, down=pytest.fail)
    pauses = []
    for cuts in range(8):
        kept._cuts, kept.hopeless = cuts, cuts >= keeper.CUTS
        kept._backoff.reset()
        pauses.append(kept._pause())
    assert pauses == [0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    kept._cuts = 0
    assert kept._pause() == keeper.SLOW_RETRY  # a refusal that was said


async def test_a_file_that_changes_ends_the_pause(
    broker: FakeBroker, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FILES_EVERY", 0.02)
    path = tmp_path / "password"
    upstream = await start(broker, wait=False, password_file=str(path))
    await until(lambda: upstream.state is UpstreamState.FAILED)
    assert upstream.status().code == "configuration"
    path.write_text("secret\n")
    assert await upstream.wait_up(10)  # not after a minute


async def test_a_broker_that_is_still_starting_is_tried_again(broker: FakeBroker, start: Start) -> None:
    turned_away = 0

    def not_yet(peer: Peer, operation: Opened) -> bool:
        nonlocal turned_away
        turned_away += 1
        if turned_away > 6:
            return False
        peer.send(Closed(0, CloseReason.PEER, 320, "virtual host is not active"))
        return True

    broker.on[Opened] = not_yet
    upstream = await start(broker)
    assert upstream.state is UpstreamState.UP
    assert turned_away == 9


async def test_the_password_file_is_read_each_time(broker: FakeBroker, start: Start, tmp_path: Path) -> None:
    path = tmp_path / "password"
    upstream = await start(broker, wait=False, password_file=str(path))
    await until(lambda: upstream.state is UpstreamState.FAILED)
    assert "password_file" in upstream.reason
    path.write_text("secret\n")
    other = await start(broker, password_file=str(path))
    assert other.state is UpstreamState.UP
    assert {session.config.password for session in broker.sessions} == {"secret"}


async def test_auto_tells_what_it_found(broker: FakeBroker, start: Start) -> None:
    asked: list[Version] = []
    original = broker.session

    def session(version: Version, config: object) -> object:
        asked.append(version)
        return original(version, config)  # type: ignore[arg-type]

    broker.session = session  # type: ignore[method-assign,assignment]
    turned_away: list[Peer] = []

    def only_once(peer: Peer, operation: Opened) -> bool:
        if turned_away:
            return False
        turned_away.append(peer)
        peer.send(Closed(0, CloseReason.PROTOCOL_HEADER, 0, "another header", supported="0-8"))
        return True

    broker.on[Opened] = only_once
    upstream = await start(broker, version="auto")
    assert asked == [V0_9_1, V0_8, V0_8, V0_8]
    assert upstream.version is V0_8
    assert upstream.status().found == "found 0-8 (Fake 1)"


async def test_the_link_that_publishes_is_enough_to_know_the_broker(broker: FakeBroker, start: Start) -> None:
    original = broker.session

    def session(version: Version, config: ClientConfig) -> Session:
        if keeper.connection_name("fake", "publish") not in config.connection_name:
            raise BrokerUnavailable("no link but that which publishes")
        return original(version, config)

    broker.session = session  # type: ignore[method-assign]
    upstream = await start(broker, wait=False)
    await until(lambda: upstream.status().publishing and upstream.state is UpstreamState.DOWN)
    status = upstream.status()
    assert not status.consuming
    assert (status.version, status.product, status.product_version) == (V0_9_1, "Fake", "1")
    assert status.capabilities is not None


async def test_a_version_that_is_given_is_the_only_one_that_is_tried(broker: FakeBroker, start: Start) -> None:
    def elsewhere(peer: Peer, operation: Opened) -> bool:
        peer.send(Closed(0, CloseReason.PROTOCOL_HEADER, 0, "another header", supported="0-8"))
        return True

    broker.on[Opened] = elsewhere
    upstream = await start(broker, wait=False)
    await until(lambda: broker.connections >= 6)
    assert {session.version for session in broker.sessions} == {V0_9_1}
    assert upstream.state is UpstreamState.DOWN
    assert "another header" in upstream.reason


async def test_auto_where_nothing_is_spoken(broker: FakeBroker, start: Start) -> None:
    def garbage(peer: Peer, operation: Opened) -> bool:
        peer.send_octets(b"\x00\x00\x00\x04HTTP/1.1 400")
        return True

    broker.on[Opened] = garbage
    upstream = await start(broker, wait=False, version="auto")
    await until(lambda: upstream.state is UpstreamState.DOWN)
    assert "none of 0-9-1, 0-10, 0-8, 0-9 is spoken there" in upstream.reason


async def test_auto_does_not_try_other_versions_on_a_refused_login(broker: FakeBroker, start: Start) -> None:
    def refuse(peer: Peer, operation: Opened) -> bool:
        peer.send(Closed(0, CloseReason.AUTHENTICATION, 403, "no"))
        return True

    broker.on[Opened] = refuse
    upstream = await start(broker, wait=False, version="auto")
    await until(lambda: broker.connections == 3)
    assert upstream.state is UpstreamState.FAILED


async def test_a_fault_of_ours_is_logged_and_the_trying_goes_on(
    broker: FakeBroker, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    original = broker.session
    faults = [ValueError("a fault")] * 3

    def session(version: Version, config: object) -> object:
        if faults:
            raise faults.pop()
        return original(version, config)  # type: ignore[arg-type]

    broker.session = session  # type: ignore[method-assign,assignment]
    await start(broker)
    assert "a fault" in caplog.text


def test_loopback() -> None:
    assert [keeper.is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "10.0.0.1", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


async def test_plain_needs_tls_loopback_or_the_setting() -> None:
    for url, setting, secure in (
        ("amqp://h/", False, False),
        ("amqp://h/", True, True),
        ("amqps://h/", False, True),
        ("amqp://localhost/", False, True),
    ):
        dialer = keeper.Dialer("x", BrokerSettings(url=url, allow_plain_without_tls=setting))
        assert dialer.client_config("t").secure is secure
    dialer = keeper.Dialer(
        "x", BrokerSettings(url="amqp://h/", mechanisms=("PLAIN",), dialect="qpid", message_max=1 << 26)
    )
    config = dialer.client_config("t")
    assert (config.mechanisms, config.dialect, config.limits.message_max) == (("PLAIN",), "qpid", 1 << 26)
    assert config.limits.spool_max == 1 << 27


async def test_opened_and_closed_in_one_breath(broker: FakeBroker, start: Start) -> None:
    times = 0

    def both(peer: Peer, operation: Opened) -> bool:
        nonlocal times
        times += 1
        if times > 3:
            return False
        peer.send(operation, Closed(0, CloseReason.PEER, 320, "CONNECTION_FORCED - going down"))
        return True

    broker.on[Opened] = both
    upstream = await start(broker)
    assert upstream.state is UpstreamState.UP
    assert times > 3, "it was refused three times first"


async def test_a_link_that_cannot_be_made_ready_is_given_up(broker: FakeBroker, start: Start) -> None:
    upstream = await start(broker)
    await upstream.declare_queue("q")
    refusals = 0

    def hang_up(peer: Peer, operation: DeclareQueue) -> bool:
        nonlocal refusals
        refusals += 1
        peer.hang_up()
        return refusals < 3

    broker.on[DeclareQueue] = hang_up
    broker.kill()
    await until(lambda: refusals >= 2)
    del broker.on[DeclareQueue]
    assert await upstream.wait_up(30)


async def test_pauses_grow_and_begin_small_again(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def no_pause(backoff: Backoff) -> float:
        pauses.append(backoff.longest)
        backoff.failures += 1
        return 0.0

    monkeypatch.setattr(Backoff, "next", no_pause)
    monkeypatch.setattr(keeper, "SETTLED", 0.1)
    broker.down = True
    upstream = await start(broker, wait=False, reconnect_min=1.0, reconnect_max=4.0)
    await until(lambda: len(pauses) >= 12)
    assert sorted(pauses[:12]) == [1.0] * 3 + [2.0] * 3 + [4.0] * 6
    broker.down = False
    assert await upstream.wait_up(30)
    await asyncio.sleep(0.12)
    pauses.clear()
    await bounce(broker, upstream)
    assert pauses[:3] == [1.0] * 3


async def test_a_fault_while_a_link_is_made_ready_does_not_end_the_trying(
    broker: FakeBroker, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Topology.restore
    faults = [RuntimeError("a fault of ours")]

    async def sometimes(self: Topology, desk: Desk) -> None:
        if faults:
            raise faults.pop()
        await restore(self, desk)

    monkeypatch.setattr(Topology, "restore", sometimes)
    upstream = await start(broker, wait=False)
    assert await upstream.wait_up(30)
    assert not faults
