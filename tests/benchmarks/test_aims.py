"""Aims: what is wanted of which row, and whether it was found."""

from __future__ import annotations

import pytest

from tests.benchmarks.aims import AIMS, DIRECT, FRONT_WORKS, IDLE_CLIENT, THROUGH, TRANSLATED, Aim, verdicts
from tests.benchmarks.rows import OURS, Row, Sample
from tests.benchmarks.sections import bridge, codec, growth, link, memory, outbound, publish, pull, push, versions
from tests.benchmarks.sections.memory import BROKER, CLIENT


def rows(ours: Sample, theirs: Sample) -> list[Row]:
    return [Row("section", "work", OURS, [ours]), Row("section", "work", "peer", [theirs])]


CASES = {
    "CPU, met": (Aim("work", "", most=15, measure="microseconds"), "met: 10.0 µs"),
    "CPU, missed": (Aim("work", "", most=9, measure="microseconds"), "MISSED: 10.0 µs"),
    "memory, met": (Aim("work", "", most=20_000, measure="memory"), "met: 19.5 kB"),
    "memory, missed": (Aim("work", "", most=19_000, measure="memory"), "MISSED: 19.5 kB"),
    "rate, met": (Aim("work", "", least=50), "met: 50/s"),
    "rate, missed": (Aim("work", "", least=51), "MISSED: 50/s"),
    "the rate of a peer, met": (Aim("work", "", least=2, peer="peer"), "met: 2.00 ×"),
    "the rate of a peer, missed": (Aim("work", "", least=3, peer="peer"), "MISSED: 2.00 ×"),
    "the CPU of a peer, met": (Aim("work", "", least=3, measure="microseconds", peer="peer"), "met: 3.00 ×"),
    "the CPU of a peer, missed": (Aim("work", "", least=4, measure="microseconds", peer="peer"), "MISSED: 3.00 ×"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_aim_is_met_or_missed(name: str) -> None:
    aim, said = CASES[name]
    found = verdicts(rows(Sample(100, 2.0, 0.001, memory=19_500), Sample(100, 4.0, 0.003)), [aim])
    assert [str(each) for each in found["work", OURS]] == [said]


def test_a_work_may_be_held_against_another() -> None:
    small = Row("growth", "10 queues", OURS, [Sample(100, 1.0, 0.001)])
    large = Row("growth", "10,000 queues", OURS, [Sample(100, 1.0, 0.0012)])
    aim = Aim("10,000 queues", "", most=1.25, measure="microseconds", base="10 queues")
    assert str(verdicts([small, large], [aim])["10,000 queues", OURS][0]) == "met: 1.20 ×"


def test_what_was_not_measured_is_not_spoken_of() -> None:
    ours = Row("section", "work", OURS, [Sample(100, 2.0, 0.001)])
    aims = [
        Aim("other", "", least=1),
        Aim("work", "", least=1, peer="peer"),
        Aim("work", "", most=1, measure="p99"),
        Aim("work", "", most=1, measure="microseconds", base="other"),
    ]
    assert verdicts([ours], aims) == {}
    assert verdicts([Row("section", "work", OURS, error="no")], [Aim("work", "", least=1)]) == {}


def test_every_aim_is_of_a_row_that_there_is() -> None:
    links = set(link.WORKS.values())
    names = {
        *((work, OURS) for work in (codec.ENCODE, codec.DECODE, codec.RAW)),
        *((work, OURS) for work in links),
        *(
            (f"{broker}{work}", f"{OURS} {version}")
            for broker in (versions.DISK, versions.MEMORY)
            for work in links
            for version in versions.VERSIONS
        ),
        *((publish.single(connections), OURS) for connections in publish.CONNECTIONS),
        *((publish.batches(connections), OURS) for connections in publish.BATCH_CONNECTIONS),
        *((pull.work(count), client) for count in pull.COUNTS for client in pull.LEASES),
        *((push.work(at_once), client) for at_once in push.CONCURRENCY for client in pull.LEASES),
        *((memory.idle(what), OURS) for what in memory.IDLE),
        *((outbound.work(callers), OURS) for callers in outbound.CALLERS),
        *((growth.name(key, growth.QUEUES[-1]), client) for key in growth.WORKS for client in (CLIENT, BROKER)),
        *((work, client) for work in FRONT_WORKS.values() for client in (THROUGH, TRANSLATED)),
        (IDLE_CLIENT, THROUGH),
        (bridge.MOVE, OURS),
        (bridge.queued(bridge.QUEUED[-1]), OURS),
    }
    assert {(aim.work, aim.client) for aim in AIMS} <= names
    bases = {growth.name(key, growth.QUEUES[0]) for key in growth.WORKS} | {bridge.queued(bridge.QUEUED[0])}
    assert {aim.base for aim in AIMS if aim.base} <= bases
    peers = {
        "pamqp",
        link.GO,
        publish.MANAGEMENT,
        pull.GET,
        outbound.HTTPX,
        bridge.SHOVEL,
        bridge.SHOVEL_TCP,
        DIRECT,
        f"{OURS} 0-9-1",
    }
    assert {aim.peer for aim in AIMS if aim.peer} == peers
