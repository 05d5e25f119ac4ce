"""Where a session may stand when the octets come that no correct peer sends.

Each state is reached once by two sessions that talk to each other; what the session under test received and sent on
the way is its *tape*, and a fresh session is brought there by playing it, at a fraction of the price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.errors import LocalError
from gateway.limits import Limits
from gateway.session import Role, Session, Version
from gateway.v010.version import V0_10
from tests.pair import CLIENT, SERVER, SessionPair, client_session, server_session

NOW: Final = 1_000.0
LIMITS: Final = Limits(frame_max=4_096, message_max=20_000, spool_max=30_000, channel_max=64)
"""Small, so that a case of a few kB reaches them."""

Step = tuple[str, Any]
Tape = tuple[Step, ...]

PROPERTIES: Final = Properties(
    content_type="text/plain",
    headers={"a": 1, "list": ["x", 2, {"deep": True}], "when": None},
    delivery_mode=2,
    correlation_id="c-1",
    reply_to="answers",
    message_id="6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    timestamp=1_700_000_000,
)
SMALL: Final = Message(b"hello", PROPERTIES)
LARGE: Final = Message(bytes(range(256)) * 36, PROPERTIES)
"""Three frames of 4,096 octets."""


class Taped:
    """A session that writes down what it receives and sends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.steps: list[Step] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def receive_data(self, data: bytes, now: float) -> list[o.Operation]:
        if data:
            self.steps.append(("receive", data))
        return self._session.receive_data(data, now)

    def send(self, operation: o.Operation, now: float) -> int:
        self.steps.append(("send", operation))
        return self._session.send(operation, now)

    def data_to_send(self) -> list[bytes]:
        buffers = self._session.data_to_send()
        if buffers:
            self.steps.append(("flush", None))
        return buffers


def answer(operation: o.Operation) -> list[o.Operation]:
    """What an obedient broker says to a request."""
    if not isinstance(operation, o.Request):
        return []
    make = ANSWERS.get(type(operation))
    return make(operation.channel, operation.serial, operation) if make is not None else []


def _done(channel: int, serial: int, request: Any) -> list[o.Operation]:
    return [o.Done(channel, serial, serial)]


ANSWERS: Final[Mapping[type[o.Operation], Callable[[int, int, Any], list[o.Operation]]]] = {
    **dict.fromkeys(
        (
            o.OpenChannel, o.DeclareExchange, o.DeleteExchange, o.BindExchange, o.UnbindExchange, o.BindQueue,
            o.UnbindQueue, o.SelectConfirm, o.Qos, o.Cancel, o.Recover, o.TxSelect, o.TxCommit, o.TxRollback,
        ),
        _done,
    ),
    o.DeclareQueue: lambda c, n, r: [o.Declared(c, n, n, r.queue or "made", 3, 1)],
    o.QueryQueue: lambda c, n, r: [o.Declared(c, n, n, r.queue, 3, 1)],
    o.QueryExchange: lambda c, n, r: [o.ExchangeFound(c, n, n, r.exchange)],
    o.QueryBinding: lambda c, n, r: [o.BindingFound(c, n, n)],
    o.PurgeQueue: lambda c, n, r: [o.Removed(c, n, n, 2)],
    o.DeleteQueue: lambda c, n, r: [o.Removed(c, n, n, 2)],
    o.Consume: lambda c, n, r: [o.Consuming(c, n, n, r.consumer_tag or "made")],
    o.Get: lambda c, n, r: [o.Got(c, n, n, 0, False, "e", "k", SMALL)],
    o.Acquire: lambda c, n, r: [o.Acquired(c, n, n, r.deliveries)],
    o.Publish: lambda c, n, r: [o.Confirmed(c, n, n)],
    **dict.fromkeys((o.DtxSelect, o.DtxSetTimeout), _done),
    **dict.fromkeys((o.DtxStart, o.DtxEnd, o.DtxPrepare), lambda c, n, r: [o.XaResult(c, n, n)]),
    o.CloseChannel: lambda c, n, r: [o.ChannelClosed(c, 200, "", False)],
}  # fmt: skip


class Stage:
    """Two sessions, one of them under test, and what brings them from state to state."""

    def __init__(self, version: Version, role: Role, limits: Limits = LIMITS) -> None:
        self.pair = SessionPair(version, replace(CLIENT, limits=limits), replace(SERVER, limits=limits))
        self.version, self.role = version, role
        self.taped = Taped(self.pair.client if role is Role.CLIENT else self.pair.server)
        if role is Role.CLIENT:
            self.pair.client = self.taped  # type: ignore[assignment]
        else:
            self.pair.server = self.taped  # type: ignore[assignment]

    def carry(self, *turns: bool) -> None:
        """Carry octets: True is from client to server, False the other way."""
        for to_server in turns:
            source, sink = (self.pair.client, self.pair.server) if to_server else (self.pair.server, self.pair.client)
            sink.receive_data(b"".join(source.data_to_send()), NOW)

    def ask(self, *requests: o.Operation, answered: bool = True) -> None:
        """The client sends; the server answers."""
        for request in requests:
            self.pair.ask(request)
            if answered:
                for made in self.pair.requests:
                    replies = answer(made)
                    if replies:
                        self.pair.tell(*replies)

    def give(self, octets: bytes) -> None:
        """The session under test receives part of what its peer says."""
        self.taped.receive_data(octets, NOW)

    def open(self) -> None:
        self.pair.pump()
        self.ask(o.OpenChannel(1), o.OpenChannel(2))

    def settled(self) -> None:
        """Confirms on channel 1, a queue, some publishes of which the last few have no outcome yet."""
        self.open()
        self.ask(o.SelectConfirm(1), o.DeclareQueue(1, "q"))
        for number in range(4):
            self.ask(o.Publish(1, "amq.direct", "k", SMALL, True), answered=number < 1)

    def consuming(self) -> None:
        """A consumer on channel 2 with messages out, a get under way on channel 1."""
        self.settled()
        self.ask(o.Qos(2, prefetch_count=10), o.Consume(2, "q", "tag"))
        self.pair.tell(*[o.Deliver(2, "tag", 0, False, "e", "k", SMALL) for _ in range(3)])
        self.ask(o.Get(1, "q"), answered=False)

    def content(self, share: float) -> None:
        """In the middle of a message of three frames: ``share`` of it has come."""
        self.consuming()
        if self.role is Role.SERVER:
            self.pair.client.send(o.Publish(1, "amq.direct", "k", LARGE, True), NOW)
            octets = b"".join(self.pair.client.data_to_send())
        else:
            self.pair.server.send(o.Deliver(2, "tag", 0, False, "e", "k", LARGE), NOW)
            octets = b"".join(self.pair.server.data_to_send())
        cut = frame_borders(self.version, octets)
        wanted = int(len(octets) * share)
        self.give(octets[: max(border for border in cut if border <= wanted) if share < 0.9 else wanted])


def frame_borders(version: Version, octets: bytes) -> list[int]:
    """Where frames begin in ``octets``, which begin with one; the end of the last whole one is the last."""
    at, borders = 0, [0]
    while True:
        if version is V0_10:
            if len(octets) - at < 4:
                break
            size = int.from_bytes(octets[at + 2 : at + 4], "big")
        else:
            if len(octets) - at < 7:
                break
            size = int.from_bytes(octets[at + 3 : at + 7], "big") + 8
        if size < 8 or at + size > len(octets):
            break
        at += size
        borders.append(at)
    return borders


def _new(stage: Stage) -> None:
    """The client's header was sent, the server has nothing."""


def _greeted(stage: Stage) -> None:
    """start-ok is awaited; of a client of 0-10, start."""
    stage.carry(True)
    if stage.role is Role.CLIENT:
        octets = b"".join(stage.pair.server.data_to_send())
        stage.give(octets[:8] if stage.version is V0_10 else b"")


def _started(stage: Stage) -> None:
    """tune-ok or tune is awaited."""
    stage.carry(True, False)
    if stage.role is Role.SERVER:
        stage.carry(True)


def _tuned(stage: Stage) -> None:
    """open or open-ok is awaited."""
    _started(stage)
    if stage.role is Role.SERVER:
        stage.carry(False)
        octets = b"".join(stage.pair.client.data_to_send())
        stage.give(octets[: frame_borders(stage.version, octets)[1]])
    else:
        stage.carry(True, False)


def _requests(stage: Stage) -> None:
    """Requests without their outcome."""
    stage.open()
    stage.ask(o.SelectConfirm(1))
    for request in (
        o.DeclareQueue(1, "q"), o.QueryQueue(1, "q"), o.BindQueue(1, "q", "amq.direct", "k"), o.PurgeQueue(1, "q"),
        o.DeclareExchange(1, "e", "direct"), o.QueryExchange(1, "e"), o.Qos(2, prefetch_count=5), o.Get(2, "q"),
        o.Consume(2, "q", "tag"), o.Cancel(2, "tag"), o.DeleteQueue(1, "q"), o.DeleteExchange(1, "e"),
    ):  # fmt: skip
        try:
            stage.ask(request, answered=False)
        except LocalError:
            continue  # this version wants the one before it answered first


def _transaction(stage: Stage) -> None:
    """A transaction with publishes; its commit is under way."""
    stage.open()
    stage.ask(o.TxSelect(1), o.DeclareQueue(1, "q"))
    stage.ask(o.Publish(1, "amq.direct", "k", SMALL, True), answered=False)
    stage.ask(o.TxCommit(1), answered=False)


def _distributed(stage: Stage) -> None:
    """0-10: a branch that has ended, with everything that may follow under way. The others have no such thing."""
    stage.open()
    if stage.version is not V0_10:
        return
    xid = o.Xid(1, b"global", b"branch")
    stage.ask(o.SelectConfirm(1), o.DtxSelect(1), o.DtxStart(1, xid))
    stage.ask(o.Publish(1, "amq.direct", "k", SMALL, True), o.DtxEnd(1, xid))
    for request in (
        o.DtxPrepare(1, xid), o.DtxRecover(1), o.DtxSetTimeout(1, xid, 9), o.DtxGetTimeout(1, xid),
        o.DtxForget(1, xid), o.DtxCommit(1, xid), o.Resume(1, "e", "id"),
    ):  # fmt: skip
        stage.ask(request, answered=False)


def _closing(stage: Stage) -> None:
    """The session under test has sent close."""
    stage.settled()
    side = stage.pair.client if stage.role is Role.CLIENT else stage.pair.server
    side.send(o.Close(0, 320, "enough"), NOW)
    side.data_to_send()


def _channel_closing(stage: Stage) -> None:
    """The session under test has sent the close of channel 1."""
    stage.settled()
    side = stage.pair.client if stage.role is Role.CLIENT else stage.pair.server
    side.send(o.CloseChannel(1, 406, "enough"), NOW)
    side.data_to_send()


STATES: Final[Mapping[str, Callable[[Stage], None]]] = {
    "new": _new,
    "greeted": _greeted,
    "started": _started,
    "tuned": _tuned,
    "open": lambda stage: stage.pair.pump(),
    "channel": Stage.open,
    "confirms": Stage.settled,
    "consuming": Stage.consuming,
    "requests": _requests,
    "header": lambda stage: stage.content(0.01),
    "content": lambda stage: stage.content(0.6),
    "frame": lambda stage: stage.content(0.95),
    "transaction": _transaction,
    "distributed": _distributed,
    "closing": _closing,
    "channel-closing": _channel_closing,
}


@cache
def tape(version: Version, role: Role, state: str, limits: Limits = LIMITS) -> Tape:
    """What brings a new session into a state."""
    stage = Stage(version, role, limits)
    STATES[state](stage)
    return tuple(stage.taped.steps)


def make(version: Version, role: Role, limits: Limits = LIMITS) -> Session:
    """A new session under test."""
    if role is Role.CLIENT:
        return client_session(version, replace(CLIENT, limits=limits))
    return server_session(version, replace(SERVER, limits=limits))


def bring(session: Session, steps: Tape) -> list[o.Operation]:
    """Play a tape; what the session said."""
    said: list[o.Operation] = []
    for verb, what in steps:
        if verb == "receive":
            said += session.receive_data(what, NOW)
        elif verb == "send":
            session.send(what, NOW)
        else:
            session.data_to_send()
    return said
