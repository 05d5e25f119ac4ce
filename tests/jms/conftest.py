"""JMS applications on either side: Qpid's client, one Java process for all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from gateway.versions import VERSION_NAMES
from tests.interop.embedded import Embedded
from tests.servers.judge import Judge
from tests.servers.process import HOST

VERSIONS: Final = VERSION_NAMES
PAIRS: Final = tuple((sender, receiver) for sender in VERSIONS for receiver in VERSIONS if sender != receiver)
"""The six pairs of versions that differ."""
MODES: Final = ("auto", "client", "dups-ok", "transacted", "no-ack")
"""The acknowledge modes: those of JMS, and the client's own that needs none."""
KINDS: Final = ("text", "text", "bytes", "map", "object", "stream", "list", "bytes", "text")
"""What the receiver takes the messages for that the client sends; a message without a body is one of bytes."""
OF_THE_WAY: Final = frozenset({"x-jms-type", "x-gateway"})
"""Headers that are no properties of the application: the type in 0-10, and what the gateway notes."""


@dataclass(frozen=True)
class Place:
    """A queue of a broker, as a client of one version sees it."""

    port: int
    virtual_host: str
    version: str
    queue: str

    def command(self) -> dict[str, Any]:
        """As the Java client reads it."""
        return {
            "host": HOST,
            "port": self.port,
            "virtual_host": self.virtual_host,
            "version": self.version,
            "queue": self.queue,
        }


class Jms:
    """The JMS client."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def _ask(self, what: str, **command: Any) -> Any:
        places = {name: value.command() if isinstance(value, Place) else value for name, value in command.items()}
        return self._judge.ask(do="conventions", what=what, **places)

    def declare(self, at: Place) -> None:
        """Declare the queue, and bind it to amq.direct by its name."""
        self._ask("declare", at=at)

    def send(self, at: Place) -> list[dict[str, Any]]:
        """Send a message of every kind; what each is for its sender."""
        sent: list[dict[str, Any]] = self._ask("send", at=at)
        return sent

    def receive(self, at: Place, count: int) -> list[dict[str, Any]]:
        """Receive messages; what each is for its receiver."""
        received: list[dict[str, Any]] = self._ask("receive", at=at, count=count)
        return received

    def request(self, at: Place, to: Place, reply: str | None) -> dict[str, str]:
        """Ask at one place, answer at the other; what was seen of it. The answer goes to the queue ``reply``, or to a
        temporary one."""
        seen: dict[str, str] = self._ask("request", at=at, to=to, reply=reply)
        return seen

    def acknowledge(self, at: Place, sender: Place, mode: str, count: int = 20) -> list[str] | None:
        """Take so many messages with a listener and ten without, close the sessions, and look for what is left; what
        went wrong."""
        wrong: list[str] | None = self._ask("acknowledge", at=at, mode=mode, count=count, **{"from": sender})
        return wrong


def check(sent: Sequence[dict[str, Any]], received: Sequence[dict[str, Any]], late: int) -> None:
    """Whether the receiver sees what the sender sent. ``late``: an expiration may be so many milliseconds later."""
    assert [message["kind"] for message in received] == list(KINDS)
    for before, after in zip(sent, received, strict=True):
        for name in before.keys() | after.keys() - {"kind", "properties", "expiration"}:
            if name not in ("kind", "properties", "expiration"):
                assert after.get(name) == before.get(name), (name, before, after)
        assert after["message_id"].startswith("ID:"), after
        assert 0 <= after["expiration"] - before["expiration"] <= (late if before["expiration"] else 0), (before, after)
        properties = {name: value for name, value in after["properties"].items() if name not in OF_THE_WAY}
        assert properties == {name: value for name, value in before["properties"].items() if name not in OF_THE_WAY}


def check_answer(seen: dict[str, str]) -> None:
    """Whether the answer came, and names the question."""
    assert seen.get("answer") == "answer", seen
    assert seen["asked"] == seen["seen"] == seen["correlation_id"], seen


@pytest.fixture(scope="session")
def jms() -> Iterator[Jms]:
    """Qpid's JMS client."""
    judge = Judge()
    yield Jms(judge)
    judge.close()


@pytest.fixture(scope="session")
def embedded() -> Iterator[Embedded]:
    """The gateway's own broker."""
    broker = Embedded()
    yield broker
    broker.close()


@pytest.fixture
def place(embedded: Embedded) -> Callable[[str, str], Place]:
    """``place(version, queue)`` on the embedded broker."""
    return lambda version, queue: Place(embedded.port, embedded.virtual_host, version, queue)
