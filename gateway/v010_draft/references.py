"""Bodies that come in pieces: message.open, append and close of a reference, and the transfers that name it.

A transfer may come before its body is whole, and several may name one. They wait for the close. What waits counts
towards the connection's spool: names, transfers and bodies. A body over a limit is dropped as it comes, and its
transfers then say so. Nothing is kept beyond the session: a checkpoint is taken note of by nobody, and resume begins at
offset 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.classic.assembler import AssemblyLimit
from gateway.limits import Limits
from gateway.v010_draft.translate import Transfer

NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
RESOURCE_ERROR: Final = 506

REFERENCES_MAX: Final = 64
"""How many references may be open in one session."""
HELD_OVERHEAD: Final = 64
"""What a name or a transfer that waits takes beside its octets, roughly."""


class SessionFault(Exception):
    """What ends the session, with the reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Arrived(NamedTuple):
    """A body that is whole, or would be."""

    transfers: list[tuple[int, Transfer]]
    """Command id and arguments of those that named it."""
    body: bytes | None
    """None: it was over ``limit`` and is gone."""
    size: int
    limit: int


class _Reference:
    __slots__ = ("body", "held", "limit", "size", "transfers")

    def __init__(self, held: int) -> None:
        self.body = bytearray()
        self.size = 0
        self.limit = 0
        """The limit that the body broke; 0: none."""
        self.held = held
        """Octets of the spool that are this one's."""
        self.transfers: list[tuple[int, Transfer]] = []


class References:
    """The references that are open in one session."""

    __slots__ = ("_message_max", "_open", "_spool")

    def __init__(self, limits: Limits, spool: AssemblyLimit) -> None:
        self._message_max = limits.message_max
        self._spool = spool
        self._open: dict[bytes, _Reference] = {}

    def open(self, name: bytes) -> None:
        """message.open, or resume. Raises :class:`SessionFault` where it is open already, or too many are."""
        if name in self._open:
            raise SessionFault(PRECONDITION_FAILED, f"the reference {name!r:.80} is open")
        if len(self._open) >= REFERENCES_MAX:
            raise SessionFault(RESOURCE_ERROR, f"more than {REFERENCES_MAX} references are open")
        self._open[name] = _Reference(self._hold(len(name)))

    def append(self, name: bytes, octets: bytes) -> None:
        """message.append. Raises :class:`SessionFault` where it is not open."""
        reference = self._named(name)
        size = len(octets)
        reference.size += size
        if reference.limit:
            return
        if reference.size > self._message_max:
            reference.limit = self._message_max
        elif self._spool.held + size > self._spool.limit:
            reference.limit = self._spool.limit
        else:
            self._spool.held += size
            reference.held += size
            reference.body += octets
            return
        self._spool.held -= len(reference.body)
        reference.held -= len(reference.body)
        reference.body = bytearray()

    def refer(self, number: int, transfer: Transfer) -> None:
        """A transfer names a reference. Raises :class:`SessionFault` where it is not open, or too much waits."""
        reference = self._named(transfer.body)
        size = len(transfer.properties) + len(transfer.destination) + len(transfer.exchange) + len(transfer.routing_key)
        reference.held += self._hold(size)
        reference.transfers.append((number, transfer))

    def close(self, name: bytes) -> Arrived:
        """message.close: what has arrived by it. Raises :class:`SessionFault` where it is not open."""
        reference = self._named(name)
        del self._open[name]
        self._spool.held -= reference.held
        body = None if reference.limit else bytes(reference.body)
        return Arrived(reference.transfers, body, reference.size, reference.limit)

    def check(self, name: bytes) -> None:
        """Raises :class:`SessionFault` where it is not open."""
        self._named(name)

    def forget(self) -> None:
        """The session is over."""
        self._spool.held -= sum(reference.held for reference in self._open.values())
        self._open.clear()

    def _named(self, name: bytes) -> _Reference:
        reference = self._open.get(name)
        if reference is None:
            raise SessionFault(NOT_FOUND, f"the reference {name!r:.80} is not open")
        return reference

    def _hold(self, size: int) -> int:
        """What is spooled for so many octets that cannot be dropped."""
        size += HELD_OVERHEAD
        if self._spool.held + size > self._spool.limit:
            raise SessionFault(RESOURCE_ERROR, f"more than {self._spool.limit} octets of unfinished messages")
        self._spool.held += size
        return size
