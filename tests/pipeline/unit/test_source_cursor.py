"""Cursors: claimed, told, fenced and let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import CursorOwned, ServiceRefused, ServiceUnreachable
from gateway.exits import exit_status
from gateway.pipeline.source.cursor import Cursor, Follower, new_owner
from gateway.pipeline.source.http import Http
from gateway.pipeline.source.options import Connection
from tests.pipeline.fake import FakeGateway

Make = Callable[..., Cursor]


@pytest.fixture
def make(gateway: FakeGateway) -> Iterator[Make]:
    """``make(owner)``: a cursor of the name ``c``."""
    with ExitStack() as stack:

        def make(owner: str, beat: float = 60.0) -> Cursor:
            found = Cursor(Http(Connection(url=gateway.url)), "messages", "c", owner, beat)
            stack.callback(found.close)
            return found

        yield make


@pytest.fixture
def follower(gateway: FakeGateway) -> Iterator[Follower]:
    http = Http(Connection(url=gateway.url))
    yield Follower(http, "c", "one")
    http.close()


def progress(end: Any, sources: int = 1) -> Any:
    return SimpleNamespace(sources=[SimpleNamespace(endOffset=end)] * sources)


def test_where_it_begins_is_resolved_once(gateway: FakeGateway, make: Make) -> None:
    assert make("one").claim("latest", take_over=False) == {"0": 1_000, "3": 100}
    gateway.add("messages", 0, 500)
    assert make("one").claim("latest", take_over=False) == {"0": 1_000, "3": 100}


def test_it_only_moves_forward_and_is_told_what_is_new_only(gateway: FakeGateway, make: Make) -> None:
    cursor = make("one")
    cursor.claim("earliest", take_over=False)
    for position in ({"0": 10}, {"0": 10}, {"0": 5, "3": 7}, {"0": 10}):
        cursor.put(position)
    assert gateway.told() == {"0": 10, "3": 7}
    assert gateway.seen["PUT /v1/log/cursors/c"] == 2


def test_a_second_query_is_told_who_reads(make: Make) -> None:
    make("one").claim("earliest", take_over=False)
    with pytest.raises(CursorOwned, match="the cursor c belongs to one since"):
        make("two").claim("earliest", take_over=False)
    assert exit_status(CursorOwned) == 4


def test_whoever_is_taken_over_learns_it_by_its_next_word_and_says_no_more(gateway: FakeGateway, make: Make) -> None:
    one, two = make("one"), make("two")
    one.claim("earliest", take_over=False)
    one.check()
    two.claim("earliest", take_over=True)
    one.put({"0": 500})  # does not raise: it is called where an error would hide what it is
    with pytest.raises(CursorOwned, match="the cursor c belongs to two now"):
        one.check()
    one.put({"0": 600})
    assert gateway.seen["PUT /v1/log/cursors/c"] == 1
    assert gateway.told() == {}
    two.put({"0": 5})
    two.check()


def test_the_same_query_twice_is_two_all_the_same(make: Make) -> None:
    """One that was thought dead comes back: the older one is fenced off, though both give the same name."""
    one, again = make("one"), make("one")
    one.claim("earliest", take_over=False)
    again.claim("earliest", take_over=False)
    one.put({"0": 1})
    with pytest.raises(CursorOwned):
        one.check()


def test_a_cursor_that_is_deleted_is_lost(gateway: FakeGateway, make: Make) -> None:
    cursor = make("one")
    cursor.claim("earliest", take_over=False)
    gateway.cursors.clear()
    cursor.put({"0": 1})
    with pytest.raises(ServiceRefused, match="there is no cursor c"):
        cursor.check()


def test_a_gateway_that_is_away_is_told_the_next_time(gateway: FakeGateway, make: Make) -> None:
    cursor = make("one")
    cursor.claim("earliest", take_over=False)
    gateway.down()
    cursor.put({"0": 10})
    cursor.check()
    assert cursor.failures == 1
    gateway.up()
    cursor.put({"0": 10})
    assert gateway.told() == {"0": 10}


def test_it_is_heard_of_while_a_batch_takes_its_time(gateway: FakeGateway, make: Make) -> None:
    heard = gateway.fail("/v1/log/cursors/c", 3)
    cursor = make("one", beat=0.01)
    cursor.claim("earliest", take_over=False)
    cursor.put({"0": 10})
    while heard.times:
        assert cursor._thread is not None
        cursor._thread.join(0.01)
    cursor.close()
    assert gateway.told() == {"0": 10}


def test_an_answer_that_is_no_cursor_is_refused(gateway: FakeGateway, make: Make) -> None:
    gateway.fail("/v1/log/cursors/c:claim", 1, octets=b'{"position": 7}')
    with pytest.raises(ServiceRefused, match="something that is not a cursor"):
        make("one").claim("earliest", take_over=False)


def test_owners_are_told_apart_and_can_be_found() -> None:
    assert new_owner() != new_owner()
    assert "@" in new_owner()


# ------------------------------------------------------------------------------------------------- the driver


def test_the_end_of_a_query_is_told_and_the_cursor_let_go(gateway: FakeGateway, make: Make, follower: Follower) -> None:
    """Spark says nothing to a source after its last batch."""
    make("one").claim("earliest", take_over=False)
    query: Any = SimpleNamespace(lastProgress=progress('{"0": 1000, "3": 100}'))
    assert follower.finish(query) == {"0": 1_000, "3": 100}
    assert gateway.told() == {"0": 1_000, "3": 100}
    assert gateway.cursors["c"]["owner"] == ""
    make("two").claim("earliest", take_over=False)


def test_a_query_that_read_nothing_lets_its_cursor_go_too(gateway: FakeGateway, make: Make, follower: Follower) -> None:
    make("one").claim("earliest", take_over=False)
    query: Any = SimpleNamespace(lastProgress=None)
    assert follower.finish(query) is None
    assert gateway.cursors["c"]["owner"] == ""


def test_a_cursor_that_somebody_took_is_not_told_and_not_let_go(
    gateway: FakeGateway, make: Make, follower: Follower
) -> None:
    make("one").claim("earliest", take_over=False)
    make("two").claim("earliest", take_over=True)
    query: Any = SimpleNamespace(lastProgress=progress('{"0": 1000}'))
    with pytest.raises(CursorOwned, match="the cursor c belongs to two, not to one"):
        follower.finish(query)
    assert gateway.cursors["c"]["owner"] == "two"
    assert gateway.told() == {}


def test_each_batch_is_told_and_what_cannot_be_told_does_no_harm(
    gateway: FakeGateway, make: Make, follower: Follower
) -> None:
    make("one").claim("earliest", take_over=False)
    follower.tell(progress('{"0": 10}'))
    assert gateway.told() == {"0": 10}
    gateway.down()
    follower.tell(progress('{"0": 20}'))
    gateway.up()
    follower.tell(progress({"0": 30}))
    follower.tell(progress(None))
    follower.tell(progress(None, sources=0))
    assert gateway.told() == {"0": 30}


def test_a_gateway_that_is_gone_at_the_end_is_an_error(gateway: FakeGateway, make: Make, follower: Follower) -> None:
    make("one").claim("earliest", take_over=False)
    gateway.down()
    with pytest.raises(ServiceUnreachable):
        follower.finish(SimpleNamespace(lastProgress=progress('{"0": 1}')))  # type: ignore[arg-type]
