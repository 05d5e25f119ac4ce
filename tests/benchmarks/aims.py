"""What we want, as a table: :data:`AIMS`. Each run says of each aim whether it was met, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tests.benchmarks.rows import OURS, Row, quotient

BATCH = 1_000
"""Messages of a batch."""
LEDGER_LEASE = f"{OURS}, ledger lease"
"""The client that is us, where the ledger holds what is out and not the broker."""

FRONT_WORKS = {"publish": "front: publish, confirmed", "consume": "front: consume, one ack each"}
"""Work of a job -> as the table has it."""
DIRECT, RELAY, THROUGH, TRANSLATED = "direct", "TCP relay", "front, same version", "front, 0-10 on 0-9-1"
SHORT = "front: connect, publish one message, leave"
IDLE_CLIENT = "front: one more idle client"


@dataclass(frozen=True)
class Aim:
    """One row of ours, and what is wanted of it: microseconds, times per second, octets, or times another row."""

    work: str
    wanted: str
    """As the table prints it."""
    least: float = 0.0
    most: float = float("inf")
    measure: str = "rate"
    """``rate``, ``microseconds`` or ``memory``."""
    peer: str = ""
    """The client of the same work that is compared with; our rate over its rate, its CPU over ours."""
    base: str = ""
    """The work of the same client that is compared with: this one over that one."""
    client: str = OURS


def _times(work: str, times: float, peer: str, measure: str = "rate") -> Aim:
    what = "CPU" if measure == "microseconds" else "rate"
    wanted = f"{times:g} × less CPU than {peer}" if what == "CPU" else f"{times:g} × the rate of {peer}"
    return Aim(work, wanted, least=times, measure=measure, peer=peer)


AIMS: Sequence[Aim] = (
    _times("codec: decode a message", 4, "pamqp", "microseconds"),
    _times("codec: encode a message", 5, "pamqp", "microseconds"),
    _times("codec: decode, properties left raw", 7, "pamqp", "microseconds"),
    Aim("publish, confirmed", "at most 15 µs CPU", most=15, measure="microseconds"),
    Aim("publish, confirmed", "the rate of amqp091-go, within 5 %", least=0.95, peer="amqp091-go"),
    Aim("consume, one ack each", "at most 20 µs CPU", most=20, measure="microseconds"),
    Aim("consume, one ack each", "the rate of amqp091-go, within 5 %", least=0.95, peer="amqp091-go"),
    *(
        Aim(
            f"{broker}{work}",
            "70 % of the rate of 0-9-1",
            least=0.7,
            client=f"gateway {version}",
            peer="gateway 0-9-1",
        )
        for broker in ("Broker-J: ", "Broker-J in memory: ")
        for work in ("publish, confirmed", "consume, one ack each")
        for version in ("0-8", "0-10")
    ),
    _times("HTTP publish, 1 connection", 3, "management"),
    _times("HTTP publish, 64 connections", 3, "management"),
    Aim(f"HTTP publish, batches of {BATCH:,}, 1 connection", "20,000 messages/s", least=20_000),
    Aim(f"HTTP publish, batches of {BATCH:,}, 4 connections", "20,000 messages/s", least=20_000),
    *(
        replace(_times(f"HTTP pull and ack, {number} at a time", 10, "management get"), client=client)
        for number in (1, 100)
        for client in (OURS, LEDGER_LEASE)
    ),
    *(
        replace(_times(f"webhooks, {at_once} at once", 2, "httpx"), client=client)
        for at_once in (10, 64)
        for client in (OURS, LEDGER_LEASE)
    ),
    _times("POST to an endpoint, 1 caller", 2, "httpx"),
    _times("POST to an endpoint, 64 callers", 2, "httpx"),
    _times("bridge: RabbitMQ to RabbitMQ", 1.5, "Shovel"),
    _times("bridge: RabbitMQ to RabbitMQ", 1.5, "Shovel over TCP"),
    Aim(
        "bridge: 1,000,000 messages queued",
        "flat: memory at most 1.25 × that of 10,000",
        most=1.25,
        measure="memory",
        base="bridge: 10,000 messages queued",
    ),
    *(
        Aim(f"one more idle subscription, {what}", "at most 20 kB", most=20_000, measure="memory")
        for what in ("pulled", "pushed")
    ),
    *(
        Aim(work, f"at most {most} µs CPU", most=most, measure="microseconds", client=client)
        for work in FRONT_WORKS.values()
        for client, most in ((THROUGH, 20), (TRANSLATED, 35))
    ),
    *(Aim(work, "70 % of the direct rate", least=0.7, client=THROUGH, peer=DIRECT) for work in FRONT_WORKS.values()),
    Aim(IDLE_CLIENT, "at most 20 kB", most=20_000, measure="memory", client=THROUGH),
    *(
        Aim(
            f"{work}, 10,000 queues",
            "flat: CPU at most 1.25 × that of 10 queues",
            most=1.25,
            measure="microseconds",
            base=f"{work}, 10 queues",
            client=client,
        )
        for work in ("growth: publish", "growth: publish and consume")
        for client in ("gateway as client", "gateway as broker")
    ),
)
"""The aims of a run. One whose rows were not measured is not spoken of."""


@dataclass(frozen=True)
class Verdict:
    """What became of an aim."""

    aim: Aim
    found: float

    @property
    def met(self) -> bool:
        """Whether it is as wanted."""
        return self.aim.least <= self.found <= self.aim.most

    def __str__(self) -> str:
        aim = self.aim
        if aim.peer or aim.base:
            found = f"{self.found:.2f} ×"
        elif aim.measure == "microseconds":
            found = f"{self.found:.1f} µs"
        elif aim.measure == "memory":
            found = f"{self.found / 1_000:.1f} kB"
        else:
            found = f"{self.found:,.0f}/s"
        return f"{'met' if self.met else 'MISSED'}: {found}"


def verdicts(rows: Iterable[Row], aims: Sequence[Aim] = AIMS) -> dict[tuple[str, str], list[Verdict]]:
    """By work and client, what became of the aims whose rows are there."""
    by_name = {(row.work, row.client): row for row in rows if not row.error}
    found: dict[tuple[str, str], list[Verdict]] = {}
    for aim in aims:
        row = by_name.get((aim.work, aim.client))
        if row is None:
            continue
        if aim.peer or aim.base:
            other = by_name.get((aim.base or aim.work, aim.peer or aim.client))
            if other is None:
                continue
            over, under = (other, row) if aim.peer and aim.measure == "microseconds" else (row, other)
            value = quotient(over, under, aim.measure)
        else:
            value = row.middle(aim.measure)
        if value is not None:
            found.setdefault((aim.work, aim.client), []).append(Verdict(aim, value))
    return found
