"""Names to addresses, asked once per connection.

The system's resolver blocks, and one that gets no answer blocks for half a minute. So each question has a thread of its
own, the number of places is bounded, and each client has a share of them. Half of the places are for hosts that had an
address when they were asked last: names that nobody answers cannot take those. Clients that wait take turns. No answer
is kept: what is kept is the connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.budgets import RESOURCES, Holdings, ShareHolder
from gateway.errors import Overloaded, ResolveFailed
from gateway.outbound.limits import DEFAULT_OUTBOUND_LIMITS, OutboundLimits
from gateway.runtime.threads import threads

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""A host name to all its addresses, in the order in which to try them. Raises ResolveFailed."""
KNOWN_MAX: Final = 1_024
"""Hosts that are remembered to have had an address; the one that was asked longest ago is forgotten."""
UNKNOWN_SHARE: Final = 0.5
"""The part of all places that hosts may hold of which no address is known."""
WAITING_SHARE: Final = 0.125
"""The part of ``lookups_waiting`` that one client may hold."""
NOBODY: Final = ShareHolder("")
"""The client of a request that is nobody's in particular."""


class _Lookup:
    """One question, of one client."""

    __slots__ = ("asking", "begun", "client", "found", "host", "known")

    def __init__(self, host: str, client: ShareHolder, found: asyncio.Future[Sequence[str]]) -> None:
        self.host = host
        self.client = client
        self.found = found
        self.asking = 0
        """Callers that wait for the answer."""
        self.begun = False
        """Whether it has a place."""
        self.known = False
        """Whether the host had an address when it was asked last."""


class SystemResolver:
    """The system's own resolver: hosts file, DNS, and anything else that the system uses."""

    def __init__(self, limits: OutboundLimits = DEFAULT_OUTBOUND_LIMITS, places: Holdings | None = None) -> None:
        """Create a resolver. ``places`` None: it has ``limits.lookups`` places, of which a client has a quarter."""
        self._waiting_max = limits.lookups_waiting
        if places is None:
            places = Holdings(RESOURCES["lookups"])
            places.configure(limits.lookups, 0.25, 0.0, {})
        self._places = places
        self._lookups: dict[tuple[str, ShareHolder], _Lookup] = {}
        self._waiting: OrderedDict[ShareHolder, deque[_Lookup]] = OrderedDict()
        """Client -> questions without a place. The client whose turn it is comes first."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._unknown = 0
        """Places held by hosts of which no address is known."""
        self._closed = False

    async def __call__(self, host: str, client: ShareHolder = NOBODY, within: float | None = None) -> Sequence[str]:
        """Return all addresses of a host.

        Args:
            host: the name.
            client: whose share of the places is used.
            within: how long to wait, in seconds; None: as long as the system does.

        Raises:
            ResolveFailed: the host has no address, or the resolver did not answer in time.
            Overloaded: no place was free in time, or too many names wait for one. Nobody was asked.
        """
        loop = asyncio.get_running_loop()
        lookup = self._lookups.get((host, client))
        if lookup is None:
            lookup = self._queue(host, client, loop.create_future())
        lookup.asking += 1
        try:
            await asyncio.wait([lookup.found], timeout=within)
        finally:
            lookup.asking -= 1
            if not (lookup.asking or lookup.begun or lookup.found.done()):
                self._forget(lookup)
        if lookup.found.done():
            return lookup.found.result()
        if lookup.begun:
            raise ResolveFailed(f"{host}: no addresses within {within:.1f} s")
        raise Overloaded(
            f"{host}: no place for a lookup within {within:.1f} s; {self._places.standing().held} are under way, of "
            f"{self._places.total} ({self._places.resource.setting})"
        )

    def close(self) -> None:
        """Stop waiting; a thread that waits ends when the system gives up."""
        self._closed = True
        for lookup in list(self._lookups.values()):
            lookup.found.cancel()
        self._lookups.clear()
        self._waiting.clear()

    def _queue(self, host: str, client: ShareHolder, found: asyncio.Future[Sequence[str]]) -> _Lookup:
        waiting = self._waiting.get(client, ())
        if len(self._lookups) >= self._waiting_max or len(waiting) >= max(1, int(self._waiting_max * WAITING_SHARE)):
            raise Overloaded(
                f"{host}: {len(self._lookups)} names wait for an answer, {len(waiting)} of them for "
                f"{client.name or 'this caller'}; the limit is lookups_waiting"
            )
        lookup = self._lookups[host, client] = _Lookup(host, client, found)
        self._waiting.setdefault(client, deque()).append(lookup)
        self._begin()
        return lookup

    def _forget(self, lookup: _Lookup) -> None:
        """Nobody waits for it, and it has not begun."""
        if self._lookups.pop((lookup.host, lookup.client), None) is not lookup:
            return
        waiting = self._waiting[lookup.client]
        waiting.remove(lookup)
        if not waiting:
            del self._waiting[lookup.client]

    def _begin(self) -> None:
        """Give places to questions that wait, one to each client in turn."""
        begun = True
        while begun:
            begun = False
            for client, waiting in list(self._waiting.items()):
                lookup = self._next(client, waiting)
                if lookup is None:
                    continue
                waiting.remove(lookup)
                if waiting:
                    self._waiting.move_to_end(client)
                else:
                    del self._waiting[client]
                self._start(lookup)
                begun = True

    def _next(self, client: ShareHolder, waiting: deque[_Lookup]) -> _Lookup | None:
        """Return the first question of a client that may have a place now."""
        if self._places.room_of(client) <= 0:
            return None
        most_unknown = max(1, int(self._places.total * UNKNOWN_SHARE))
        for lookup in waiting:
            if lookup.host in self._known or self._unknown < most_unknown:
                return lookup
        return None

    def _start(self, lookup: _Lookup) -> None:
        self._places.take(lookup.client)
        lookup.begun = True
        lookup.known = lookup.host in self._known
        self._unknown += not lookup.known
        loop = asyncio.get_running_loop()

        def ask() -> None:
            result = _addresses(lookup.host)
            try:
                loop.call_soon_threadsafe(self._answered, lookup, result)
            except RuntimeError:
                return  # the loop has ended meanwhile

        threads.start(ask, name=f"resolve {lookup.host}")

    def _answered(self, lookup: _Lookup, result: Sequence[str] | OSError) -> None:
        self._places.give(lookup.client)
        self._unknown -= not lookup.known
        self._known.pop(lookup.host, None)
        if not isinstance(result, OSError):
            self._known[lookup.host] = None
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        if self._closed:
            return
        del self._lookups[lookup.host, lookup.client]
        if isinstance(result, OSError):
            lookup.found.set_exception(ResolveFailed(f"{lookup.host}: {result.strerror or result}"))
            lookup.found.exception()  # everyone who asked may have gone
        else:
            lookup.found.set_result(result)
        self._begin()


def _addresses(host: str) -> Sequence[str] | OSError:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:  # a label that the system's own rules do not like
        return socket.gaierror(socket.EAI_NONAME, str(error))
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
