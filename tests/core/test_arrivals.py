"""What a channel has brought."""

from __future__ import annotations

from gateway.core.arrivals import Brought

ONE, OTHER = b"1" * 32, b"2" * 32


def test_two_bodies_under_one_id_are_two_messages() -> None:
    brought, channel = Brought(), object()
    brought.begin(channel)
    brought.add(channel, "id", ONE)
    assert brought.has(channel, "id", ONE, 0)
    assert not brought.has(channel, "id", OTHER, 0)


def test_another_channel_has_brought_nothing() -> None:
    brought, channel = Brought(), object()
    brought.begin(channel)
    brought.add(channel, "id", ONE)
    brought.begin(object())
    assert not brought.has(channel, "id", ONE, 0)
    brought.begin(channel)
    assert not brought.has(channel, "id", ONE, 0), "it is a new one since"
