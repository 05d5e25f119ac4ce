"""Places for requests: windows, classes, and whose turn it is. The clock is a number."""

from __future__ import annotations

import random

import pytest

from gateway.webhooks.attempts.slots import SHARES, SLOW_AFTER, EndpointSlots, Health, Slots


class Player:
    """An endpoint that takes each place that it is offered, ``wants`` times."""

    def __init__(self, slots: Slots, name: str, log: list[str], concurrency: int = 10, wants: int = 1) -> None:
        self.lane: EndpointSlots = slots.lane(concurrency, self.go)
        self.slots, self.name, self.log, self.wants = slots, name, log, wants
        self.numbers: list[int] = []
        self.now = 0.0

    def go(self) -> None:
        while self.wants and self.slots.ask(self.lane):
            self.wants -= 1
            self.log.append(self.name)
            self.numbers.append(self.lane.begin(self.now))

    def end(self, good: bool | None, now: float = 0.0) -> None:
        self.lane.end(self.numbers.pop(0), good, now)
        self.slots.serve()


def proven(slots: Slots, name: str, log: list[str], wants: int = 1, concurrency: int = 10) -> Player:
    """One that is known to be good."""
    player = Player(slots, name, log, concurrency)
    player.lane.end(player.lane.begin(0.0), True, 0.0)
    player.wants = wants
    return player


def test_a_window_begins_with_one_grows_while_it_is_full_and_is_halved_by_a_failure() -> None:
    slots = Slots(100)
    player = Player(slots, "a", [], concurrency=8, wants=100)
    windows = []
    for _ in range(10):
        player.go()
        windows.append(player.lane.in_flight)
        player.end(True)
    assert windows == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    assert player.lane.window == 8
    player.go()
    player.end(False)
    assert (player.lane.window, player.lane.health) == (4, Health.GOOD)
    player.end(False)
    assert (player.lane.window, player.lane.health) == (1, Health.FAILING)
    player.end(True)
    assert player.lane.health is Health.GOOD


def test_a_window_that_is_not_full_does_not_grow() -> None:
    slots = Slots(100)
    player = proven(slots, "a", [])
    player.lane.window = 5
    for _ in range(10):
        player.wants = 1
        player.go()
        player.end(True)
    assert player.lane.window == 5


def test_the_first_failure_of_a_new_endpoint_and_the_second_of_a_good_one_tell() -> None:
    slots = Slots(100)
    new, good = Player(slots, "new", []), proven(slots, "good", [], wants=3)
    new.go()
    new.end(False)
    assert new.lane.health is Health.FAILING
    good.go()
    good.end(False)
    assert good.lane.health is Health.GOOD


def test_only_failures_in_a_row_make_a_good_endpoint_one_that_fails() -> None:
    slots = Slots(100)
    player = proven(slots, "a", [])
    assert player.lane.window == 2
    windows = []
    for good in (False, True, False, True, False):
        player.lane.end(player.lane.begin(0.0), good, 0.0)
        windows.append(player.lane.window)
        assert player.lane.health is Health.GOOD
    assert windows == [1, 2, 1, 2, 1]


def test_what_says_nothing_of_the_endpoint_changes_nothing() -> None:
    slots = Slots(100)
    player = Player(slots, "a", [])
    player.go()
    player.end(None)
    assert (player.lane.health, player.lane.window, slots.in_flight) == (Health.NEW, 1, 0)


@pytest.mark.parametrize("health", [Health.FAILING, Health.NEW, Health.SLOW])
def test_those_that_are_not_known_to_be_good_have_a_share_together(health: Health) -> None:
    slots = Slots(64)
    log: list[str] = []
    players = [Player(slots, f"{number}", log) for number in range(100)]
    for player in players:
        slots.move(player.lane, health)
        player.go()
    most = int(64 * SHARES[health])
    assert slots.in_flight == len(log) == most
    good = [proven(slots, f"good {number}", log) for number in range(100)]
    for player in good:
        player.go()
    assert slots.in_flight == 64
    assert sum(name.startswith("good") for name in log) == 64 - most


def test_worse_classes_count_against_the_share_of_better_ones() -> None:
    slots = Slots(16)
    for number, health in enumerate([Health.FAILING] * 2 + [Health.NEW] * 6):
        player = Player(slots, f"{number}", [])
        slots.move(player.lane, health)
        player.go()
    assert not slots.may(Health.FAILING)
    assert not slots.may(Health.NEW)
    assert not slots.may(Health.SLOW)
    assert slots.may(Health.GOOD)


def test_an_endpoint_is_slow_while_a_request_of_it_is_not_answered_for_long() -> None:
    slots = Slots(100)
    player = proven(slots, "a", [], wants=2)
    player.lane.window = 2
    player.go()
    health: list[Health] = []
    for step in (
        lambda: player.lane.look(SLOW_AFTER / 2),
        lambda: player.lane.look(SLOW_AFTER),
        lambda: player.end(True, SLOW_AFTER),  # the other one is not answered yet
        lambda: player.end(True, SLOW_AFTER),
    ):
        step()
        health.append(player.lane.health)
        assert slots.held[player.lane.health] == slots.in_flight
    assert health == [Health.GOOD, Health.SLOW, Health.SLOW, Health.GOOD]


def test_places_are_given_in_turn_and_nobody_gets_a_second_before_the_others_have_one() -> None:
    slots = Slots(4)
    log: list[str] = []
    greedy = proven(slots, "greedy", log, wants=100)
    greedy.lane.window = 10
    greedy.go()
    assert slots.in_flight == 4
    others = [proven(slots, name, log, wants=2) for name in "abc"]
    for player in others:
        player.lane.window = 2
        player.go()
    del log[:]
    for _ in range(4):
        greedy.end(True)
    assert log == ["greedy", "a", "b", "c"]  # it was the first to ask
    # And whoever had a place goes to the end of the line.
    del log[:]
    for player in [greedy, *others]:
        player.end(True)
        player.go()
    assert log == ["greedy", "a", "b", "c"]


def test_classes_that_may_not_go_do_not_hold_up_others() -> None:
    slots = Slots(16)
    log: list[str] = []
    failing = [Player(slots, f"failing {number}", log) for number in range(5)]
    for player in failing:
        slots.move(player.lane, Health.FAILING)
        player.go()
    assert len(log) == 2
    good = proven(slots, "good", log)
    good.go()
    assert log[-1] == "good"
    failing[0].end(False)
    assert log[-1] == "failing 2"


def test_classes_are_served_in_turn() -> None:
    slots = Slots(2)
    log: list[str] = []
    holder = Player(slots, "holder", log)
    holder.go()
    for number in range(3):
        for health in (Health.NEW, Health.SLOW):
            player = Player(slots, f"{health.name} {number}", log)
            slots.move(player.lane, health)
            player.go()
    while len(log) < 7:
        under_way = list(slots.busy)
        assert len(under_way) == 1
        under_way[0].end(next(iter(under_way[0]._begun)), None, 0.0)
        slots.serve()
    assert log[1:] == ["NEW 0", "SLOW 0", "NEW 1", "SLOW 1", "NEW 2", "SLOW 2"]


def test_one_that_asks_to_serve_others_as_it_is_called_gives_its_place_to_nobody_besides() -> None:
    slots = Slots(1)
    log: list[str] = []
    holder, first, second = (proven(slots, name, log) for name in ("holder", "a", "b"))
    for player in (holder, first, second):
        player.go()

    def go() -> None:
        slots.serve()
        Player.go(first)

    first.lane.ready = go
    holder.end(True)
    assert (log, slots.in_flight) == (["holder", "a"], 1)
    first.end(True)
    assert log == ["holder", "a", "b"]


def test_who_leaves_the_line_is_not_called() -> None:
    slots = Slots(1)
    log: list[str] = []
    first, second, third = (proven(slots, name, log) for name in "abc")
    for player in (first, second, third):
        player.go()
    slots.leave(second.lane)
    first.end(True)
    assert log == ["a", "c"]


def slow_in_line(slots: Slots, log: list[str]) -> tuple[Player, Player]:
    """One that became slow while it waited in line for a second place, and the one that holds all others."""
    slow, holder = proven(slots, "slow", log, wants=3), proven(slots, "holder", log, wants=slots.places - 1)
    slow.lane.window, holder.lane.window = 3, slots.places
    slow.lane.begin(0.0)
    holder.go()
    slow.go()
    slow.lane.look(SLOW_AFTER)
    assert slow.lane.health is Health.SLOW
    del log[:]
    return slow, holder


def test_who_waits_is_in_line_once_also_after_its_class_has_changed() -> None:
    slots = Slots(8)
    log: list[str] = []
    slow, holder = slow_in_line(slots, log)
    slow.go()  # asks again, as it waits
    other = Player(slots, "other", log)
    slots.move(other.lane, Health.SLOW)
    other.go()
    for _ in range(2):
        holder.end(True)
    assert log == ["slow", "other"]


def test_who_leaves_the_line_after_its_class_has_changed_is_not_called() -> None:
    slots = Slots(8)
    log: list[str] = []
    slow, holder = slow_in_line(slots, log)
    slots.leave(slow.lane)
    holder.end(True)
    assert log == []


def test_one_that_is_called_and_wants_nothing_leaves_its_place_to_the_next() -> None:
    slots = Slots(1)
    log: list[str] = []
    first, second, third = (proven(slots, name, log) for name in "abc")
    for player in (first, second, third):
        player.go()
    second.wants = 0
    first.end(True)
    assert log == ["a", "c"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_the_counts_are_right_and_nobody_is_forgotten(seed: int) -> None:
    chance = random.Random(seed)
    slots = Slots(chance.randrange(1, 20))
    log: list[str] = []
    players = [Player(slots, f"{number}", log, chance.randrange(1, 5), wants=0) for number in range(12)]
    now = 0.0
    for _ in range(2_000):
        now += chance.random()
        player = chance.choice(players)
        player.now = now
        if player.numbers and chance.random() < 0.6:
            player.end(chance.choice([True, True, False, None]), now)
        else:
            player.wants += 1
        player.lane.look(now)
        player.go()
        slots.serve()
        under_way = [sum(each.lane.in_flight for each in players if each.lane.health is health) for health in Health]
        assert slots.held == under_way
        assert slots.in_flight <= slots.places
        for each in players:
            # Who wants a place and has none is in line, or its window is full.
            assert not each.wants or each.lane.queued or not each.lane.room
        # Nobody waits who might go.
        assert not any(each.lane.queued and each.lane.room and slots.may(each.lane.health) for each in players)


def test_those_that_fail_begin_one_after_the_other_with_a_rest_between_them() -> None:
    slots = Slots(1_000)
    rests: list[None] = []
    slots.rest = lambda: rests.append(None)
    log: list[str] = []
    failing = [Player(slots, f"f{number}", log) for number in range(3)]
    for player in failing:
        player.lane.fail()
        player.go()
    assert log == ["f0"]
    assert len(rests) == 1
    slots.serve()
    assert log == ["f0"]
    proven(slots, "good", log).go()  # keeps nobody else waiting
    assert log == ["f0", "good"]
    slots.rested()
    slots.serve()
    assert log == ["f0", "good", "f1"]
    assert len(rests) == 2
    slots.rested()
    slots.serve()
    assert log == ["f0", "good", "f1", "f2"]


def test_only_those_with_requests_under_way_are_busy() -> None:
    """They alone are looked at, however many endpoints there are."""
    slots = Slots(4)
    lanes = [slots.lane(2, lambda: None) for _ in range(3)]
    assert not slots.busy
    first, second, other = lanes[0].begin(0.0), lanes[0].begin(0.0), lanes[2].begin(0.0)
    assert list(slots.busy) == [lanes[0], lanes[2]]
    lanes[0].end(first, True, 1.0)
    lanes[2].end(other, False, 1.0)
    assert list(slots.busy) == [lanes[0]]
    lanes[0].end(second, None, 1.0)
    assert not slots.busy
