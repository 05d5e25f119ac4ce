"""How much a subscription is granted."""

from __future__ import annotations

from gateway.v010.subscription import COUNT_MAX, Subscription


def take(subscription: Subscription, *sizes: int) -> None:
    for size in sizes:
        subscription.credit -= 1
        subscription.out += 1
        subscription.measured(size)


def test_without_limits() -> None:
    assert Subscription("d", False).unlimited
    assert Subscription("d", True, 10, 10).unlimited


def test_a_count_is_topped_up_by_halves() -> None:
    subscription = Subscription("d", False, 10)
    assert subscription.first_grant() == 10
    subscription.credit, subscription.out = 5, 5
    for _ in range(4):
        subscription.settled(0)
        assert subscription.top_up() == 0
    subscription.settled(0)
    assert subscription.top_up() == 5
    assert subscription.credit == 10


def test_without_credit_every_one_counts() -> None:
    subscription = Subscription("d", False, 10)
    subscription.first_grant()
    subscription.credit, subscription.out = 0, 10
    subscription.settled(0)
    assert subscription.top_up() == 1


def test_nothing_is_granted_while_stopped_or_ended() -> None:
    subscription = Subscription("d", False, 1)
    subscription.first_grant()
    subscription.credit, subscription.out = 0, 1
    subscription.settled(0)
    subscription.stopped = True
    assert subscription.top_up() == 0
    subscription.stopped, subscription.ended = False, True
    assert subscription.top_up() == 0


def test_what_is_out_is_not_granted_again() -> None:
    subscription = Subscription("d", False, 10)
    subscription.out = 4
    assert subscription.first_grant() == 6
    subscription.out = 12
    assert subscription.first_grant() == 0


def test_octets_begin_with_one_message() -> None:
    subscription = Subscription("d", False, 0, 1000)
    assert subscription.first_grant() == 1
    take(subscription, 100)
    assert subscription.top_up() == 9
    take(subscription, 100, 100)
    assert subscription.top_up() == 0
    subscription.settled(100)
    assert subscription.top_up() == 1


def test_a_message_larger_than_the_limit_goes_alone() -> None:
    subscription = Subscription("d", False, 5, 1000)
    assert subscription.first_grant() == 1
    take(subscription, 5000)
    assert subscription.top_up() == 0
    subscription.settled(5000)
    assert subscription.top_up() == 1


def test_one_large_message_is_forgotten() -> None:
    subscription = Subscription("d", False, 0, 1000)
    subscription.first_grant()
    take(subscription, 5000)
    for _ in range(30):
        subscription.settled(subscription.octets)
        subscription.credit = 0
        take(subscription, 100)
    subscription.credit = 0
    assert subscription.top_up() > 3


def test_both_limits_hold() -> None:
    subscription = Subscription("d", False, 3, 1000)
    subscription.first_grant()
    take(subscription, 1)
    assert subscription.top_up() == 2


def test_empty_messages_are_limited_by_number() -> None:
    subscription = Subscription("d", False, 0, 1)
    subscription.first_grant()
    take(subscription, 0)
    subscription.settled(0)
    assert subscription.top_up() == 1
    assert COUNT_MAX == 65_535
