"""Calls that are larger than a group, in groups; and the cursors of pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.errors import EntriesRefused, LedgerUnavailable
from gateway.ledger.writing.calls import GROUP_OCTETS, WriterCall


class Submits(Protocol):
    """The ledger, as its parts see it."""

    async def submit(self, call: WriterCall) -> Any:
        """Have a call written with the other calls that wait."""


def future() -> asyncio.Future[Any]:
    """What a call is waited for by."""
    return asyncio.get_running_loop().create_future()


async def divided(ledger: Submits, call: WriterCall, size: int) -> Any:
    """Have a call written; in groups of about ``size`` rows, or of :data:`GROUP_OCTETS`, where it has more.

    Raises:
        LedgerUnavailable: nothing was written of the part it stopped at, nor behind it; its ``written`` says how many
            units there were before.
        EntriesRefused: some units cannot be written, by their index.
    """
    groups = max(call.rows / size, call.octets / GROUP_OCTETS)
    if groups <= 1 or call.units <= 1:
        return await ledger.submit(call)
    results: list[Any] = []
    refused: dict[int, str] = {}
    begin = 0
    for part in call.parts(max(1, int(call.units / groups))):
        part.future = future()
        try:
            results += await ledger.submit(part) or []
        except EntriesRefused as error:
            refused |= {begin + index: why for index, why in error.refused.items()}
            results += error.results or [None] * part.units
        except LedgerUnavailable as error:
            raise partly(error, begin, refused) from None
        begin += part.units
    if refused:
        raise EntriesRefused(refused, results)
    return results


def partly(error: LedgerUnavailable, begin: int, refused: Mapping[int, str]) -> LedgerUnavailable:
    """The error of a part, for the whole: ``begin`` units before it are durable, but for the refused."""
    error.refused = {**refused, **{begin + index: why for index, why in error.refused.items()}}
    error.written += begin
    return error


def place_of(cursor: str) -> bytes:
    """The id that a cursor stands for.

    Raises:
        ValueError: the cursor is malformed.
    """
    try:
        found = bytes.fromhex(cursor)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ValueError(f"{cursor!r:.80} is no cursor of this list")
    return found
