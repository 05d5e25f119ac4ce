"""The load of a run: producers and consumers over HTTP, which write down a :class:`~tests.faults.checker.History`.

A producer publishes one message (or one batch) at a time and goes on until it knows what became of it, or until
nobody can tell. With an ``Idempotency-Key`` it repeats after every accident, with the same key; without one it repeats
only what was certainly not taken. Half of the producers have keys, and some of them send batches.

A consumer pulls, holds what it got for a moment, and acknowledges it; a few messages it gives back the first time.

Whoever waits longer than an answer may take is *hung*, and that is a failure of the run: nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import random
import string
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tests.faults.checker import History, Outcome, Reception, Settled, digest
from tests.faults.http import Answer, Http, Hung, NoAnswer, NotSent

_LETTERS: Final = (string.ascii_letters + string.digits + " äß✓").encode()
_PAUSE: Final = 0.1
"""Seconds before something is tried again."""
_OUTCOMES: Final = {"not_sent": Outcome.NOT_TAKEN, "refused": Outcome.NOT_TAKEN, "unknown": Outcome.UNKNOWN}
"""A problem's ``outcome`` -> what the producer knows."""
IN_DOUBT: Final = "the ledger may have taken the message"
"""In the detail of an answer whose message the ledger may also not know."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much of what. Sizes in octets, times in seconds."""

    messages: int = 1_000
    queue_type: str = ""
    """``classic`` or ``quorum``; empty: what the broker makes of a queue without a type."""
    producers: int = 16
    consumers: int = 4
    keyed: float = 0.5
    """Share of the producers that use Idempotency-Keys."""
    batch: int = 10
    """Messages of a batch; one in eight producers sends batches, with keys."""
    body: int = 1_024
    """Median size of a body."""
    large: int = 64 << 10
    """Size of the few that are large."""
    large_share: float = 0.01
    rate: float = 0.0
    """Messages per second, over all producers; 0: as fast as they can."""
    pull: int = 20
    """Most messages of one pull."""
    wait: float = 0.3
    """How long a pull waits for its first message."""
    hold: float = 0.02
    """How long a consumer holds what it got, at the median."""
    release_share: float = 0.02
    """How many messages are given back the first time they come."""
    within: float = 30.0
    """How long any request may take before it counts as hung."""
    patience: float = 60.0
    """How long a producer goes on repeating one publish."""


@dataclass(frozen=True, slots=True)
class _Message:
    id: str
    json: Mapping[str, Any]


class Load:
    """Producers and consumers of one queue. :meth:`produce` ends when everything was attempted; consumers go on
    until :meth:`stop`."""

    def __init__(self, history: History, shape: Shape, port: int, broker: str, queue: str, seed: int) -> None:
        self.history = history
        self.shape = shape
        self.in_flight = 0
        """Publishes that were written to the gateway and have no answer yet."""
        self.open_leases = 0
        """Messages that consumers hold now."""
        self.hung: list[str] = []
        """Requests that took longer than any may."""
        self.complaints: list[str] = []
        """Answers that are not as they must be: an unknown outcome without an id or advice, a 503 without
        Retry-After."""
        self.answers: Counter[str] = Counter()
        """How often each answer was given: ``publish 200``, ``publish broker_unavailable``, ``pull 200``, …"""
        self._empty = [0] * self.shape.consumers
        """Consumer -> its pulls in a row that brought nothing since one of any consumer brought something."""
        self._port = port
        self._publish_path = f"/v1/brokers/{broker}/exchanges/amq.default:publish"
        self._subscription = f"/v1/subscriptions/{quote(queue, safe='')}"
        self._queue = queue
        self._random = random.Random(seed)
        self._seed = seed
        self._made = 0
        self._limit = 0
        self._paced = 0
        self._began = 0.0
        self._stopped = asyncio.Event()
        self._producers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------------------------------------- control

    def begin(self, share: float = 1.0) -> None:
        """Start everybody; the producers end when this share of the messages was attempted."""
        self.begin_consumers()
        self.begin_producers(share)

    def begin_consumers(self) -> None:
        """Start the consumers."""
        self._consumers += [asyncio.create_task(self._consume(number)) for number in range(self.shape.consumers)]

    def begin_producers(self, share: float = 1.0) -> None:
        """Start the producers, or start them again where they ended at a smaller share."""
        self._began = time.monotonic()
        self._limit = round(share * self.shape.messages)
        self._paced = 0
        for number in range(self.shape.producers):
            if number % 8 == 7 and self.shape.batch > 1:
                work = self._produce_batches()
            else:
                work = self._produce(number < self.shape.producers * self.shape.keyed)
            self._producers.append(asyncio.create_task(work))

    def enough(self) -> None:
        """Make no more messages than there are."""
        self._limit = self._made

    async def produced(self) -> None:
        """Wait until every message was attempted and its producer has done what it can."""
        await asyncio.gather(*self._producers)

    async def stop(self) -> None:
        """Let the consumers end, with what they hold settled."""
        self._stopped.set()
        await asyncio.gather(*self._consumers)

    async def abandon(self) -> None:
        """End everybody at once, after a failure."""
        for task in (*self._producers, *self._consumers):
            task.cancel()
        await asyncio.gather(*self._producers, *self._consumers, return_exceptions=True)

    @property
    def producing(self) -> bool:
        """Whether messages are still to be published."""
        return any(not task.done() for task in self._producers)

    # ----------------------------------------------------------------------------------------- producers

    def _make(self) -> _Message | None:
        """The next message; None: there are no more."""
        if self._made >= self._limit:
            return None
        number = self._made
        self._made += 1
        rng = self._random
        size = (
            self.shape.large if rng.random() < self.shape.large_share else int(rng.expovariate(0.7 / self.shape.body))
        )
        body = bytes(rng.choices(_LETTERS, k=min(size, 200))) * (size // 200 + 1)
        body = body[:size] if number % 4 else b"\xff" + body[: size - 1]  # some are no UTF-8
        id = f"{self._seed}-{number}"
        properties = {
            "message_id": id,
            "content_type": "text/plain",
            "correlation_id": f"c-{number % 7}",
            "delivery_mode": 2,
            "priority": number % 5,
        }
        headers = {"number": number, "text": "ä✓", "flag": number % 2 == 0}
        try:
            payload, encoding = body.decode(), "string"
        except UnicodeDecodeError:
            payload, encoding = b64encode(body).decode(), "base64"
        self.history.attempt(id, digest(body, properties, headers))
        return _Message(
            id,
            {
                "routing_key": self._queue,
                "payload": payload,
                "payload_encoding": encoding,
                "mandatory": True,
                "properties": properties,
                "headers": headers,
            },
        )

    async def _pace(self) -> None:
        """Wait until the next message is due."""
        if self.shape.rate:
            self._paced += 1
            due = self._began + self._paced / self.shape.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _produce(self, keyed: bool) -> None:
        with closing(Http(self._port)) as http:
            while (message := self._make()) is not None:
                await self._pace()
                headers = {"Idempotency-Key": message.id} if keyed else {}
                await self._insist(http, [message], message.json, headers, keyed, self._one)

    async def _produce_batches(self) -> None:
        with closing(Http(self._port)) as http:
            while True:
                made = (self._make() for _ in range(self.shape.batch))
                messages = [message for message in made if message is not None]
                if not messages:
                    break
                await self._pace()
                body = {"messages": [message.json for message in messages]}
                headers = {"Idempotency-Key": f"batch-{messages[0].id}"}
                await self._insist(http, messages, body, headers, True, self._batch)

    async def _insist(
        self,
        http: Http,
        messages: Sequence[_Message],
        body: Any,
        headers: Mapping[str, str],
        keyed: bool,
        judge: Callable[[Sequence[_Message], Answer], bool],
    ) -> None:
        """Publish until the outcome is known, or, without a key, until nobody can tell."""
        deadline = time.monotonic() + self.shape.patience
        while time.monotonic() < deadline:
            self.in_flight += 1
            try:
                answer = await http.request("POST", self._publish_path, body, headers, self.shape.within)
            except NotSent:
                self.answers["publish not sent"] += 1
                await asyncio.sleep(2 * _PAUSE)
            except NoAnswer as error:
                self.answers["publish without an answer"] += 1
                if isinstance(error, Hung):
                    self.hung.append(f"{messages[0].id}: {error}")
                for message in messages:
                    self.history.answer(message.id, Outcome.UNKNOWN)
                if not keyed:
                    return
            else:
                if judge(messages, answer):
                    return
                if not keyed and self.history.publishes[messages[0].id].outcome is Outcome.UNKNOWN:
                    return
            finally:
                self.in_flight -= 1
            await asyncio.sleep(_PAUSE * (0.5 + self._random.random()))

    def _one(self, messages: Sequence[_Message], answer: Answer) -> bool:
        """The answer to one message; whether that is the end of it."""
        return self._result(messages[0], answer.status, answer.json(), answer)

    def _batch(self, messages: Sequence[_Message], answer: Answer) -> bool:
        """The answer to a batch; whether that is the end of it."""
        if answer.status != 207:
            for message in messages:
                ended = self._result(message, answer.status, answer.json(), answer)
            return ended
        results = answer.json()["results"]
        if len(results) != len(messages):
            self.complaints.append(f"{len(results)} results for {len(messages)} messages")
        for message, result in zip(messages, results, strict=False):
            self._result(message, result["status"], {**result, **result.get("problem", {})}, None)
        outcomes = {self.history.publishes[message.id].outcome for message in messages}
        free = all(result["status"] == 503 for result in results)
        return Outcome.UNKNOWN not in outcomes and not free

    def _result(self, message: _Message, status: int, body: Mapping[str, Any], answer: Answer | None) -> bool:
        """What became of one message; whether that is final."""
        code = body.get("code", "")
        self.answers[f"publish {code or status}"] += 1
        id = body.get("id", "")
        if status == 200:
            self.history.answer(message.id, Outcome.ACKNOWLEDGED, id, bool(body.get("resent")))
            return True
        if code == "idempotency_key_running":
            return False
        outcome = _OUTCOMES.get(body.get("outcome", ""))
        if outcome is None:
            self.complaints.append(f"{message.id}: {status} {body}")
            return True
        self.history.answer(message.id, outcome, "" if IN_DOUBT in body.get("detail", "") else id)
        if code == "outcome_unknown" and not (id and "Idempotency-Key" in body.get("advice", "")):
            self.complaints.append(f"{message.id}: an unknown outcome without id and advice: {body}")
        if status == 503 and answer is not None and "retry-after" not in answer.headers:
            self.complaints.append(f"{message.id}: 503 {code} without Retry-After")
        return status not in (503, 504)

    # ----------------------------------------------------------------------------------------- consumers

    @property
    def empty_pulls(self) -> int:
        """Pulls in a row, over all consumers, that brought nothing; 0 while something comes. Each consumer counts as
        the one with the fewest: a pull that takes long may bring the last messages, while others find nothing."""
        return min(self._empty) * len(self._empty)

    def forget_empty_pulls(self) -> None:
        """Count from 0 again."""
        self._empty = [0] * len(self._empty)

    async def _consume(self, number: int) -> None:
        rng = random.Random(f"{self._seed} consumer {number}")
        with closing(Http(self._port)) as http:
            while not self._stopped.is_set():
                messages = await self._pull(http, number)
                if messages:
                    self.forget_empty_pulls()
                    await self._settle(http, rng, messages)

    async def _pull(self, http: Http, number: int) -> Sequence[Mapping[str, Any]]:
        request = {"max_messages": self.shape.pull, "wait": self.shape.wait}
        try:
            answer = await http.request("POST", f"{self._subscription}:pull", request, within=self.shape.within)
        except NotSent:
            await asyncio.sleep(_PAUSE)
            return ()
        except NoAnswer as error:
            self.answers["pull without an answer"] += 1
            if isinstance(error, Hung):
                self.hung.append(f"consumer {number}: {error}")
            return ()
        body = answer.json()
        self.answers[f"pull {body.get('code', answer.status)}"] += 1
        if answer.status != 200:
            await asyncio.sleep(_PAUSE)
            return ()
        messages: list[Mapping[str, Any]] = body["messages"]
        self._empty[number] += not messages
        return messages

    def _received(self, item: Mapping[str, Any]) -> Reception:
        message = item["message"]
        payload = message["payload"]
        body = b64decode(payload) if message["payload_encoding"] == "base64" else payload.encode()
        properties = message["properties"]
        return self.history.receive(
            Reception(
                id=properties.get("message_id", ""),
                digest=digest(body, properties, message["headers"]),
                gateway_id=message["id"],
                redelivered=item["redelivered"],
                resent=item.get("resent", False),
                since=time.monotonic(),
            )
        )

    async def _settle(self, http: Http, rng: random.Random, messages: Sequence[Mapping[str, Any]]) -> None:
        self.open_leases += len(messages)
        try:
            held = [(item["ack_id"], self._received(item)) for item in messages]
            if self.shape.hold:
                await asyncio.sleep(rng.expovariate(0.7 / self.shape.hold))
            back = [item for item in held if not item[1].redelivered and rng.random() < self.shape.release_share]
            kept = [item for item in held if item not in back]
            await self._tell(http, "acknowledge", kept, Settled.ACKED)
            await self._tell(http, "release", back, Settled.RELEASED)
        finally:
            self.open_leases -= len(messages)

    async def _tell(self, http: Http, verb: str, held: Sequence[tuple[str, Reception]], success: Settled) -> None:
        if not held:
            return
        now = time.monotonic()
        for _, reception in held:
            reception.until = now
        body = {"ack_ids": [ack_id for ack_id, _ in held]}
        try:
            answer = await http.request("POST", f"{self._subscription}:{verb}", body, within=self.shape.within)
        except NotSent:
            return
        except NoAnswer as error:
            self.answers[f"{verb} without an answer"] += 1
            if isinstance(error, Hung):
                self.hung.append(f"{verb}: {error}")
            for _, reception in held:  # what was to be given back must come again either way
                reception.settled = Settled.UNCLEAR if success is Settled.ACKED else success
            return
        if answer.status != 200:
            self.answers[f"{verb} {answer.json().get('code', answer.status)}"] += 1
            for _, reception in held:
                if answer.status >= 500 and success is Settled.ACKED:
                    reception.settled = Settled.UNCLEAR
            return
        for (_, reception), result in zip(held, answer.json()["results"], strict=True):
            self.answers[f"{verb} {result['status']}"] += 1
            if result["status"] == "SUCCESS":
                reception.settled = success
