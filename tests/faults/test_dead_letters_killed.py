"""Jobs of dead letters whose gateway is killed in their middle: they go on, nothing is counted twice, and what was to
stay stays.

A job of 2,600 dead letters is killed at one place after the other: before and after it writes its progress down, before
and after what it did is recorded, between the broker's confirm and the record, and at a random moment. The processes,
the ledgers and the broker are real. The ledger is read after each kill, and judged by count and by id.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import pytest
import sqlalchemy as sa

from gateway.fidelity import annotation
from gateway.ledger.db.models import deliveries, resources
from gateway.replays.runner import CHUNK
from tests.faults.harness import GatewayProcess
from tests.ledgers import sqlite_ledger
from tests.servers import RabbitMQ
from tests.servers.process import free_port
from tests.taps.test_real_brokers import taken
from tests.translation.live.ends import ENDS, Servers
from tests.translation.live.run import upstream

BROKER: Final = "local-0-9-1"
DEAD: Final = 2_600
STAY: Final = 40
"""Dead letters of another subscription, which no job is about."""
NAMED: Final = 900
"""How many are named by a job that lists ids."""
JOB: Final = "job"
END: Final = 60.0
"""How long a process may take to come to the place where it ends, in seconds."""
STORE: Final = "gateway.replays.store:ReplayStore.save"
SETTLE: Final = "gateway.ledger.pending.deliveries:DeliveryStore.settle"
SEND: Final = "gateway.replays.targets:BrokerTarget.send"
RANDOM: Final = ("", "", 0)
PLACES: Final = {
    "purge": [(STORE, "before", 1), (STORE, "after", 2), (SETTLE, "before", 1), (SETTLE, "after", 1),
              (STORE, "before", 3), (SETTLE, "after", 2), RANDOM],
    "redrive": [(STORE, "after", 1), (SETTLE, "after", 1), (SETTLE, "before", 2), (STORE, "before", 3), RANDOM],
    "named": [(SETTLE, "before", 1), (STORE, "after", 2), (SETTLE, "after", 1), (STORE, "before", 2)],
    "elsewhere": [(SEND, "before", 1), (SEND, "after", 1), (SETTLE, "after", 1), (SETTLE, "before", 2), RANDOM],
}  # fmt: skip
"""Job -> where its process ends, one after the other: a coroutine, before or after it, at which call. The
one at random comes last, since the job may have ended by then."""
DOUBTFUL: Final = 3
"""How many of the kills of ``elsewhere`` may come between the confirms of a chunk and its record."""
RATE: Final = 2_000
"""Messages a second: a job takes longer than a gateway to start."""


class Killed(GatewayProcess):
    """A gateway that ends at a place."""

    place: tuple[str, str, int] = RANDOM

    def _spawn(self, *arguments: str) -> Any:
        place, when, number = self.place
        self.module = "tests.faults.killed_at" if place else ""
        return super()._spawn(*([place, when, str(number)] if place else []), *arguments)


class House:
    """A gateway, its ledger, and a client that goes on asking."""

    def __init__(self, folder: Path, url: str, brokers: dict[str, Any]) -> None:
        ledger = {"url": url} if url else {}
        tables: dict[str, Any] = {
            "data_dir": str(folder / "data"),
            "embedded": {"enabled": True, "port": free_port()},
            "ledger": {**ledger, "shard_lease": 2.0},
            "subscriptions": {
                name: {"broker": BROKER, "queue": name, "lease": "ledger"} for name in ("orders", "others")
            },
        }
        if brokers:
            tables["brokers"] = brokers
        self.gateway = Killed(folder, tables)
        self.engine = sa.create_engine(url or sqlite_ledger(folder / "data"))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.gateway.port}", timeout=60, trust_env=False)

    def start(self, place: tuple[str, str, int] = RANDOM, wait: bool = True) -> None:
        self.gateway.place = place
        self.gateway.start(wait)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def close(self) -> None:
        if self.gateway.running:
            self.gateway.kill()
        self.client.close()
        self.engine.dispose()

    # ---------------------------------------------------------------------------------------------- messages

    def die(self, subscription: str, count: int) -> set[str]:
        """So many dead letters of a subscription; their ids."""
        self.ask("PUT", f"/v1/brokers/{BROKER}/queues/{subscription}")
        left = list(range(count))
        while left:
            now, left = left[:1_000], left[1_000:]
            messages = [{"routing_key": subscription, "payload": f"{subscription} {number}"} for number in now]
            self.ask("POST", f"/v1/brokers/{BROKER}/exchanges/amq.default:publish", {"messages": messages})
        ids = [each["ack_id"] for each in self.pull(subscription, count)]
        for begin in range(0, count, 1_000):
            body = {"ack_ids": ids[begin : begin + 1_000], "reason": "cannot be read"}
            self.ask("POST", f"/v1/subscriptions/{subscription}:reject", body)
        dead = set(self.dead(subscription))
        assert len(dead) == count
        return dead

    def pull(self, subscription: str, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            body = {"max_messages": min(1_000, count - len(found)), "wait_seconds": 10, "ack_deadline_seconds": 600}
            page = self.ask("POST", f"/v1/subscriptions/{subscription}:pull", body)["messages"]
            assert page, f"{len(found)} of {count} came"
            found += page
        return found

    def dead(self, subscription: str) -> dict[str, str]:
        """Delivery -> message, of the dead letters, as the ledger has them, whether a gateway runs or not."""
        query = sa.select(deliveries.c.id, deliveries.c.message_id).where(
            deliveries.c.subscription == subscription.encode(), deliveries.c.status == 2
        )
        with self.engine.connect() as connection:
            return {row.id.hex(): row.message_id.hex() for row in connection.execute(query)}

    def job(self) -> dict[str, Any]:
        """The job as the ledger has it."""
        query = sa.select(resources.c.spec).where(resources.c.kind == "replay", resources.c.name == JOB.encode())
        with self.engine.connect() as connection:
            spec: dict[str, Any] = json.loads(connection.execute(query).scalar_one())
        return spec

    def happened(self, kind: str) -> Counter[str]:
        """How many events of a kind each message has."""
        path = f"/v1/events?kind={kind}&follow=false&since=1d"
        answer = self.client.get(path, headers={"accept": "application/x-ndjson"})
        assert answer.is_success, answer.text
        lines = [json.loads(line) for line in answer.text.splitlines()]
        return Counter(line["id"].replace("-", "") for line in lines if "id" in line)

    # --------------------------------------------------------------------------------------------------- kills

    def killed(self, kind: str, request: dict[str, Any], dead: set[str], most: int) -> dict[str, Any]:
        """Ask for a job, and kill the gateway at each of its places; then let it end. Answers with the job."""
        moments = random.Random(kind)
        stay = self.dead("others")
        self.gateway.terminate()
        gone_before = 0
        for number, place in enumerate(PLACES[kind]):
            self.start(place, wait=not number or place == RANDOM)  # a job that goes on may end it before it is up
            if not number:
                try:
                    self.ask("POST", "/v1/replays", {"id": JOB, "rate": RATE, **request})
                except httpx.TransportError:
                    pass  # it came to the place before it could answer
            if place == RANDOM:
                time.sleep(moments.uniform(0.02, 0.3))
                self.gateway.kill()
            else:
                assert self.gateway.process is not None
                assert self.gateway.process.wait(END) == -9, self.gateway.log()[-2000:]
            left = set(self.dead("orders"))
            gone = len(dead - left)
            job = self.job()
            assert left <= dead
            assert gone_before <= gone <= most
            assert job.get("sent", 0) <= gone <= job.get("sent", 0) + CHUNK, f"{place}: {gone} are gone, {job}"
            assert self.dead("others") == stay, place
            gone_before = gone
        self.start()
        deadline = time.monotonic() + END
        while (found := self.ask("GET", f"/v1/replays/{JOB}"))["state"] not in ("done", "failed", "cancelled"):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert self.dead("others") == stay
        job = dict(found)
        assert (job["state"], job["found"], job["sent"], job["refused"]) == ("done", most, most, {}), job
        return job


BOTH: Final = pytest.mark.parametrize("house", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    is_shared = getattr(request, "param", "sqlite") == "postgresql"
    url = request.getfixturevalue("postgresql_ledger") if is_shared else ""
    house = House(tmp_path, url, {})
    house.start()
    yield house
    house.close()


@BOTH
def test_a_purge(house: House) -> None:
    house.die("others", STAY)
    dead = house.die("orders", DEAD)
    messages = set(house.dead("orders").values())
    request = {"source": {"deliveries": {"subscription": "orders", "code": "rejected"}}, "target": {"purge": True}}
    house.killed("purge", request, dead, DEAD)
    assert house.dead("orders") == {}
    assert house.happened("purged") == Counter(messages), "each is deleted once, and nothing else"


@BOTH
def test_a_redrive(house: House) -> None:
    house.die("others", STAY)
    dead = house.die("orders", DEAD)
    messages = set(house.dead("orders").values())
    house.killed("redrive", {"source": {"deliveries": {"subscription": "orders"}}}, dead, DEAD)
    assert house.dead("orders") == {}
    assert house.happened("revived") == Counter(messages), "each is revived once, and nothing else"
    bodies = Counter(each["message"]["payload"] for each in house.pull("orders", DEAD))
    assert bodies == Counter(f"orders {number}" for number in range(DEAD))


def test_a_selection(house: House) -> None:
    house.die("others", STAY)
    dead = house.die("orders", DEAD)
    messages = house.dead("orders")
    named = random.Random(3).sample(sorted(dead), NAMED)
    ids = [str(UUID(each)) for each in named]
    request = {"source": {"deliveries": {"ids": ids}}, "target": {"purge": True}}
    house.killed("named", request, dead, NAMED)
    assert set(house.dead("orders")) == dead - set(named)
    assert house.happened("purged") == Counter(messages[each] for each in named)


@pytest.mark.parametrize("verb", ["purge", "retry"])
def test_a_request_in_bulk_that_is_repeated(house: House, verb: str) -> None:
    """Without a job, who asked gets no answer. Asked again, the request does what is left."""
    house.die("others", STAY)
    house.die("orders", DEAD)
    messages = set(house.dead("orders").values())
    stay = house.dead("others")
    body = {"filter": {"subscription": "orders"}}
    counted = 0
    for when in ("before", "after"):
        house.gateway.kill()
        house.start((SETTLE, when, 2))
        with pytest.raises(httpx.TransportError):
            house.ask("POST", f"/v1/deliveries:{verb}", body)
        assert house.gateway.process is not None
        assert house.gateway.process.wait(END) == -9
        assert house.dead("others") == stay
        left = len(house.dead("orders"))
        assert left < DEAD - counted, "what was done stays done"
        counted = DEAD - left
        house.start()
    assert house.ask("POST", f"/v1/deliveries:{verb}", body)["count"] == DEAD - counted
    assert (house.dead("orders"), house.dead("others")) == ({}, stay)
    assert house.happened({"purge": "purged", "retry": "revived"}[verb]) == Counter(messages)


@pytest.mark.broker
async def test_a_redrive_to_another_broker(rabbitmq: RabbitMQ, tmp_path: Path, unique_name: Any) -> None:
    """A kill between the broker's confirm and the record: nothing is lost, and what may be there twice is marked."""
    servers = Servers(rabbitmq, None, None)  # type: ignore[arg-type]  # the others are not asked
    end = next(end for end in ENDS if end.id == "rabbitmq-0-9-1")
    queue = unique_name("redriven")
    url = end.url(servers)
    house = House(tmp_path, "", {"far": {"url": url, "reconnect_min": 0.1, "reconnect_max": 0.5}})
    try:
        async with upstream(end, servers) as broker:
            await broker.declare_queue(queue)
            await asyncio.to_thread(house.start)
            await asyncio.to_thread(house.die, "others", STAY)
            dead = await asyncio.to_thread(house.die, "orders", DEAD)
            target = {"broker": "far", "exchange": "amq.default", "routing_key": queue}
            request = {"source": {"deliveries": {"subscription": "orders"}}, "target": target}
            await asyncio.to_thread(house.killed, "elsewhere", request, dead, DEAD)
            count = (await broker.query_queue(queue)).message_count
            messages = await taken(broker, queue, count)
            await broker.delete_queue(queue)
        assert house.dead("orders") == {}
    finally:
        house.close()
    bodies = Counter(message.body.decode() for message in messages)
    assert set(bodies) == {f"orders {number}" for number in range(DEAD)}, "nothing is lost"
    plain = Counter(each.body for each in messages if annotation(each.properties, "resent") is None)
    assert set(plain.values()) <= {1}, "of copies all but one are marked"
    assert DEAD < len(messages) <= DEAD + DOUBTFUL * CHUNK, "a kill after the confirm costs a chunk at most"
    ids = {(each.body, annotation(each.properties, "id")) for each in messages}
    assert len(ids) == DEAD, "copies have the id of the first"
