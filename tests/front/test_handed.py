"""What a front remembers of deliveries, for brokers that forget them in a crash."""

from __future__ import annotations

from gateway.front.handed import BEFORE_MAX, END_OCTETS, RECENT_MAX, HandedMemory, fingerprint


def test_what_was_handed_may_come_again_once_a_connection_is_opened() -> None:
    memory = HandedMemory()
    assert not memory.add(1)
    assert not memory.add(1)
    memory.begin()
    assert memory.add(1)
    assert memory.add(1)
    assert not memory.add(1)
    assert not memory.add(2)


def test_what_a_client_held_is_not_counted_twice() -> None:
    memory = HandedMemory()
    assert not memory.add(1)
    memory.give_back([1])
    memory.begin()
    assert memory.add(1)
    assert not memory.add(1)


def test_what_has_not_come_at_the_next_loss_is_still_expected() -> None:
    memory = HandedMemory()
    memory.add(1)
    memory.begin()
    memory.begin()
    assert memory.add(1)


def test_the_last_ones_are_remembered_and_what_was_held() -> None:
    memory = HandedMemory()
    for number in range(RECENT_MAX + 2):
        memory.add(number)
    memory.give_back([0])
    memory.begin()
    assert memory.add(0), "it was held all the time"
    assert not memory.add(1)
    assert memory.add(2)


def test_it_has_a_bound() -> None:
    memory = HandedMemory()
    memory.give_back(range(BEFORE_MAX))
    memory.give_back([0, BEFORE_MAX])
    assert len(memory._before) == BEFORE_MAX
    assert not memory.add(1), "the oldest are forgotten"
    assert all(memory.add(number) for number in (0, 2, BEFORE_MAX))


def test_a_fingerprint_is_of_queue_and_body() -> None:
    end = bytes(END_OCTETS)
    same = {fingerprint("q", end + middle + end) for middle in (b"a", b"b")}
    assert len(same) == 1, "a large body is compared by its ends"
    different = [
        fingerprint(queue, body)
        for queue, body in [
            ("q", b"a"), ("r", b"a"), ("q", b"b"), ("q", end + b"a"), ("q", end + b"b"), ("q", end + b"aa" + end),
            ("q", b"b" + end + end), ("q", end + end + b"b"),
        ]
    ]  # fmt: skip
    assert len({*same, *different}) == 1 + len(different)
