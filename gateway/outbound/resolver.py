"""Names to addresses, asked once per connection.

The system's resolver blocks, and one that gets no answer blocks for half a minute: each question has a thread of its
own, at most so many at a time, and one question serves all who ask for the same name meanwhile. No answer is kept: what
is kept is the connection.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

from gateway.errors import Overloaded, ResolveFailed
from gateway.outbound.limits import DEFAULT_OUTBOUND_LIMITS, OutboundLimits

Resolver = Callable[[str], Awaitable[Sequence[str]]]
"""A host name to all its addresses, in the order in which to try them. Raises ResolveFailed."""


class SystemResolver:
    """What ``getaddrinfo`` says: hosts file, DNS, whatever the system is set up for."""

    def __init__(self, limits: OutboundLimits = DEFAULT_OUTBOUND_LIMITS) -> None:
        self._waiting_max = limits.lookups_waiting
        self._free = asyncio.Semaphore(limits.lookups)
        self._running: dict[str, asyncio.Task[Sequence[str]]] = {}

    async def __call__(self, host: str) -> Sequence[str]:
        """All addresses of a host.

        Raises:
            ResolveFailed: it has none, or nobody could be asked.
            Overloaded: too many names wait for an answer.
        """
        task = self._running.get(host)
        if task is None:
            if len(self._running) >= self._waiting_max:
                raise Overloaded(f"{host}: {self._waiting_max} names are being resolved, the limit is lookups_waiting")
            task = asyncio.get_running_loop().create_task(self._look_up(host))
            self._running[host] = task
            task.add_done_callback(lambda task: self._looked_up(host, task))
        return await asyncio.shield(task)

    def close(self) -> None:
        """Stop waiting; a thread that waits ends when the system gives up."""
        for task in self._running.values():
            task.cancel()

    def _looked_up(self, host: str, task: asyncio.Task[Sequence[str]]) -> None:
        del self._running[host]
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    async def _look_up(self, host: str) -> Sequence[str]:
        async with self._free:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[Sequence[str]] = loop.create_future()

            def settle(result: Sequence[str] | OSError) -> None:
                if found.cancelled():
                    return
                if isinstance(result, OSError):
                    found.set_exception(ResolveFailed(f"{host}: {result.strerror or result}"))
                else:
                    found.set_result(result)

            def ask() -> None:
                result = _addresses(host)
                try:
                    loop.call_soon_threadsafe(settle, result)
                except RuntimeError:
                    return  # the loop has ended meanwhile

            threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
            return await found


def _addresses(host: str) -> Sequence[str] | OSError:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:  # a label that the system's own rules do not like
        return socket.gaierror(socket.EAI_NONAME, str(error))
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
