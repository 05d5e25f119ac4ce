"""What must hold whatever octets come.

:func:`run` plays one :class:`Case` against a session and raises :class:`Broken` where a promise does not hold:

* no call raises, but ``send`` a :class:`~gateway.errors.LocalError`;
* the session stays open or ends in exactly one ``Closed``, its close is queued where the octets broke the
  specification, and nothing follows;
* no operation is for a channel that was never open;
* a message that came decodes or is :class:`~gateway.errors.FrameSyntaxError`, and what decoded is taken or refused by
  every version, and comes out there as it went in;
* what is sent, held and computed is bounded by what came.
"""

from __future__ import annotations

import json
import time
import traceback
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Final
from zlib import crc32

from gateway.amqp import operations as o
from gateway.amqp.message import Message, Properties
from gateway.errors import FrameSyntaxError, LocalError
from gateway.session import Role, Session, Version
from gateway.v010.version import V0_10
from gateway.versions import VERSIONS, version_named
from tests.fuzz.states import LARGE, NOW, SMALL, answer, bring, frame_borders, make, tape
from tests.pair import SessionPair

SECONDS_MAX: Final = 1.0
"""CPU time of one case."""
HELD_MAX: Final = 1 << 20
"""Octets of memory that a case may cost, beside :data:`HELD_FACTOR` for each octet that came."""
HELD_FACTOR: Final = 64
SENT_MAX: Final = 1 << 16
"""Octets that a case may have sent, beside :data:`SENT_FACTOR` for each octet that came."""
SENT_FACTOR: Final = 64
SMALL_HEADER: Final = 1_024
"""What a message of the user's takes beside its body, at most."""


class Broken(AssertionError):
    """A promise that does not hold."""


@dataclass(frozen=True, slots=True)
class Case:
    """Octets for something in some state. ``target`` names what runs it (:data:`tests.fuzz.targets.TARGETS`)."""

    target: str
    version: Version
    role: Role
    state: str
    chunks: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """How many octets there are."""
        return sum(map(len, self.chunks))

    def write(self, path: Path) -> None:
        """Keep it as a file."""
        document = {
            "target": self.target,
            "version": self.version.value,
            "role": self.role.value,
            "state": self.state,
            "chunks": [chunk.hex() for chunk in self.chunks],
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Case:
        """The case in a file."""
        document = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            document["target"],
            version_named(document["version"]),
            Role(document["role"]),
            document["state"],
            tuple(bytes.fromhex(chunk) for chunk in document["chunks"]),
        )


@dataclass(slots=True)
class Verdict:
    """How a case ended."""

    ended: str
    """``open``, or reason and code of the Closed."""
    seconds: float = 0.0
    """CPU time."""


class Watched:
    """A session under test, its user, and what both have seen."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.random = Random(crc32(b"".join(case.chunks)))
        self.session: Session = make(case.version, case.role)
        self.known = {0}
        self.closed: o.Closed | None = None
        self.sent = b""
        self.given = 0
        """Octets of the messages that its user had it send."""
        self.now = NOW
        steps = tape(case.version, case.role, case.state)
        self.known |= {step.channel for verb, step in steps if verb == "send" and isinstance(step, o.OpenChannel)}
        self._note(bring(self.session, steps), react=False)
        self.session.data_to_send()
        self.closing = case.state == "closing"

    def play(self) -> str:
        """The whole case, to the end of the session; how it ended when all octets had come."""
        for chunk in self.case.chunks:
            self._note(self.session.receive_data(chunk, self.now))
            self._flush()
        ended = f"{self.closed.reason.value} {self.closed.code}" if self.closed is not None else "open"
        self._to_the_end()
        if ended == "open" and self.closed is not None and self.closed.reason is o.CloseReason.SYNTAX:
            ended = f"{self.closed.reason.value} {self.closed.code}"  # a server waits for the answer to its close
        return ended

    def _flush(self) -> None:
        self.sent += b"".join(self.session.data_to_send())
        if len(self.sent) > SENT_MAX + SENT_FACTOR * self.case.size + self.given:
            raise Broken(f"{self.case.size} octets made it send {len(self.sent)}")

    def _note(self, events: Iterable[o.Operation], react: bool = True) -> None:
        for event in events:
            if self.closed is not None:
                raise Broken(f"{event} came behind {self.closed}")
            if isinstance(event, o.OpenChannel):
                self.known.add(event.channel)
            if event.channel not in self.known:
                raise Broken(f"{event} is for a channel that was never open")
            if isinstance(event, o.Closed):
                self.closed = event
            message = getattr(event, "message", None)
            if react:
                if isinstance(message, Message):
                    check_message(message, self.random)
                self._react(event)

    def _react(self, event: o.Operation) -> None:
        """What the user of the session does now: mostly what is expected."""
        if self.random.random() < 0.2:
            return
        if self.session.role is Role.SERVER:
            self._try(answer(event))
            if isinstance(event, o.Consume | o.Credit):
                message = self.random.choice((SMALL, LARGE))
                self._try([o.Deliver(event.channel, event.consumer_tag, 0, False, "e", "k", message)])
            elif isinstance(event, o.Publish):
                self._try(
                    [o.Returned(event.channel, event.serial, event.serial, 312, "NO_ROUTE", "e", "k", event.message)]
                )
        elif isinstance(event, o.Deliver | o.Got | o.DeliveryTooLarge):
            how = self.random.choice(tuple(o.Settlement))
            self._try([o.Settle(event.channel, how, event.delivery, event.delivery)])
        elif isinstance(event, o.ChannelClosed):
            self._try([o.OpenChannel(event.channel), o.SelectConfirm(event.channel), o.Get(event.channel, "q")])
        elif isinstance(event, o.Opened):
            self.known |= {1, 2}
            self._try([o.OpenChannel(1), o.SelectConfirm(1), o.Publish(1, "amq.direct", "k", SMALL), o.OpenChannel(2)])
            self._try([o.Consume(2, "q", "tag"), o.Get(1, "q")])

    def _try(self, operations: Iterable[o.Operation]) -> None:
        for operation in operations:
            try:
                self.session.send(operation, self.now)
            except LocalError:
                continue  # it cannot be sent in this state, which is the session's to say
            message = getattr(operation, "message", None)
            if message is not None:
                self.given += len(message.body) + SMALL_HEADER

    def _to_the_end(self) -> None:
        """Time passes until the session is over; where nothing limits it, the stream ends."""
        for _ in range(8):
            if self.closed is not None:
                break
            at = self.session.next_timeout()
            if at is None:
                break
            self.now = max(self.now, at)
            self._note(self.session.handle_timeout(self.now))
            self._flush()
        self._note(self.session.receive_eof(self.now))
        self._flush()
        closed = self.closed
        if closed is None or not self.session.closed:
            raise Broken("the stream ended, and the session did not")
        if closed.reason is o.CloseReason.SYNTAX and not self.closing and not says_close(self.case.version, self.sent):
            raise Broken(f"no close was sent for {closed}")
        self._note(self.session.receive_data(b"AMQP\x00\x00\x09\x01", self.now))
        self._note(self.session.handle_timeout(self.now + 1000))
        self._note(self.session.receive_eof(self.now))
        self._flush()
        if self.session.next_timeout() is not None or self.session.data_to_send():
            raise Broken("a session that is over still wants something")


def says_close(version: Version, octets: bytes) -> bool:
    """Whether connection.close is among the frames of ``octets``."""
    if octets[:4] == b"AMQP":
        octets = octets[8:]
    for at in frame_borders(version, octets):
        if version is V0_10:
            if octets[at + 1 : at + 2] == b"\x00" and octets[at + 12 : at + 14] == b"\x01\x0b":
                return True
        elif octets[at : at + 1] == b"\x01" and octets[at + 7 : at + 11] in (b"\0\x0a\0\x32", b"\0\x0a\0\x3c"):
            return True
    return False


# ------------------------------------------------------------------------------------------------- messages


@cache
def carrier(version: Version) -> SessionPair:
    """A pair whose client publishes on channel 1; it is never broken, whatever it is given to send."""
    return SessionPair(version).open(1)


def check_message(message: Message, random: Random) -> None:
    """A message of a hostile peer passes through every version, or is refused in words."""
    try:
        properties = message.properties
    except FrameSyntaxError:
        return
    if random.random() < 0.25:
        for version in VERSIONS:
            check_carried(version, Message(message.body[:100], properties))


def check_carried(version: Version, message: Message) -> None:
    """It is refused by the encoder, or arrives, decodes, and passes once more without a change."""
    once = carried(version, message)
    if once is not None:
        twice = carried(version, Message(once.body, once.properties))
        if twice is None or (twice.body, spelled(twice.properties)) != (once.body, spelled(once.properties)):
            raise Broken(f"{version.value}: {once.properties} came out as {twice and twice.properties}")


def carried(version: Version, message: Message) -> Message | None:
    """What a server receives where a client publishes ``message``; None: the client refuses."""
    pair = carrier(version)
    try:
        pair.ask(o.Publish(1, "", "q", message))
    except LocalError:
        return None
    (publish,) = pair.requests
    if not isinstance(publish, o.Publish):
        raise Broken(f"{version.value}: the publish of {message.properties} arrived as {publish}")
    _ = publish.message.properties
    if version is V0_10:
        pair.answer(o.Confirmed(1, publish.serial, publish.serial))
    return publish.message


def spelled(properties: Properties) -> str:
    """To compare by: NaN is equal to itself."""
    return repr(properties)


# ----------------------------------------------------------------------------------------------------- runs


def run(case: Case) -> Verdict:
    """Play a case against a session. Raises :class:`Broken`."""
    return timed(case, lambda: Watched(case).play())


def timed(case: Case, play: object) -> Verdict:
    """Call ``play`` and hold it to its time; whatever it raises is a promise broken."""
    began = time.process_time()
    try:
        ended = play()  # type: ignore[operator]
    except Broken:
        raise
    except Exception as error:
        raise Broken("".join(traceback.format_exception(error))) from error
    seconds = time.process_time() - began
    if seconds > SECONDS_MAX:
        raise Broken(f"{case.size} octets took {seconds:.2f} s")
    return Verdict(ended, seconds)


def weighed(case: Case) -> Verdict:
    """:func:`run`, with the memory that it takes measured."""
    tape(case.version, case.role, case.state)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        verdict = timed(case, lambda: Watched(case).play())
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    if peak > HELD_MAX + HELD_FACTOR * case.size:
        raise Broken(f"{case.size} octets took {peak} octets of memory")
    return verdict
