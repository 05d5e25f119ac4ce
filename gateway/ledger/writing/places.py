"""Places in the writer's queue, and who waits for one.

The queue has a bound, in rows, and each client a share of it. What is over the share waits in a line of the client's
own, and the lines take turns. So a client with huge batches waits for itself, and others for their own rows. What the
gateway does on nobody's behalf, such as settling what was promised, has a line, too, and no bound but the queue's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

from gateway.budgets import Holder, Holdings, ShareHolder


class _Waiter(NamedTuple):
    client: ShareHolder
    rows: int
    turn: asyncio.Future[bool]
    """True: it has its places; False: nobody waits any more."""


class Places:
    """How many rows are in the queue, and of whom. All methods belong to the event loop."""

    def __init__(self, most: int, holdings: Holdings) -> None:
        """``most``: rows in the queue. ``holdings``: counts them by client, and knows the share of each."""
        self.rows = 0
        """In the queue, or in the transaction under way."""
        self._most = most
        self._holdings = holdings
        self._lines: OrderedDict[Holder, deque[_Waiter]] = OrderedDict()
        """Client -> who waits, in order; the client whose turn it is first."""
        self._loop = asyncio.get_running_loop()

    def count_in(self, holdings: Holdings) -> None:
        """Count in other holdings from now on: what is in the queue moves there."""
        for client, rows in self._holdings.largest(1 << 30):
            self._holdings.give(client, rows)
            holdings.take(client, rows, forced=True)
        self._holdings = holdings

    def take_now(self, client: ShareHolder, rows: int) -> bool:
        """Take places if there are some for this client and nobody waits; returns whether. See :meth:`take`."""
        after = self.rows + rows
        if self._lines or (after > self._most and self.rows) or not self._holdings.take_share(client, rows):
            return False
        self.rows = after
        return True

    async def take(self, client: ShareHolder, rows: int) -> None:
        """Take places, in the client's line: as soon as there are some."""
        turn: asyncio.Future[bool] = self._loop.create_future()
        self._lines.setdefault(client.holder, deque()).append(_Waiter(client, rows, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():  # its turn had come: hand it on
                self.leave({client: rows})
            raise

    def add(self, client: ShareHolder, rows: int) -> None:
        """Take places whether there are some or not."""
        self.rows += rows
        self._holdings.take(client, rows, forced=True)

    def leave(self, left: dict[ShareHolder, int]) -> None:
        """Rows of these clients left the queue; those who wait take their places."""
        for client, rows in left.items():
            self.rows -= rows
            self._holdings.give(client, rows)
        if self._lines:
            self._admit()

    def close(self) -> None:
        """Have nobody wait any more."""
        for line in self._lines.values():
            for waiter in line:
                if not waiter.turn.done():
                    waiter.turn.set_result(False)
        self._lines.clear()

    def _admit(self) -> None:
        """Let those in whose turn it is. One whose client has its share already is passed over; one for whom the queue
        has no room stays in front."""
        admitted = True
        while admitted:
            admitted = False
            for name in list(self._lines):
                line = self._lines[name]
                while line and line[0].turn.done():  # it waits no longer
                    line.popleft()
                if line:
                    client, rows, turn = line[0]
                    if not self._has_share(client, rows):
                        continue
                    if not self._fits(rows):
                        return
                    line.popleft()
                    self.add(client, rows)
                    turn.set_result(True)
                    admitted = True
                if line:
                    self._lines.move_to_end(name)
                else:
                    del self._lines[name]

    def _fits(self, rows: int) -> bool:
        return not self.rows or self.rows + rows <= self._most

    def _has_share(self, client: ShareHolder, rows: int) -> bool:
        held = self._holdings.held_by(client)
        return not held or held + rows <= self._holdings.share_of(client)
