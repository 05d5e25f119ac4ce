"""Consumers that pull: they hold what they got for a moment and settle it, as a good consumer does.

A good consumer repeats an acknowledgement that was not answered, for repeating it is harmless. Now and then it gives
a message back, or asks for more time. What a row makes of it is in its :class:`Temper`: some messages are held longer
than their leases, answers are cut off by a proxy, or the consumers are killed with leases open, which for the gateway
is a connection that is reset.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from tests.faults.checker import History, Reception, Settled
from tests.faults.consumers.lanes import Lane
from tests.faults.consumers.messages import digest_received
from tests.faults.http import Answer, Http, Hung, NoAnswer, NotSent

DEADLINE: Final = 10.0
"""How long a lease lasts: as short as it may be."""
HUNG_UP: Final = 2.0
"""Who hangs up so many seconds after an answer came may have done so before the gateway saw it arrive: then its
messages go back at once."""
LATE: Final = 1.5
"""How long after its deadline a late consumer comes."""
_PAUSE: Final = 0.1
"""Seconds before something is tried again."""
_WITHIN: Final = 30.0
"""How long a request may take before it counts as hung."""
_INSIST: Final = 20.0
"""How long a consumer repeats a settlement that is not answered."""


@dataclass(slots=True)
class Temper:
    """How consumers behave. Times in seconds. A row changes it while they are at work."""

    hold: float = 0.03
    """How long a message is held, at the median."""
    give_back: float = 0.02
    """Share of the messages that are given back the first time they come."""
    extend: float = 0.05
    """Share of the pulls whose messages get more time first."""
    late: int = 0
    """So many of the next messages are held until their leases have run out."""
    cuts: deque[int] = field(default_factory=deque)
    """The next answers that end after so many octets (push)."""
    refuse: float = 0.0
    """Share of the messages that are refused the first time they come (push)."""


class Consumers:
    """Some consumers of one lane. :meth:`stop` lets them end, :meth:`kill` does not."""

    def __init__(self, lane: Lane, history: History, port: int, seed: int, *, number: int = 2, most: int = 10) -> None:
        """
        Args:
            port: of the gateway.
            number: of consumers.
            most: messages of one pull.
        """
        self.lane = lane
        self.history = history
        self.temper = Temper()
        self.open = 0
        """Messages that they hold now."""
        self.complaints: list[str] = []
        """Answers that are not as they must be."""
        self.answers: Counter[str] = Counter()
        """How often each answer was given: ``pull 200``, ``acknowledge SUCCESS``, …"""
        self.path = f"/v1/subscriptions/{quote(lane.slug, safe='')}"
        self.port = port
        self.random = random.Random(f"{seed} {lane.slug}")
        self._number = number
        self._most = most
        self.resting = False
        """They pull nothing more for the time being."""
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._held: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------- control

    async def begin(self) -> None:
        """Start them, again after :meth:`kill`."""
        self._stopped.clear()
        self._tasks = [asyncio.create_task(self.consume()) for _ in range(self._number)]

    async def kill(self) -> int:
        """End them at once; how many messages they held. Their connections are reset, and nothing is settled."""
        held = self.open
        await self.abandon()
        return held

    async def stop(self) -> None:
        """Let them end, with what they hold settled."""
        self._stopped.set()
        await asyncio.gather(*self._tasks)
        while self._held:
            await asyncio.wait(set(self._held))

    async def abandon(self) -> None:
        """End them at once, after a failure."""
        tasks = [*self._tasks, *self._held]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self.complaints.append(f"a consumer broke: {result!r}")
        self._tasks = []

    @property
    def stopped(self) -> bool:
        """They are to end."""
        return self._stopped.is_set()

    # ---------------------------------------------------------------------------------------------- work

    async def consume(self) -> None:
        """One of them."""
        http = Http(self.port)
        try:
            while not self.stopped:
                if self.resting:
                    await asyncio.sleep(_PAUSE)
                    continue
                began = time.monotonic()
                messages = await self.pull(http)
                if messages:
                    await self.take(http, self.received(messages, began + DEADLINE))
        finally:
            http.reset()

    async def pull(self, http: Http, most: int | None = None, wait: float = 0.3) -> Sequence[Mapping[str, Any]]:
        """One pull; nothing where it went wrong."""
        request = {"max_messages": most or self._most, "wait": wait}
        try:
            answer = await http.request("POST", f"{self.path}:pull", request, within=_WITHIN)
        except NotSent:
            await asyncio.sleep(_PAUSE)
            return ()
        except NoAnswer as error:
            self.unanswered("pull", error)
            await asyncio.sleep(_PAUSE)
            return ()
        body = answer.json()
        self.answers[f"pull {body.get('code', answer.status)}"] += 1
        if answer.status != 200:
            if answer.status < 500:
                self.complaints.append(f"pull: {answer.status} {body}")
            await asyncio.sleep(_PAUSE)
            return ()
        messages: list[Mapping[str, Any]] = body["messages"]
        return messages

    def received(self, messages: Sequence[Mapping[str, Any]], ends: float) -> list[tuple[str, Reception]]:
        """Write down what was handed over; ack ids and receptions."""
        now = time.monotonic()
        found = []
        for item in messages:
            message = item["message"]
            reception = Reception(
                id=message["properties"].get("message_id", ""),
                digest=digest_received(message),
                gateway_id=message["id"],
                redelivered=item["redelivered"],
                resent=item["resent"],
                attempt=item["delivery_attempt"] or 1 + item["redelivered"],
                since=now,
                ends=ends,
            )
            found.append((item["ack_id"], self.history.receive(reception)))
        self.open += len(found)
        return found

    async def take(self, http: Http, held: list[tuple[str, Reception]]) -> None:
        """Hold messages, and settle them."""
        rng, temper = self.random, self.temper
        late, self.temper.late = held[: temper.late], max(0, temper.late - len(held))
        if late:
            task = asyncio.create_task(self._come_late(late))
            self._held.add(task)
            task.add_done_callback(partial(self._came_late, len(late)))
        held = held[len(late) :]
        try:
            if held and rng.random() < temper.extend:
                await self._extend(http, held)
            if temper.hold:
                await asyncio.sleep(rng.expovariate(0.7 / temper.hold))
            back = [item for item in held if item[1].attempt < 2 and rng.random() < temper.give_back]
            await self._settle(http, "acknowledge", [item for item in held if item not in back], Settled.ACKED)
            await self._settle(http, "release", back, Settled.RELEASED)
        except asyncio.CancelledError:  # the connection is reset
            now = time.monotonic()
            for _, reception in held:
                if reception.settled is Settled.NO and now - reception.since < HUNG_UP:
                    reception.ends = now
            raise
        finally:
            self.open -= len(held)

    async def _come_late(self, held: list[tuple[str, Reception]]) -> None:
        """Acknowledge when the leases have run out."""
        http = Http(self.port)
        try:
            await asyncio.sleep(max((reception.ends or 0.0) for _, reception in held) + LATE - time.monotonic())
            await self._settle(http, "acknowledge", held, Settled.ACKED)
        finally:
            http.reset()

    def _came_late(self, number: int, task: asyncio.Task[None]) -> None:
        self._held.discard(task)
        self.open -= number

    async def _extend(self, http: Http, held: list[tuple[str, Reception]]) -> None:
        """Ask for the same time once more."""
        began = time.monotonic()
        body = {"ack_ids": [ack_id for ack_id, _ in held], "ack_deadline_seconds": int(DEADLINE)}
        try:
            answer = await http.request("POST", f"{self.path}:modifyAckDeadline", body, within=_WITHIN)
        except NotSent:
            return
        except NoAnswer as error:
            self.unanswered("modifyAckDeadline", error)
            return
        for (_, reception), status in zip(held, self._statuses("modifyAckDeadline", answer, len(held)), strict=True):
            if status == "SUCCESS":
                reception.ends = began + DEADLINE

    async def _settle(self, http: Http, verb: str, held: list[tuple[str, Reception]], success: Settled) -> None:
        """Tell the gateway until it answers."""
        if not held:
            return
        began = time.monotonic()
        body = {"ack_ids": [ack_id for ack_id, _ in held]}
        repeated = False
        while time.monotonic() < began + _INSIST:
            for _, reception in held:
                reception.until = began
                if success is Settled.ACKED:
                    reception.settled = Settled.UNCLEAR  # as long as there is no answer
            try:
                answer = await http.request("POST", f"{self.path}:{verb}", body, within=_WITHIN)
            except NotSent:
                pass
            except NoAnswer as error:
                self.unanswered(verb, error)
                repeated = True
                if success is Settled.RELEASED:  # perhaps it was carried out: anybody may have the message since
                    for _, reception in held:
                        reception.ends = began
            else:
                if answer.status < 500:
                    self._settled(verb, answer, held, success, began, repeated)
                    return
                self.answers[f"{verb} {answer.json().get('code', answer.status)}"] += 1
                repeated = True
            await asyncio.sleep(_PAUSE)

    def _settled(
        self,
        verb: str,
        answer: Answer,
        held: list[tuple[str, Reception]],
        success: Settled,
        began: float,
        repeated: bool,
    ) -> None:
        """The answer to a settlement."""
        for (_, reception), status in zip(held, self._statuses(verb, answer, len(held)), strict=True):
            if status == "SUCCESS":
                reception.settled = success
                continue
            if not repeated:
                reception.settled = Settled.NO
            early = reception.ends is not None and time.monotonic() < reception.ends
            if status != "LEASE_LOST" or (early and self.lane.lease == "ledger" and not repeated):
                self.complaints.append(f"{reception.id}: {verb} is answered {status}, and the lease has not run out")

    def _statuses(self, verb: str, answer: Answer, number: int) -> list[str]:
        """The results of a request, one for each message."""
        body = answer.json()
        if answer.status != 200:
            self.complaints.append(f"{verb}: {answer.status} {body}")
            return ["FAILED"] * number
        statuses = [result["status"] for result in body["results"]]
        for status in statuses:
            self.answers[f"{verb} {status}"] += 1
        return statuses

    def unanswered(self, what: str, error: NoAnswer) -> None:
        """A request was sent and has no answer."""
        self.answers[f"{what} without an answer"] += 1
        if isinstance(error, Hung):
            self.complaints.append(f"{what} hung: {error}")
