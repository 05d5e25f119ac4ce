"""20,000 cases, a quarter of them in ``make test``, and the fuzzer itself: it must see what is broken. What it finds
becomes a test with a name of its own in ``tests/hostile/test_found_here.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.amqp import operations as o
from gateway.classic.client_channel import ClientChannel
from gateway.classic.connection import ClassicSession
from gateway.errors import FrameSyntaxError
from gateway.session import Role
from gateway.v010.assembler import Assembler
from gateway.v010.version import V0_10
from gateway.v091.version import V0_9_1
from gateway.versions import VERSIONS
from tests import pairings
from tests.fuzz import generators, oracle, states, targets
from tests.fuzz.oracle import Broken, Case, Watched
from tests.fuzz.run import run

CASES = 20_000 if pairings.runs_all() else 5_000
PARTS = 4
SEED = "20"


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_breaks(part: int, tmp_path: Path) -> None:
    """The seed is fixed, so that a change is tested against what the last one was; ``make fuzz`` takes others."""
    report = run(f"{SEED}-{part}", CASES // PARTS, tmp_path)
    print(report)
    assert report.cases == CASES // PARTS
    assert report.failures == []


def test_a_case_is_made_again_from_its_number(tmp_path: Path) -> None:
    for number in range(50):
        assert targets.made("s", number) == targets.made("s", number)
    generator, case = targets.made("s", 3)
    case.write(tmp_path / "case.json")
    assert Case.read(tmp_path / "case.json") == case
    assert generator


def test_every_state_is_reached_and_every_target_is_played() -> None:
    made = [targets.made("t", number) for number in range(4_000)]
    assert {case.state for _, case in made if case.target == "session"} == set(states.STATES)
    assert {case.target for _, case in made} == {name for name, _ in targets.SHARES}
    assert {generator for generator, _ in made} == {*generators.GENERATORS, "sasl", "draft"}
    assert {(case.version, case.role) for _, case in made} == {(version, role) for version in VERSIONS for role in Role}


def test_the_octets_get_far() -> None:
    """Not all is refused at the first octet: requests, messages and closed channels come out of it."""
    seen: set[type] = set()

    class Looking(Watched):
        def _react(self, event: o.Operation) -> None:
            seen.add(type(event))
            super()._react(event)

    for number in range(5_000):
        _, case = targets.made("far", number)
        if case.target == "session":
            Looking(case).play()
    assert {
        o.Publish, o.Deliver, o.Got, o.Returned, o.Settle, o.DeclareQueue, o.BindQueue, o.Consume, o.Confirmed,
        o.Opened, o.ChannelClosed, o.CloseChannel, o.DeliveryTooLarge, o.Credit, o.TxCommit,
    } <= seen  # fmt: skip


# ------------------------------------------------------------------------------ the fuzzer sees what is broken


def raises_in_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any) -> None:
        raise KeyError("leaks")

    monkeypatch.setattr(ClientChannel, "header_frame", broken)


def tells_for_a_channel_that_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ClassicSession._stray_content
    monkeypatch.setattr(ClassicSession, "_stray_content", lambda self, number: self.emit(o.Flow(number)) or whole)


def ends_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ClassicSession.end
    monkeypatch.setattr(ClassicSession, "end", lambda self, closed: (whole(self, closed), self.emit(closed)))


def closes_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(self: Any, error: FrameSyntaxError, key: int) -> None:
        self.end(o.Closed(0, o.CloseReason.SYNTAX, error.reply_code, str(error)))

    monkeypatch.setattr("gateway.classic.client.ClassicClient.violation", silent)
    monkeypatch.setattr("gateway.classic.server.ClassicServer.violation", silent)


def never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicSession, "receive_eof", lambda self, now: [])
    monkeypatch.setattr(ClassicSession, "next_timeout", lambda self: None)


def keeps_what_a_length_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Assembler.feed

    def greedy(self: Any, *args: Any) -> Any:
        bytearray(4 << 20)
        return whole(self, *args)

    monkeypatch.setattr(Assembler, "feed", greedy)


def talks_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ClassicSession.data_to_send
    monkeypatch.setattr(ClassicSession, "data_to_send", lambda self: [*whole(self), bytes(1 << 20)])


@pytest.mark.parametrize(
    "defect",
    [
        raises_in_a_frame,
        tells_for_a_channel_that_never_was,
        ends_twice,
        closes_without_a_word,
        never_ends,
        keeps_what_a_length_promises,
        talks_too_much,
    ],
)
def test_a_defect_is_seen(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(defect.__name__)
    cases = []
    for version in (V0_9_1, V0_10):
        for state in ("consuming", "content", "header"):
            for role in Role:
                for _ in range(24):
                    octets = generators.grammar(random, version, role, state)
                    cases.append(Case("session", version, role, state, (octets,)))
                    states.tape(version, role, state)
    for case in cases:
        targets.play(case, weigh=True)
    defect(monkeypatch)

    def play_all() -> None:
        for case in cases:
            targets.play(case, weigh=True)

    with pytest.raises(Broken):
        play_all()


def test_a_message_that_changes_on_its_way_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from gateway.amqp.message import Message, Properties

    message = Message(b"", Properties(headers={"a": 1}))
    for version in VERSIONS:
        oracle.check_carried(version, message)
    carried = oracle.carried
    turns = iter(range(100))
    monkeypatch.setattr(
        oracle, "carried", lambda version, message: carried(version, Message(b"%d" % next(turns), message.properties))
    )
    with pytest.raises(Broken, match="came out as"):
        oracle.check_carried(V0_9_1, message)
