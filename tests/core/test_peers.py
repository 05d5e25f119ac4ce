"""The other processes: seals, secrets, whose configuration differs, and asking them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ClusterSettings, Config, HttpSettings, OpsSettings
from gateway.core.work.peers import CLOCKS, Peers, Seal, digest, shared_secret
from gateway.errors import ConfigurationError, LedgerUnavailable, PeerUnavailable
from gateway.ledger.work import Peer
from gateway.observing.telemetry import Metrics
from tests.core.test_ownership import FakeLedger, Rows

ONE, TWO = b"1" * 8, b"2" * 8
PATH = "/peer/tell"


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def sent(seal: Seal, **changes: Any) -> dict[bytes, bytes]:
    """The headers of a request as they arrive."""
    headers = seal.headers("POST", PATH, ONE, TWO, b"body") | changes
    return {name.encode(): str(value).encode("latin-1") for name, value in headers.items()}


def test_a_request_is_taken_once() -> None:
    seal = Seal(b"k" * 32)
    headers = sent(seal)
    assert seal.check("POST", PATH, TWO, headers, b"body") == ""
    assert seal.check("POST", PATH, TWO, headers, b"body") == "it was there before"


@pytest.mark.parametrize(
    ("method", "path", "body", "changes"),
    [
        ("GET", PATH, b"body", {}),
        ("POST", "/peer/call", b"body", {}),
        ("POST", PATH, b"bodY", {}),
        ("POST", PATH, b"", {}),
        ("POST", PATH, b"body", {"x-peer-from": TWO.hex()}),
        ("POST", PATH, b"body", {"x-peer-to": ONE.hex()}),
        ("POST", PATH, b"body", {"x-peer-time": "1800000001.000"}),
        ("POST", PATH, b"body", {"x-peer-nonce": "00" * 16}),
        ("POST", PATH, b"body", {"x-peer-seal": "0" * 64}),
        ("POST", PATH, b"body", {"x-peer-seal": "ü"}),
        ("POST", PATH, b"body", {"x-peer-seal": ""}),
    ],
)
def test_whatever_was_changed_is_refused(method: str, path: str, body: bytes, changes: dict[str, str]) -> None:
    seal = Seal(b"k" * 32)
    assert "seal" in seal.check(method, path, TWO, sent(seal, **changes), body)
    assert seal.check("POST", PATH, TWO, sent(seal), b"body") == ""


def test_another_secret_and_another_receiver_are_refused() -> None:
    seal = Seal(b"k" * 32)
    assert "seal" in Seal(b"K" * 32).check("POST", PATH, TWO, sent(seal), b"body")
    assert seal.check("POST", PATH, ONE, sent(seal), b"body") == "for another process"
    assert "seal" in seal.check("POST", PATH, TWO, {}, b"body")


def test_neither_old_nor_young_requests_are_taken_and_nonces_are_forgotten() -> None:
    clock = Clock()
    seal = Seal(b"k" * 32, clock)
    headers = sent(seal)
    clock.now += CLOCKS + 1
    assert "61 s apart" in seal.check("POST", PATH, TWO, headers, b"body")
    clock.now -= 2 * CLOCKS + 2
    assert "61 s apart" in seal.check("POST", PATH, TWO, headers, b"body")
    for _ in range(10):
        assert seal.check("POST", PATH, TWO, sent(seal), b"body") == ""
        clock.now += CLOCKS
    assert len(seal._seen) <= 3


def test_more_than_can_be_remembered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.core.work.peers.NONCES", 2)
    seal = Seal(b"k" * 32)
    assert [seal.check("POST", PATH, TWO, sent(seal), b"body") for _ in range(3)] == ["", "", "too many requests"]


def test_an_answer_is_that_to_its_request() -> None:
    seal = Seal(b"k" * 32)
    made = seal.answer("n", 200, b"yes")
    assert made == seal.answer("n", 200, b"yes")
    others = {seal.answer("m", 200, b"yes"), seal.answer("n", 500, b"yes"), seal.answer("n", 200, b"no")}
    assert made not in others | {Seal(b"K" * 32).answer("n", 200, b"yes")}
    assert len(others) == 3


# ------------------------------------------------------------------------------------------------ the replicas


def make(rows: Rows, shard: int = 0, config: str = "c") -> Peers:
    ledger: Any = FakeLedger(rows, shard)
    return Peers(ledger, Metrics("test"), name=f"host:{shard}", config=config, secret=b"s" * 32)


def peer(shard: int, config: str = "c", url: str = "http://127.0.0.1:1") -> Peer:
    return Peer(bytes([shard]) * 8, shard, 1, f"host:{shard}", url, config, frozenset())


def test_keys_of_one_secret_are_the_same_for_each_purpose() -> None:
    one, two = make(Rows()), make(Rows())
    assert one.key("ack-ids") == two.key("ack-ids")
    assert one.key("ack-ids") != one.key("peers")
    assert len(one.key("ack-ids")) == 32


def test_a_configuration_that_differs_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    peers = make(Rows())
    caplog.set_level("WARNING", "gateway")
    for _ in range(3):
        peers.found([peer(1), peer(2, config="other")])
    assert [record.getMessage() for record in caplog.records] == ["cluster.config_differs"]
    value = peers._metrics.registry.get_sample_value
    assert (value("amqpgw_cluster_config_differs"), value("amqpgw_cluster_processes")) == (1, 2)
    peers.found([peer(1), peer(2)])
    assert value("amqpgw_cluster_config_differs") == 0
    peers.found([peer(2, config="other")])
    assert len(caplog.records) == 2


def test_what_differs_from_process_to_process_is_no_difference() -> None:
    base = Config()
    same = Config(http=HttpSettings(port=1), ops=OpsSettings(port=2), data_dir="/elsewhere", log_level="debug",
                  cluster=ClusterSettings(port=3, url="http://x"))  # fmt: skip
    assert digest(base, b"s" * 32) == digest(same, b"s" * 32)
    assert digest(base, b"s" * 32) != digest(Config(http=HttpSettings(batch_max=7)), b"s" * 32)
    assert digest(base, b"s" * 32) != digest(base, b"t" * 32), "it tells nothing to who lacks the secret"


async def test_the_secret_of_a_file(tmp_path: Path) -> None:
    ledger: Any = FakeLedger(Rows(), 0)
    path = tmp_path / "secret"
    settings = ClusterSettings(secret_file=str(path))
    with pytest.raises(ConfigurationError, match=r"cluster\.secret_file"):
        await shared_secret(ledger, settings)
    path.write_bytes(b"x" * 31)
    with pytest.raises(ConfigurationError, match="holds 31 octets, not at least 32"):
        await shared_secret(ledger, settings)
    path.write_bytes(b"x" * 40 + b"\n")
    found = await shared_secret(ledger, settings)
    path.write_bytes(b"x" * 40)
    assert found == await shared_secret(ledger, settings)
    assert len(found) == 32


async def test_leases_of_a_process_that_is_gone_are_lost() -> None:
    rows = Rows()
    peers = make(rows)
    assert await peers.settle(b"gone" * 2, "acknowledge", "s", ["a", "b"]) == [("a", "LEASE_LOST"), ("b", "LEASE_LOST")]
    assert await peers.settle(peers.me.id, "acknowledge", "s", ["a"]) == [("a", "LEASE_LOST")]
    await peers.close()


async def test_leases_of_a_process_that_dies_meanwhile_are_lost() -> None:
    """Nobody answers, and by then the ledger knows that it is dead."""
    rows = Rows()
    peers = make(rows)
    rows.alive[7], rows.peers[7] = 1, peer(7)
    await peers.of_id(b"\x07" * 8)
    rows.alive.pop(7)
    assert await peers.settle(b"\x07" * 8, "acknowledge", "s", ["a"]) == [("a", "LEASE_LOST")]
    await peers.close()


async def test_leases_of_a_process_that_lives_are_not_called_lost() -> None:
    """Nobody answers at its port, and the ledger knows it."""
    rows = Rows()
    peers = make(rows)
    for shard in (7, 8):
        rows.alive[shard], rows.peers[shard] = 1, peer(shard)
    with pytest.raises(PeerUnavailable):
        await peers.settle(b"\x07" * 8, "acknowledge", "s", ["a"])
    rows.alive.pop(7)
    assert await peers.settle(b"\x07" * 8, "acknowledge", "s", ["a"]) == [("a", "LEASE_LOST")]
    await peers.close()


async def test_leases_are_not_called_lost_where_a_process_had_the_request_before_it_died() -> None:
    """It may have acknowledged them to its broker: nobody delivers them again then."""
    rows = Rows()
    peers = make(rows)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        rows.alive.pop(7)
        writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    rows.alive[7], rows.peers[7] = 1, peer(7, url=url)
    with pytest.raises(PeerUnavailable) as caught:
        await peers.settle(b"\x07" * 8, "acknowledge", "s", ["a"])
    assert caught.value.outcome == "unknown"
    assert not peers.others
    server.close()
    await peers.close()


async def test_a_ledger_that_is_away_is_no_proof_of_death() -> None:
    rows = Rows()
    peers = make(rows)
    peers._ledger.work.failing = True  # type: ignore[attr-defined]
    with pytest.raises(LedgerUnavailable):
        await peers.settle(b"gone" * 2, "acknowledge", "s", ["a"])
    await peers.close()


# ------------------------------------------------------------------------------------------- heads and nonces


def test_a_head_counts_once_and_says_how_much_follows() -> None:
    clock = Clock()
    seal = Seal(b"k" * 32, clock)
    headers = sent(seal)
    assert seal.announced("POST", PATH, TWO, headers) == 4
    assert seal.announced("POST", PATH, TWO, headers) is None
    assert seal.check("POST", PATH, TWO, headers, b"body", is_announced=True) == ""
    assert seal.announced("POST", PATH, ONE, sent(seal)) is None, "it is for another process"
    assert seal.announced("GET", PATH, TWO, sent(seal)) is None
    assert seal.announced("POST", PATH, TWO, sent(seal, **{"x-peer-length": "5"})) is None
    assert seal.announced("POST", PATH, TWO, {}) is None
    assert Seal(b"K" * 32, clock).announced("POST", PATH, TWO, sent(seal)) is None
    for moved, expected in ((CLOCKS, 4), (CLOCKS + 1, None), (-CLOCKS, 4), (-CLOCKS - 1, None)):
        headers = sent(seal)
        clock.now += moved
        assert seal.announced("POST", PATH, TWO, headers) == expected, moved
        clock.now -= moved


def test_requests_are_taken_as_long_as_the_clocks_may_differ() -> None:
    clock = Clock()
    seal = Seal(b"k" * 32, clock)
    for moved in (CLOCKS, -CLOCKS):
        headers = sent(seal)
        clock.now += moved
        assert seal.check("POST", PATH, TWO, headers, b"body") == ""
        clock.now -= moved


def test_a_nonce_is_remembered_as_long_as_its_request_may_come_again() -> None:
    clock = Clock()
    seal = Seal(b"k" * 32, clock)
    clock.now += CLOCKS
    early = sent(seal)  # of a process whose clock is ahead
    clock.now -= CLOCKS
    assert seal.check("POST", PATH, TWO, early, b"body") == ""
    for _ in range(2):
        clock.now += CLOCKS
        assert seal.check("POST", PATH, TWO, sent(seal), b"body") == ""
    assert seal.check("POST", PATH, TWO, early, b"body") == "it was there before"


def test_only_old_nonces_are_forgotten() -> None:
    clock = Clock()
    seal = Seal(b"k" * 32, clock)
    assert seal.check("POST", PATH, TWO, sent(seal), b"body") == ""
    clock.now += 2 * CLOCKS - 10
    later = sent(seal)
    assert seal.check("POST", PATH, TWO, later, b"body") == ""
    clock.now += 20
    assert seal.check("POST", PATH, TWO, sent(seal), b"body") == ""
    assert seal.check("POST", PATH, TWO, later, b"body") == "it was there before"


def test_the_parts_of_a_seal_cannot_be_moved() -> None:
    seal = Seal(b"k" * 32)
    assert seal.answer("n", 200, b"1") != seal.answer("n2", 0, b"01")
    assert seal._make(b"a", b"bc") != seal._make(b"ab", b"c")


def test_what_the_others_see_of_this_process() -> None:
    rows = Rows()
    ledger: Any = FakeLedger(rows, 0)
    made = Peers(ledger, Metrics("test"), ClusterSettings(url="http://given"), name="a", config="c", secret=b"s" * 32)
    assert (made.me.shard, made.me.fence, made.me.url, made.me.kinds) == (0, 0, "", frozenset())
    made.reached_at("http://found")
    assert made.me.url == "http://given"
    plain = make(rows)
    plain.reached_at("http://found")
    plain.configured("d")
    described = plain.describe(3, 4, frozenset({"job"}))
    assert described is plain.me
    assert (described.url, described.config, described.shard, described.fence) == ("http://found", "d", 3, 4)
    assert described.kinds == {"job"}
    plain.found([plain.me, peer(1, config="d"), peer(2, config="c")])
    assert plain._metrics.registry.get_sample_value("amqpgw_cluster_config_differs") == 1


async def test_a_secret_may_be_just_long_enough(tmp_path: Path) -> None:
    ledger: Any = FakeLedger(Rows(), 0)
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 32)
    assert len(await shared_secret(ledger, ClusterSettings(secret_file=str(path)))) == 32
