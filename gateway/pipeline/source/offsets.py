"""Positions in a log, and what a reader does with them: how much to take, in which pieces, and whether it is all there.

A position says of each shard how far one has read, ``{"0": 812, "3": 77}``; a shard that it does not name was not read
at all. Spark keeps positions as JSON and compares them as text, so there is one way to write each: shards in order, and
none at 0. Nothing in here knows Spark or the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from gateway.errors import ConfigurationError, ServiceRefused, SourceGone

RANGE_MAX: Final = 1_000_000
"""Most sequence numbers of one request, as the service has it."""

Position = dict[str, int]
"""Shard -> the last sequence number that was read."""


class Range(NamedTuple):
    """Part of a shard's log: ``after < sequence <= upto``."""

    shard: int
    after: int
    upto: int

    @property
    def length(self) -> int:
        """How many sequence numbers it has."""
        return self.upto - self.after

    def __str__(self) -> str:
        return f"shard {self.shard}, {self.after} < sequence <= {self.upto}"


class Shard(NamedTuple):
    """What of a shard's log can be read."""

    shard: int
    floor: int
    """The lowest sequence number."""
    head: int
    """The last one; below ``floor`` where there is nothing."""
    retired: bool = False
    """The ledger was restored from a backup: nothing follows, and a position may be behind ``head``."""


class Head(NamedTuple):
    """Where a log begins and ends."""

    log: str
    shards: tuple[Shard, ...]
    arrow: bool
    """Whether the service sends Arrow."""

    @property
    def start(self) -> Position:
        """The position before everything that there is."""
        return canonical({str(each.shard): each.floor - 1 for each in self.shards})

    @property
    def end(self) -> Position:
        """The position behind everything that there is."""
        return canonical({str(each.shard): each.head for each in self.shards})


def head_of(document: Any, url: str) -> Head:
    """The answer of ``GET /v1/log/head``.

    Raises: ServiceRefused: it is malformed.
    """
    try:
        shards = sorted(
            Shard(int(each["shard"]), int(each["floor"]), int(each["head"]), bool(each.get("retired", False)))
            for each in document["shards"]
        )
        return Head(str(document["log"]), tuple(shards), bool(document.get("arrow", False)))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ServiceRefused(
            f"{url} answered with something that is not the extent of a log; is it a gateway?"
        ) from None


def canonical(position: Mapping[str, int]) -> Position:
    """The one way to write this position."""
    return {shard: position[shard] for shard in sorted(position, key=int) if position[shard] > 0}


def position_of(text: str, option: str) -> Position:
    """A position from its JSON.

    Raises:
        ConfigurationError: it is malformed; the text names the option.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError
        if not all(type(last) is int and last >= 0 and shard.isdecimal() for shard, last in found.items()):
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f'{option} is {text[:200]!r}; a position names the last sequence number read of each shard: {{"0": 812}}'
        ) from None
    return canonical(found)


def furthest(one: Mapping[str, int], other: Mapping[str, int]) -> Position:
    """The position that is behind both."""
    return canonical({shard: max(one.get(shard, 0), other.get(shard, 0)) for shard in {*one, *other}})


def backlog(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    """How many sequence numbers there are from ``start`` to ``end``."""
    return sum(max(0, last - start.get(shard, 0)) for shard, last in end.items())


def admit(start: Mapping[str, int], end: Mapping[str, int], limit: int) -> Position:
    """How far to read towards ``end`` with at most ``limit`` rows. Each shard gets the same share, and what one does
    not need goes to the others: a busy shard keeps nobody out. The position never goes back."""
    waiting = sorted((last - start.get(shard, 0), shard) for shard, last in end.items() if last > start.get(shard, 0))
    if len(waiting) > limit:  # not a row for each: the longest backlogs first, and the next time others are the longest
        waiting = waiting[-limit:] if limit else []
    reached = dict(start)
    left = limit
    for place, (rows, shard) in enumerate(waiting):
        taken = min(rows, left // (len(waiting) - place))
        reached[shard] = start.get(shard, 0) + taken
        left -= taken
    return canonical(reached)


def ranges(start: Mapping[str, int], end: Mapping[str, int], rows: int) -> list[Range]:
    """What lies between two positions, in pieces of about the same length and of at most ``rows``, in order."""
    found = []
    for shard in sorted(end, key=int):
        after, last = start.get(shard, 0), end[shard]
        pieces = -(-(last - after) // rows)
        for piece in range(pieces):
            upto = after + -(-(last - after) // (pieces - piece))
            found.append(Range(int(shard), after, upto))
            after = upto
    return found


def gone(start: Mapping[str, int], head: Head) -> list[Range]:
    """What lies behind a position and cannot be read any more."""
    return [
        Range(each.shard, start.get(str(each.shard), 0), each.floor - 1)
        for each in head.shards
        if start.get(str(each.shard), 0) < each.floor - 1
    ]


def check(start: Mapping[str, int], head: Head, *, fail: bool) -> tuple[Position, list[Range]]:
    """Where to begin: the position, or behind what is gone; and what is gone.

    Args:
        fail: rather fail than pass over what is gone.

    Raises:
        SourceGone: something is gone; or the position is of another log, for it is ahead of this one.
    """
    ends = head.end
    retired = {str(each.shard) for each in head.shards if each.retired}
    ahead = {shard: last for shard, last in start.items() if last > ends.get(shard, 0) and shard not in retired}
    if ahead:
        raise SourceGone(
            f"the position {json.dumps(ahead)} is ahead of the log of {head.log}, which ends at "
            f"{json.dumps({shard: ends.get(shard, 0) for shard in ahead})}: it belongs to another ledger"
        )
    missing = gone(start, head)
    if missing and fail:
        raise SourceGone(
            f"rows of the log of {head.log} are gone that were not read: {described(missing)}. Retention overtook the "
            "reader. With the option failOnDataLoss=false it goes on behind them"
        )
    return furthest(start, {str(each.shard): each.upto for each in missing}), missing


def described(missing: Iterable[Range]) -> str:
    """Ranges as a text, the first ones by name."""
    each = list(missing)
    text = "; ".join(map(str, each[:5]))
    return text if len(each) <= 5 else f"{text}; and {len(each) - 5} more"
