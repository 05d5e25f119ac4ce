"""What can happen to messages, as events by hand: one case a row, with what reconciling must name. A case is written as
if it were alone; the test gives each its own names and reconciles all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.pipeline.jobs.estate import Estate

ESTATE = Estate(queues={"subscription:s": "shop/q", "bridge:b": "old/in"}, held={"shop/q": 0, "old/in": 0})


def published(message: str) -> list[tuple[Any, ...]]:
    """It was taken and confirmed."""
    return [(message, "accepted", {}, 0), (message, "confirmed", {}, 1)]


MINE = {"subscription": "s"}
MOVED = {"bridge": "b", "target": "shop", "exchange": "", "routing_key": "q"}
ELSEWHERE = {**MOVED, "exchange": "e"}
ANON = {"broker": "anon", "source_broker": "anon"}
OLDER = {"broker": "old", "source_broker": "old", "routing_key": "in"}
FORGOTTEN = dict.fromkeys(("accepted_at", "source_broker", "exchange", "routing_key", "size", "sha256", "origin"))
CASES: dict[str, tuple[list[tuple[Any, ...]], Estate, set[tuple[str, str, str]]]] = {
    "an outcome that came at the second attempt": (
        [("m", "accepted", {}, 0), ("m", "unknown", {}, 1), ("m", "resent", {}, 2), ("m", "confirmed", {}, 2),
         ("m", "acknowledged", MINE, 3)], ESTATE, set()),
    "an outcome that never came is one that is known": (
        [("m", "accepted", {}, 0), ("m", "unknown", {}, 1)], ESTATE, set()),
    "no outcome": ([("m", "accepted", {}, 0)], ESTATE, {("lost", "publish shop/", "m")}),
    "nothing is expected yet": ([("m", "accepted", {}, 86_390)], ESTATE, set()),
    "a lease that ended by itself": (
        [*published("m"), ("m", "delivered", MINE, 2), ("m", "lease_expired", MINE, 9), ("m", "delivered", MINE, 10),
         ("m", "lease_lost", MINE, 11), ("m", "delivered", MINE, 12), ("m", "acknowledged", MINE, 13)], ESTATE, set()),
    "a process that died with a lease, and the message that came again": (
        [*published("m"), ("m", "delivered", MINE, 2), ("m", "delivered", {**MINE, "redelivered": True}, 3),
         ("m", "acknowledged", MINE, 4)], ESTATE, set()),
    "rejected, and brought back by its broker": (
        [*published("m"), ("m", "rejected", MINE, 2), ("m", "rejected", MINE, 3), ("m", "acknowledged", MINE, 4)],
        ESTATE, set()),
    "dead letters, taken from where they lie": (
        [*published("m"),
         ("m", "dead_lettered", {**MINE, "place": {"broker": "old", "exchange": "", "routing_key": "in"}}, 2),
         ("m", "forwarded", {"bridge": "b", "target": "x", "exchange": "e", "routing_key": "k"}, 3)], ESTATE, set()),
    "a dead letter that is gone": (
        [*published("m"),
         ("m", "dead_lettered", {**MINE, "place": {"broker": "old", "exchange": "", "routing_key": "in"}}, 2)],
        ESTATE, {("lost", "queue old/in", "m")}),
    "a bridge's dead letter that is gone": (
        [("m", "dead_lettered", {"bridge": "c", "reason": 'a "quoted" one', "exchange": "", "routing_key": "q"}, 2)],
        ESTATE, {("lost", "queue shop/q", "m")}),
    "what it cannot carry, looped, and dropped": (
        [("m", "forwarded", {"bridge": "b", "target": "x", "exchange": "e", "routing_key": "k"}, 3),
         ("m", "reduced", {"bridge": "b", "losses": []}, 3), ("m", "looped", {"bridge": "b"}, 4),
         ("m", "duplicate_dropped", {"bridge": "b"}, 5)], ESTATE, set()),
    "forwarded twice": (
        [("m", "forwarded", {"bridge": "b", "target": "x", "exchange": "e", "routing_key": "k"}, 3),
         ("m", "forwarded", {"bridge": "b", "target": "x", "exchange": "e", "routing_key": "k"}, 4)],
        ESTATE, {("duplicate", "queue old/in", "m")}),
    "forwarded, with a routing key that JSON escapes": (
        [("m", "forwarded", {"bridge": "b", "target": "shop", "exchange": "", "routing_key": 'q"\\'}, 3)],
        replace(ESTATE, queues={**ESTATE.queues, "tap:t": 'shop/q"\\'}, held={'shop/q"\\': 0}),
        {("lost", 'queue shop/q"\\', "m")}),
    "a bridge that leaves messages where they are": (
        [*published("m"), ("m", "forwarded", {"bridge": "b", "target": "x", "exchange": "e", "routing_key": "k"}, 3)],
        Estate(queues={"bridge:b": "shop/q"}, mirrors=frozenset({"bridge:b"}), held={"shop/q": 1}), set()),
    "a bridge that takes the ids off": (
        [("m", "forwarded", {"bridge": "b", "target": "shop", "exchange": "", "routing_key": "q"}, 3)],
        replace(ESTATE, nameless=frozenset({"bridge:b"})), set()),
    "a broker that does not keep ids": (
        [("m", "accepted", {}, 0, ANON), ("m", "confirmed", {}, 1, ANON),
         ("o", "acknowledged", MINE, 4, {**ANON, "origin": "broker"})],
        Estate(queues={"subscription:s": "anon/q"}, held={"anon/q": 0}), set()),
    "the only one, gone from a queue into which others publish, of a broker that keeps ids": (
        [*published("m"), ("o", "acknowledged", MINE, 4, {"origin": "broker"})], ESTATE,
        {("lost", "queue shop/q", "m")}),
    "published to the same broker by another name": (
        [("m", "accepted", {}, 0, ANON), ("m", "confirmed", {}, 1, ANON), ("n", "accepted", {}, 0, ANON),
         ("n", "confirmed", {}, 1, ANON), ("n", "acknowledged", MINE, 2)],
        replace(ESTATE, same={"anon/q": "shop/q"}), {("lost", "queue shop/q", "m")}),
    "a bridge that loses one and doubles another": (
        [("m", "accepted", {}, 0, OLDER), ("m", "confirmed", {}, 1, OLDER), ("n", "accepted", {}, 0, OLDER),
         ("n", "confirmed", {}, 1, OLDER), *(("n", "forwarded", MOVED, 2 + time) for time in range(2)),
         *(("n", "acknowledged", MINE, 5 + time) for time in range(2))],
        ESTATE, {("lost", "queue old/in", "m"), ("duplicate", "queue old/in", "n")}),
    "one is lost behind a bridge, and another one taken twice there": (
        [(each, kind, {}, 0, OLDER) for each in ("m", "n") for kind in ("accepted", "confirmed")]
        + [("m", "forwarded", MOVED, 2), ("n", "forwarded", MOVED, 2),
           *(("n", "acknowledged", MINE, 5 + time) for time in range(2))],
        ESTATE, {("lost", "queue shop/q", "m"), ("duplicate", "queue shop/q", "n")}),
    "a mirror that copies one twice": (
        [*published("m"), *(("m", "forwarded", MOVED, 3 + time) for time in range(2))],
        Estate(queues={"bridge:b": "shop/q"}, mirrors=frozenset({"bridge:b"}), held={"shop/q": 1}),
        {("duplicate", "bridge:b", "m")}),
    "twice, and the ledger has forgotten when it came": (
        [("m", "forwarded", ELSEWHERE, 3, FORGOTTEN), ("m", "forwarded", ELSEWHERE, 4, FORGOTTEN)], ESTATE,
        {("duplicate", "queue old/in", "m")}),
    "an archive in which the last event came after the message was forgotten": (
        [*published("m"), ("m", "acknowledged", MINE, 4, FORGOTTEN)], ESTATE, set()),
    "later, overdue, and the ledger holds it": (
        [("h", "scheduled", {"not_before": "2027-01-14T10:00:00Z"}, 0)], ESTATE, set()),
    "later, overdue, and nobody holds it": (
        [("m", "scheduled", {"not_before": "2027-01-14T10:00:00Z"}, 0)], ESTATE, {("lost", "publish shop/", "m")}),
    "later without a time, and nobody holds it": (
        [("m", "scheduled", {}, 0)], ESTATE, {("lost", "publish shop/", "m")}),
    "later, tried again, and nobody holds it": (
        [("m", "scheduled", {}, 0), ("m", "not_sent", {}, 1), ("m", "scheduled", {"retry": True}, 2)], ESTATE,
        {("lost", "publish shop/", "m")}),
    "later, with another time, and published": (
        [("m", "scheduled", {"not_before": "2027-01-14T08:00:00Z"}, 0),
         ("m", "scheduled", {"rescheduled": True, "not_before": "2027-01-14T10:00:00Z"}, 1),
         ("m", "confirmed", {}, 10_000), ("m", "acknowledged", MINE, 10_001)], ESTATE, set()),
    "later, with another time, and nobody holds it": (
        [("m", "scheduled", {}, 0), ("m", "scheduled", {"rescheduled": True, "not_before": "2027-01-14T10:00:00Z"}, 1)],
        ESTATE, {("lost", "publish shop/", "m")}),
    "later, taken back": ([("m", "scheduled", {}, 0), ("m", "cancelled", {}, 1)], ESTATE, set()),
    "later, and not due": ([("m", "scheduled", {"not_before": "2027-02-01T10:00:00Z"}, 0)], ESTATE, set()),
    "what lies in a queue": ([*published("m")], replace(ESTATE, held={"shop/q": 1}), set()),
    "the oldest is the one that is gone": (
        [("n", "accepted", {}, 5), ("n", "confirmed", {}, 6), *published("m")], replace(ESTATE, held={"shop/q": 1}),
        {("lost", "queue shop/q", "m")}),
    "a queue of which nobody tells": ([*published("m")], replace(ESTATE, held={}), set()),
    "a queue that others consume": (
        [("m", "accepted", {}, 0, {"routing_key": "x"}), ("m", "confirmed", {}, 1, {"routing_key": "x"})],
        ESTATE, set()),
    "an exchange that is bound": (
        [("m", "accepted", {}, 0, {"exchange": "e", "routing_key": "k"}),
         ("m", "confirmed", {}, 1, {"exchange": "e", "routing_key": "k"})],
        replace(ESTATE, routes={"shop/e/k": "shop/q"}), {("lost", "queue shop/q", "m")}),
    "a bridge to an exchange that is bound": (
        [("m", "forwarded", ELSEWHERE, 3), ("n", "forwarded", ELSEWHERE, 3), ("n", "acknowledged", MINE, 4)],
        replace(ESTATE, routes={"shop/e": "shop/q"}), {("lost", "queue shop/q", "m")}),
    "two outcomes": (
        [("m", "accepted", {}, 0), ("m", "refused", {}, 1), ("m", "confirmed", {}, 2), ("m", "acknowledged", MINE, 3)],
        ESTATE, {("duplicate", "publish shop/", "m")}),
    "later, not sent, and again": (
        [("m", "scheduled", {}, 0), ("m", "not_sent", {}, 1), ("m", "scheduled", {"retry": True}, 2),
         ("m", "confirmed", {}, 3), ("m", "acknowledged", MINE, 4)], ESTATE, set()),
    "published later is not late": (
        [("m", "scheduled", {"not_before": "2027-01-14T10:00:00Z"}, 0), ("m", "confirmed", {}, 10_000),
         ("m", "acknowledged", MINE, 10_001)], ESTATE, set()),
    "late": (
        [*published("m"), ("m", "acknowledged", MINE, 10_000)], ESTATE, {("late", "subscription:s", "m")}),
    "detail with blanks": (
        [*published("m"), ("m", "acknowledged", {}, 4, {"detail": '{"subscription": "s", "lease": 1}'})],
        ESTATE, set()),
}  # fmt: skip


TWICE = [*published("m"), ("m", "acknowledged", MINE, 2)]
CASES["a duplicate that is marked"] = (
    [*TWICE, ("m", "delivered", {**MINE, "redelivered": True}, 3), ("m", "acknowledged", MINE, 4)],
    ESTATE, {("duplicate, marked", "queue shop/q", "m")},
)  # fmt: skip
CASES["a duplicate of which nobody says so"] = (
    [*TWICE, ("m", "acknowledged", MINE, 4)],
    ESTATE,
    {("duplicate", "queue shop/q", "m")},
)
CASES["a duplicate that came again at another place"] = (
    [*TWICE, ("m", "delivered", {"subscription": "x", "redelivered": True}, 3), ("m", "acknowledged", MINE, 4)],
    ESTATE, {("duplicate", "queue shop/q", "m")},
)  # fmt: skip
CASES["one that came again, was done with, and was put there once more"] = (
    [*published("m"), ("m", "delivered", {**MINE, "redelivered": False}, 2),
     ("m", "delivered", {**MINE, "redelivered": True}, 3), ("m", "acknowledged", MINE, 4),
     ("m", "delivered", {**MINE, "redelivered": False}, 5), ("m", "acknowledged", MINE, 6)],
    ESTATE, {("duplicate", "queue shop/q", "m")},
)  # fmt: skip
CASES["one that was sent a second time, as it says"] = (
    [("m", "accepted", {}, 0), ("m", "unknown", {}, 1), ("m", "resent", {}, 2), ("m", "confirmed", {}, 2),
     ("m", "acknowledged", MINE, 3), ("m", "acknowledged", MINE, 4)],
    ESTATE, {("duplicate, marked", "queue shop/q", "m")},
)  # fmt: skip
