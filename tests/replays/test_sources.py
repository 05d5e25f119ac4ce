"""How a source of the ledger is walked through: what a chunk holds, where it ends, and what a survey counts."""

from __future__ import annotations

from collections import Counter
from time import time_ns
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import GatewayError, Unsupported
from gateway.ledger import KeptBody, id_text
from gateway.replays import sources
from gateway.replays.items import ReplayItem, name_of, nameless
from gateway.replays.places import ReplayPlace
from gateway.replays.requests import DeliveriesSource, MessagesSource
from gateway.replays.sources import Chunk, DeadDeliverySource, LedgerMessageSource, MessageSource, Survey, fitting
from tests.replays.conftest import House

SIZE = len(b"message 0")


def takes_all(place: ReplayPlace | None) -> GatewayError | None:
    return None


def takes_none(place: ReplayPlace | None) -> GatewayError | None:
    return Unsupported("not there")


def messages(house: House, **fields: Any) -> LedgerMessageSource:
    return LedgerMessageSource(house.gateway, MessagesSource(**fields), time_ns() // 1_000)


def deliveries(house: House, *, revives: bool = False, purges: bool = False, **fields: Any) -> DeadDeliverySource:
    until = time_ns() // 1_000
    return DeadDeliverySource(house.gateway, DeliveriesSource(**fields), until, revives=revives, purges=purges)


def bodies(chunk: Chunk | Survey) -> list[bytes]:
    return [item.message.body for item in chunk.items]


async def walked(source: MessageSource, most: int, **landed: int) -> list[tuple[list[bytes], int, bool]]:
    """Every chunk to the last: bodies, how many are refused, and whether it is the last."""
    position, found = source.begin(0), list[tuple[list[bytes], int, bool]]()
    while not found or not found[-1][2]:
        assert len(found) < 10
        chunk = await source.take(position, most, Counter(landed))
        position = chunk.position
        found.append((bodies(chunk), len(chunk.refused), chunk.last))
    return found


async def dead(house: House, count: int, **fields: Any) -> list[bytes]:
    return await house.dead(count, text=b"message %d", **fields)


@pytest.mark.parametrize("kind", [messages, deliveries])
async def test_named_ones_come_in_chunks_of_so_many(house: House, kind: Any) -> None:
    """What is not there is refused with its neighbors."""
    ids = await (house.known(4) if kind is messages else dead(house, 4))
    await (house.known(1) if kind is messages else dead(house, 1))
    source = kind(house, ids=tuple(id_text(each) for each in ids))
    assert await source.total() == (4, True)
    first, second = [b"message 0", b"message 1"], [b"message 2", b"message 3"]
    assert await walked(source, 2) == [(first, 0, False), (second, 0, True)]
    assert await walked(source, 3) == [([*first, b"message 2"], 0, False), ([b"message 3"], 0, True)]
    end = ids[3].hex()
    again = await source.take(end, 4, Counter())
    assert (again.items, again.refused, again.last, again.position) == ([], [], True, end)
    missing = house.gateway.ids()
    source = kind(house, ids=(id_text(ids[0]), id_text(ids[3]), id_text(missing)))
    assert await walked(source, 2) == [([b"message 0", b"message 3"], 0, False), ([], 1, True)]
    assert await walked(source, 3) == [([b"message 0", b"message 3"], 1, True)]


@pytest.mark.parametrize("kind", [messages, deliveries])
async def test_what_is_not_there_is_refused_once(house: House, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Also where a chunk ends early, for its bodies are large."""
    monkeypatch.setattr(sources, "OCTETS_MAX", SIZE)
    one = await (house.known(1) if kind is messages else dead(house, 1))
    missing = [house.gateway.ids()]
    two = await (house.known(1) if kind is messages else dead(house, 1))
    missing.append(house.gateway.ids())
    source = kind(house, ids=tuple(id_text(each) for each in (*one, *two, *missing)))
    found = await walked(source, 500)
    assert [refused for _, refused, _ in found] in ([0, 2], [1, 1])
    assert [each for group, _, _ in found for each in group] == [b"message 0"] * 2


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", [messages, deliveries])
async def test_the_bodies_of_a_chunk_fit(house: House, monkeypatch: pytest.MonkeyPatch, kind: Any, named: bool) -> None:
    ids = await (house.known(4) if kind is messages else dead(house, 4))
    source = kind(house, ids=tuple(id_text(each) for each in ids) if named else None)
    for most, sizes in ((SIZE * 2, [2, 2]), (SIZE * 3 - 1, [2, 2]), (SIZE * 4, [4]), (1, [1, 1, 1, 1])):
        monkeypatch.setattr(sources, "OCTETS_MAX", most)
        found = await walked(source, 500)
        assert [len(group) for group, _, _ in found] == sizes
        assert [last for _, _, last in found] == [False] * (len(sizes) - 1) + [True]


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([5], 1), ([11], 1), ([5, 5], 2), ([5, 6], 1), ([11, 1], 1), ([1, 1, 9, 1], 2)]
)
def test_how_many_fit(monkeypatch: pytest.MonkeyPatch, sizes: list[int], count: int) -> None:
    monkeypatch.setattr(sources, "OCTETS_MAX", 10)
    assert fitting(sizes) == count


async def test_those_of_a_filter_come_in_chunks_of_so_many(house: House) -> None:
    ids = await dead(house, 4)
    await dead(house, 1, alive=True)
    source = deliveries(house)
    found = await walked(source, 3)
    assert [(len(group), refused) for group, refused, _ in found] == [(3, 0), (1, 0)]
    chunk = await source.take(source.begin(0), 2, Counter())
    assert chunk.position == ids[1].hex()
    assert await source.total() == (4, True)


async def test_more_than_are_counted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await dead(house, 2)
    for most, total in ((3, (2, True)), (2, (2, False))):
        monkeypatch.setattr(sources, "COUNT_MAX", most)
        assert await deliveries(house).total() == total
    await house.known(1_001)
    for steps, total in ((1, (1_000, False)), (2, (1_001, True))):
        monkeypatch.setattr(sources, "COUNT_STEPS", steps)
        assert await messages(house, broker="fake", exchange="", routing_key="orders").total() == total


async def test_what_replays_have_sent_is_not_counted() -> None:
    async def step(where: Any, after: bytes, most: int) -> Any:
        return [SimpleNamespace(origin=origin) for origin in ("http", "replay", "broker", "replay")], None

    gateway: Any = SimpleNamespace(ledger=SimpleNamespace(scans=SimpleNamespace(step=step)))
    assert await LedgerMessageSource(gateway, MessagesSource(), 0).total() == (2, True)


@pytest.mark.parametrize("kind", [messages, deliveries])
async def test_what_was_counted_as_sent_is_not_met_again(house: House, kind: Any) -> None:
    ids = await (house.known(3) if kind is messages else dead(house, 3))
    gone = house.gateway.ids()
    source = kind(house, ids=tuple(id_text(each) for each in (*ids, gone)))
    landed = Counter({id_text(ids[1]): 1, id_text(gone): 1})
    chunk = await source.take(source.begin(0), 500, landed)
    assert (bodies(chunk), chunk.refused) == ([b"message 0", b"message 2"], [])
    chunk = await source.take(source.begin(0), 500, Counter())
    assert (len(chunk.items), len(chunk.refused)) == (3, 1)
    assert [len(item.sha256) for item in chunk.items] == [32] * 3


async def test_only_what_is_behind_a_chunk_may_be_met_again(house: House) -> None:
    ids = await house.known(3)
    names = Counter({id_text(each): 1 for each in ids})
    source = messages(house)
    assert source.ahead(names, Chunk(position=ids[1].hex())) == Counter({id_text(ids[2]): 1})
    assert source.ahead(names, Chunk(position=ids[1].hex(), last=True)) == Counter()
    assert source.left([], ids[1].hex()) == (False, ids[1].hex())


async def test_a_copy_of_what_is_not_dead_goes_elsewhere_only(house: House) -> None:
    (gone, alive) = (*await dead(house, 1), *await dead(house, 1, alive=True))
    ids = (id_text(gone), id_text(alive))
    for source, refused in (
        (deliveries(house, ids=ids), 0),
        (deliveries(house, ids=ids, revives=True), 1),
        (deliveries(house, ids=ids, purges=True), 1),
    ):
        chunk = await source.take(source.begin(0), 500, Counter())
        assert (len(chunk.items), [each.code for each in chunk.refused]) == (2 - refused, ["state"] * refused)


async def test_which_dead_ones_were_sent_though_nobody_wrote_that_down(house: House) -> None:
    """They went, or are alive again, in the commit that says so."""
    (gone, alive) = (*await dead(house, 1), *await dead(house, 1, alive=True))
    keys = [id_text(each) for each in (gone, alive, house.gateway.ids())]
    landed, position = await deliveries(house).landed(keys, (), "7")
    assert (landed, position) == (keys[2:], "7")
    landed, _ = await deliveries(house, revives=True).landed(keys, (), "7")
    assert sorted(landed) == sorted(keys[1:])
    landed, _ = await deliveries(house).landed(keys, keys[:1], "7")
    assert sorted(landed) == sorted([keys[0], keys[2]])


async def test_bodies_are_read_only_for_those_that_are_sent(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await dead(house, 3)
    monkeypatch.setattr(sources, "OCTETS_MAX", 1)
    source = deliveries(house, purges=True)
    assert await walked(source, 2) == [([b""] * 2, 0, False), ([b""], 0, True)]
    end = ids[2].hex()
    assert (await source.take(end, 3, Counter())).position == end


async def test_a_survey_counts_apart_what_cannot_be_sent(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.known(1, kept=False)
    damaged = await house.known(2, kept=False)
    await house.ledger.deliveries.keep_bodies([KeptBody(each, b"?", 1) for each in damaged])
    await house.known(4)
    found = await messages(house).survey(10, takes_all)
    assert (found.count, found.complete, dict(found.refused)) == (4, True, {"no_body": 1, "internal": 2})
    assert (len(found.items), len(found.refusals)) == (4, 3)
    found = await messages(house).survey(2, takes_none)
    assert (found.count, dict(found.refused)) == (0, {"no_body": 1, "unsupported": 6})
    assert (len(found.items), len(found.refusals)) == (0, 2)
    monkeypatch.setattr(sources, "OCTETS_MAX", SIZE * 2)
    wanted = messages(house, routing_key="orders")
    for most, shown in ((10, 2), (1, 1)):
        found = await wanted.survey(most, takes_all)
        assert found.count - shown >= 2
        assert len(found.items) <= shown


async def test_a_survey_shows_so_many_bytes(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.known(4)
    for most, shown in ((SIZE * 2, 2), (SIZE * 3 - 1, 2), (1, 1)):
        monkeypatch.setattr(sources, "OCTETS_MAX", most)
        found = await messages(house).survey(10, takes_all)
        assert (found.count, len(found.items)) == (4, shown)
    found = await messages(house).survey(1, takes_all)
    assert (found.count, len(found.items)) == (4, 1)


async def test_a_survey_of_dead_ones_looks_at_each_that_is_named(house: House) -> None:
    ids = [*await dead(house, 5), *(house.gateway.ids() for _ in range(3))]
    found = await deliveries(house, ids=tuple(id_text(each) for each in ids)).survey(2, takes_all)
    assert (found.count, found.complete, dict(found.refused)) == (5, True, {"delivery_not_found": 3})
    assert (len(found.items), len(found.refusals)) == (2, 2)
    found = await deliveries(house).survey(2, takes_none)
    assert (found.count, len(found.items), len(found.refusals)) == (3, 0, 2)
    assert dict(found.refused) == {"unsupported": 2}
    found = await deliveries(house).survey(2, takes_all)
    assert (found.count, len(found.items)) == (5, 2)


def test_what_a_message_is_known_by() -> None:
    one, two = nameless("ab", "1"), nameless("ab", "2")
    assert one != two
    assert name_of(one) == name_of(two) == "sha256:ab"
    assert name_of(f"{one}@b/q") == "sha256:ab@b/q"
    assert name_of("01890000#1") == "01890000#1"
    item = ReplayItem(one, bytes(16), sources.NOT_READ.message, None)
    assert (item.resent, item.is_copy, item.counted, item.recorded, item.tries) == (False, False, False, False, 0)
    marked = []
    for resent, is_copy in ((False, False), (True, False), (False, True)):
        item.resent, item.is_copy = resent, is_copy
        marked.append(item.is_marked)
    assert marked == [False, True, True]


async def test_where_a_dead_one_came_from(house: House) -> None:
    """Its subscription says it, as long as there is one of that name."""
    await dead(house, 1)
    await dead(house, 1, subscription="gone")
    source = deliveries(house)
    chunk = await source.take(source.begin(0), 5, Counter())
    assert [item.place for item in chunk.items] == [ReplayPlace("fake", "shop", "k", "orders"), None]
    assert [(item.exchange, item.routing_key) for item in chunk.items] == [("shop", "k")] * 2
    assert all(item.row is not None for item in chunk.items)
