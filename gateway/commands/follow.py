"""``gateway pull --follow``: messages on the screen for as long as it runs.

It reads the subscription's stream, and acknowledges each message after it was printed and flushed: a second thread
sends what has been printed meanwhile in one request. When the connection drops it comes back; what was not acknowledged
until then is delivered again, and says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from queue import Empty, SimpleQueue
from typing import Any

from gateway.commands import UNREACHABLE, Failure
from gateway.commands.client import ApiClient, note, unreachable
from gateway.runtime.backoff import Backoff
from gateway.runtime.threads import threads

SILENCE = 45.0
"""How long the gateway may say nothing, in seconds; it speaks every 15."""
PAUSE_MIN, PAUSE_MAX = 0.2, 5.0
"""Pause before it is tried to come back, in seconds; doubled each time."""
GROUP = 1_000
"""Most messages that are acknowledged in one request."""


class Acknowledger:
    """Sends acknowledgements, beside the stream. :meth:`close` sends what is left."""

    def __init__(self, settle: Callable[[list[str]], None]) -> None:
        self._settle = settle
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._failure: Failure | None = None
        self._thread = threads.start(self._run, name="acknowledge")

    def add(self, ack_id: str) -> None:
        """A message was printed."""
        self._queue.put(ack_id)

    def close(self) -> None:
        """Send what is left. Raises the first Failure there was."""
        self._queue.put(None)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        last = False
        while not last:
            group = [self._queue.get()]
            while len(group) < GROUP:
                try:
                    group.append(self._queue.get_nowait())
                except Empty:
                    break
            last = None in group
            ack_ids = [ack_id for ack_id in group if ack_id is not None]
            if ack_ids:
                try:
                    self._settle(ack_ids)
                except Failure as failure:
                    if self._failure is None:
                        self._failure = failure


def follow_stream(
    client: ApiClient,
    path: str,
    show: Callable[[Any], None],
    settle: Callable[[list[str]], None],
    count: int | None,
) -> None:
    """Print and acknowledge what comes; ``count``: most messages to take."""
    done = Acknowledger(settle)
    stream = messages(client, f"{path}:stream", count)
    try:
        left = count
        for item in stream:
            show(item)
            sys.stdout.flush()
            done.add(item["ack_id"])
            if left is not None:
                left -= 1
                if not left:
                    return
    except KeyboardInterrupt:
        note("stopped")
    finally:
        done.close()  # before the stream: what is not acknowledged by its end goes back
        stream.close()


def messages(client: ApiClient, path: str, window: int | None) -> Generator[Any, None, None]:
    """What the stream brings, over as many connections as it takes.

    Raises:
        Failure: nobody was there to begin with, or the gateway answered with a problem.
    """
    import httpx

    reached = False
    backoff = Backoff(PAUSE_MIN, PAUSE_MAX)
    query = {"max_outstanding": str(min(window, 100))} if window is not None else {}
    while True:
        try:
            with client.stream(path, {"accept": "application/x-ndjson"}, query, SILENCE) as lines:
                why = "the gateway hung up"
                for line in lines:
                    reached = True
                    backoff.reset()
                    if not line.strip():
                        continue
                    item = json.loads(line)
                    if "end" in item:
                        why = item["end"]
                        break
                    yield item
        except httpx.TransportError as error:
            if not reached:
                raise unreachable(client.url, error) from None
            why = str(error) or type(error).__name__
        except Failure as failure:
            if not reached or failure.exit_code != UNREACHABLE:
                raise
            why = failure.message
        note(f"connection lost ({why}); coming back")
        backoff.block()
