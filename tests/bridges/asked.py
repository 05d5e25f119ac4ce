"""A target and a ledger that only note what they are asked for about branches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.amqp.message import Message
from gateway.amqp.operations import Xid
from gateway.bridges import two_phase
from gateway.bridges.flow import BridgeFlow
from gateway.bridges.items import BridgeDelivery
from gateway.bridges.two_phase import TwoPhase
from gateway.ledger import BranchRecord, BranchStatus
from gateway.upstreams import BranchOutcome, PublishReceipt
from tests.bridges.hands import Hand, arrive

ROUTED = PublishReceipt(True)


class Asked:
    """Notes each call in one list, and answers as the test says: an error, or a value."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {}
        """Verb -> what its next calls get; then they get what they get by default."""
        self.usable = True
        self.receipts: list[Any] = []

    def answer(self, verb: str, default: Any, *arguments: Any, **options: Any) -> Any:
        """Note a call."""
        self.calls.append(verb)
        self.told.append((verb, arguments, options))
        answers = self.answers.get(verb)
        found = answers.pop(0) if answers else default
        if isinstance(found, BaseException):
            raise found
        return found

    def take(self) -> list[str]:
        """Take what was noted."""
        found, self.calls = self.calls, []
        return found

    def of(self, verb: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """What one verb was called with."""
        return [(arguments, options) for each, arguments, options in self.told if each == verb]


class Branch:
    """A branch at the target."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    @property
    def usable(self) -> bool:
        """Its channel lives."""
        return self._asked.usable

    async def started(self) -> None:
        """Note it."""
        self._asked.answer("started", None)

    async def room(self) -> None:
        """Note it."""
        self._asked.answer("room", None)

    async def end(self) -> None:
        """Note it."""
        self._asked.answer("end", None)

    async def prepare(self) -> None:
        """Note it."""
        self._asked.answer("prepare", None)

    async def commit(self) -> BranchOutcome:
        """Note it."""
        found: BranchOutcome = self._asked.answer("commit", BranchOutcome.DONE)
        return found

    async def rollback(self) -> BranchOutcome:
        """Note it."""
        found: BranchOutcome = self._asked.answer("rollback", BranchOutcome.DONE)
        return found

    def publish(self, exchange: str, routing_key: str, message: Message) -> asyncio.Future[Any]:
        """Note it; its outcome is there."""
        outcome = self._asked.receipts.pop(0) if self._asked.receipts else ROUTED
        self._asked.answer("publish", None)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is None:
            future.cancel()
        else:
            future.set_result(outcome)
        return future

    def abandon(self) -> None:
        """Note it; its channel is gone."""
        self._asked.usable = False
        self._asked.answer("abandon", None)


class Worker:
    """Works on branches at the target."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def begin(self, xid: Xid, exchange: str) -> Branch:
        """Note it."""
        self._asked.answer("start", None, xid)
        self._asked.usable = True
        return Branch(self._asked)

    def check(self, message: Message) -> None:
        """Note it."""
        self._asked.answer("check", None)

    def rest(self) -> None:
        """Note it."""
        self._asked.answer("rest", None)


class Target:
    """What may be asked about branches at a broker."""

    def __init__(self, asked: Asked, name: str = "new") -> None:
        self.name = name
        self._asked = asked
        self.branches = self

    async def commit(self, xid: Xid) -> BranchOutcome:
        """Note it."""
        found: BranchOutcome = self._asked.answer("commit there", BranchOutcome.DONE, xid)
        return found

    async def rollback(self, xid: Xid) -> None:
        """Note it."""
        self._asked.answer("rollback there", None, xid)

    async def recover(self) -> Sequence[Xid]:
        """Note it."""
        found: Sequence[Xid] = self._asked.answer("recover", ())
        return found


class Register:
    """What the ledger knows of branches."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    async def begin(self, id: bytes, bridge: str, broker: str) -> None:
        """Note it."""
        self._asked.answer("begin", None, id, bridge, broker)

    async def decide(self, *arguments: Any) -> bool:
        """Note it."""
        return bool(self._asked.answer("decide", True, *arguments))

    async def abort(self, id: bytes) -> BranchStatus:
        """Note it."""
        found: BranchStatus = self._asked.answer("abort", BranchStatus.ABORTED, id)
        return found

    async def finish(self, *arguments: Any, **options: Any) -> None:
        """Note it."""
        self._asked.answer("finish", None, *arguments, **options)

    async def of(self, bridge: str) -> list[BranchRecord]:
        """Note it."""
        found: list[BranchRecord] = self._asked.answer("of", [], bridge)
        return found


class Bench:
    """A flow whose branches are noted."""

    def __init__(self, flow: BridgeFlow, asked: Asked) -> None:
        self.flow = flow
        self.asked = asked
        assert flow.two_phase is not None
        self.two_phase: TwoPhase = flow.two_phase
        self.two_phase._worker = Worker(asked)  # type: ignore[assignment]
        self.two_phase._register = Register(asked)  # type: ignore[assignment]
        self.two_phase._target = Target(asked)  # type: ignore[assignment]

    def pairs(self, *deliveries: Any) -> list[tuple[BridgeDelivery, Message]]:
        """What is to be published of these."""
        arrive(self.flow, *deliveries)
        return self.flow._messages(self.flow._look(self.flow._take(0.0)), self.two_phase)

    @property
    def aborted(self) -> set[bytes]:
        """What is to be undone."""
        return self.two_phase._aborted


@pytest.fixture
async def bench(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(two_phase, "PAUSE_MIN", 0.002)
    """What notes each step of the branches of a bridge."""
    return Bench(await hand.flow(acknowledge="dtx"), Asked())
