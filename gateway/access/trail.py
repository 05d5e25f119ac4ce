"""What goes into the audit log: every request that changes something, and every one that is refused.

What a request changed is recorded before its answer goes out: a caller that got one is on record, unless the ledger
went away just then; then the row waits in memory, and the log says so. Publishing, pulling and settling are not here:
they have a row each in the ledger's history. What was refused (401, 403, 429) goes through a queue, so that who is
refused a million times costs nobody a commit each: of one client, or of one address without a credential, and one
reason there are :data:`REFUSALS` rows a minute, and one more says how many there were besides. Of all of them there
are :data:`REFUSALS_MAX` rows a minute, so that no caller can fill the log.

A row says who, what, on which object, from where, with which result; never a secret, a body, or a query.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.access.rates import address_of
from gateway.errors import GatewayError
from gateway.observing.telemetry import log
from gateway.runtime.clock import wall_time

if TYPE_CHECKING:
    from gateway.ledger import Ledger

REFUSALS: Final = 5
"""Rows a minute of one client, or of one address without a credential (IPv6: its /64), and reason."""
REFUSALS_MAX: Final = 500
"""Rows a minute of all of them."""
MINUTE: Final = 60.0
ADDRESSES_MAX: Final = 1_000
"""Of how many addresses and reasons the refusals of a minute are distinguished; the rest count as one."""
QUEUE_MAX: Final = 1_000
"""Most rows that wait to be written; more are only counted."""
FLUSH: Final = 1.0
"""How often what waits is written, in seconds."""
TEXT_MAX: Final = 512
"""Longest text of a row, in characters."""
OTHERS: Final = "others"


class Trail:
    """The audit log, as the API writes it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = wall_time) -> None:
        self._audit = ledger.audit
        self._clock = clock
        self._waiting: list[tuple[int, Mapping[str, Any]]] = []
        self._missed = 0
        self._counts: dict[tuple[str, str, str], int] = {}
        """``actor`` or ``address``, which one, and reason -> how many were refused in this minute."""
        self._recorded = 0
        """How many of them are on record."""
        self._minute = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.written = 0
        """Rows since the start."""

    async def changed(self, action: str, **fields: Any) -> None:
        """Record a change. Where the ledger is away its row waits, and is written when it is back."""
        row = (self._now(), _row(action, fields))
        try:
            await self._audit.append([row])
            self.written += 1
        except GatewayError as error:
            log("access.audit_waits", logging.WARNING, action=action, detail=str(error))
            self._waiting.insert(0, row)

    def refused(self, action: str, code: str, address: str, **fields: Any) -> None:
        """Record a refusal, soon."""
        now = self._clock()
        if now - self._minute >= MINUTE:
            self._sum_up()
            self._minute = now
        actor = str(fields.get("actor", ""))
        key = ("actor", actor, code) if actor else ("address", address_of(address) or address, code)
        if key not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            key = ("address", OTHERS, code)
        self._counts[key] = count = self._counts.get(key, 0) + 1
        if count <= REFUSALS:
            if self._recorded >= REFUSALS_MAX:
                self._missed += 1
                return
            self._recorded += 1
            self._put(_row(action, {"result": code, "address": address, **fields}))

    def _sum_up(self) -> None:
        """How many refusals of the minute that is over are not on record."""
        for (field, who, code), count in self._counts.items():
            if count > REFUSALS:
                self._put(_row("refusals", {"result": code, field: who, "more": count - REFUSALS}))
        self._counts.clear()
        self._recorded = 0
        if self._missed:
            missed, self._missed = self._missed, 0
            self._put(_row("missed", {"more": missed}))

    def _put(self, row: Mapping[str, Any]) -> None:
        if len(self._waiting) >= QUEUE_MAX:
            self._missed += 1
        else:
            self._waiting.append((self._now(), row))

    def _now(self) -> int:
        return int(self._clock() * 1_000_000)

    # ------------------------------------------------------------------------------------------------ keeping

    def start(self) -> None:
        """Write what waits, from now on."""
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="access-trail")

    async def close(self) -> None:
        """Write the rest, and end."""
        self._closing.set()
        if self._task is not None:  # not cancelled: what it writes just now would be in nobody's hands
            await asyncio.wait([self._task])
        self._sum_up()
        await self._flush()

    async def _keep(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), FLUSH)
            if self._counts and self._clock() - self._minute >= MINUTE:
                self._sum_up()
            await self._flush()

    async def _flush(self) -> None:
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        try:
            await self._audit.append(rows)
            self.written += len(rows)
        except GatewayError as error:
            log("access.audit_not_written", logging.WARNING, rows=len(rows), detail=str(error))
            waiting = rows + self._waiting
            self._waiting = waiting[:QUEUE_MAX]
            self._missed += len(waiting) - len(self._waiting)


def _row(action: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Texts that are short, and can be UTF-8; nothing that is empty."""
    row: dict[str, Any] = {"action": action}
    for name, value in fields.items():
        if isinstance(value, str):
            value = value[:TEXT_MAX].encode("utf-8", "backslashreplace").decode()
        if value not in ("", None):
            row[name] = value
    return row
