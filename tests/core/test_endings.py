"""How keys end: what outcomes come to, what the ledger knows of earlier ones, and telling it until it has all."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.publishing.endings import disown, finality, insist, known, stay_unknown
from gateway.core.publishing.publisher import DONE, PublishOutcome
from gateway.errors import (
    BrokerUnavailable,
    CommitUnknown,
    EncodeError,
    EntriesRefused,
    GatewayError,
    KeyReused,
    LedgerUnavailable,
    NotFound,
    OutcomeUnknown,
    PublishRefused,
    Unroutable,
    remote_error,
)
from gateway.ledger import EndedKey, EventKind, KeyLost, LogEntry, id_text
from gateway.ledger.pending.keys import UNKNOWN
from gateway.runtime.backoff import Backoff

ID = b"m" * 16


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses take no time; how many were made."""
    made: list[float] = []

    async def wait(self: Any) -> None:
        made.append(self.next())

    monkeypatch.setattr(Backoff, "wait", wait)
    return made


def outcomes(*errors: GatewayError | None) -> list[PublishOutcome]:
    return [PublishOutcome("x", error) for error in errors]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([], "final"),
        ([None], "final"),
        ([EncodeError("too long")], "final"),
        ([Unroutable("x"), NotFound(404, "x")], "final"),
        ([BrokerUnavailable("x"), PublishRefused("x")], "free"),
        ([BrokerUnavailable("x"), None], "final"),
        ([BrokerUnavailable("x"), Unroutable("x")], "final"),
        ([OutcomeUnknown("x")], "unknown"),
        ([BrokerUnavailable("x"), OutcomeUnknown("x")], "unknown"),
        ([Unroutable("x"), OutcomeUnknown("x"), None], "unknown"),
    ],
)
def test_a_key_is_free_only_where_nothing_was_kept(errors: list[GatewayError | None], expected: str) -> None:
    assert finality(outcomes(*errors)) == expected


def test_only_an_answer_of_the_broker_ends_what_was_sent_before() -> None:
    """The earlier attempt may have arrived: that this one was not sent, or refused for now, says nothing of it."""
    own, unknown, final = EncodeError("too long"), OutcomeUnknown("no confirm"), remote_error(403, "ACCESS_REFUSED")
    results = outcomes(None, own, BrokerUnavailable("away"), PublishRefused("full"), unknown, final, Unroutable("x"))
    stay_unknown(results)
    found = [result.error for result in results]
    assert [type(error) for error in found[1:4]] == [OutcomeUnknown] * 3
    assert "too long" in str(found[1])
    assert found[0] is None
    assert found[4] is unknown
    assert found[5] is final
    assert type(found[6]) is Unroutable


def test_a_failure_of_what_another_process_sends_is_no_outcome() -> None:
    confirmed, failed = PublishOutcome("a", key=DONE), PublishOutcome("b", BrokerUnavailable("away"), key=DONE)
    disown([confirmed, failed])
    assert (confirmed.error, confirmed.key) == (None, DONE)
    assert (type(failed.error), failed.key) == (OutcomeUnknown, "")
    assert "away" in str(failed.error)


# ------------------------------------------------------------------------------------------------ what is known


def event(kind: EventKind, **detail: Any) -> Any:
    return SimpleNamespace(kind=kind, detail=detail)


class History:
    """A ledger that knows what became of one message, once it can be read."""

    def __init__(self, *events: Any, failures: int = 0) -> None:
        self.timelines: list[Any] = [LedgerUnavailable("away")] * failures
        self.timelines.append(SimpleNamespace(events=events) if events else None)

    async def timeline(self, message_id: bytes) -> Any:
        assert message_id == ID
        found = self.timelines.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


REFUSED = event(EventKind.REFUSED, code="publish_refused", text="full")
LOST = event(EventKind.UNKNOWN, code="outcome_unknown", text="no confirm")
UNROUTED = event(EventKind.UNROUTABLE, code="unroutable", text="no queue")


@pytest.mark.parametrize(
    ("events", "error", "routed", "resent"),
    [
        ([], None, True, False),
        ([event(EventKind.ACCEPTED), event(EventKind.CONFIRMED)], None, True, False),
        ([LOST, event(EventKind.RESENT), event(EventKind.CONFIRMED)], None, True, True),
        ([REFUSED], PublishRefused, False, False),
        ([UNROUTED], Unroutable, False, False),
        ([event(EventKind.UNROUTABLE, mandatory=False, text="allowed")], None, False, False),
        ([LOST, event(EventKind.RESENT), event(EventKind.UNROUTABLE, mandatory=False)], None, False, True),
        ([event(EventKind.NOT_SENT, code="broker_unavailable", text="away")], BrokerUnavailable, False, False),
        ([LOST], OutcomeUnknown, False, False),
        ([LOST, event(EventKind.RESENT)], OutcomeUnknown, False, True),
        ([event(EventKind.REFUSED)], GatewayError, False, False),
        ([event(EventKind.CONFIRMED), event(EventKind.ACKNOWLEDGED, code="x")], None, True, False),
    ],
)
async def test_what_a_timeline_says_of_a_message(
    events: list[Any], error: type[GatewayError] | None, routed: bool, resent: bool
) -> None:
    ledger: Any = History(*events)
    result = await known(ledger, ID)
    assert result.id == id_text(ID)
    assert (result.routed, result.resent) == (routed, resent)
    assert type(result.error) is (error or type(None))


async def test_a_timeline_is_waited_for(soon: list[float]) -> None:
    ledger: Any = History(REFUSED, failures=3)
    assert str((await known(ledger, ID)).error) == "full"
    assert len(soon) == 3


# ---------------------------------------------------------------------------------------------- telling the ledger


class Keyring:
    """What the ledger answers, call by call."""

    def __init__(self, *answers: Any) -> None:
        self.keyring = self
        self.answers = list(answers)
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []

    async def end(self, client: str, ended: Sequence[EndedKey]) -> Any:
        self.calls.append((client, [(each.key, len(each.entries)) for each in ended]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ended(*keys: str) -> list[EndedKey]:
    return [EndedKey(key, UNKNOWN, [LogEntry(ID, EventKind.UNKNOWN, 1)]) for key in keys]


async def test_keys_are_ended_until_the_ledger_has_all(soon: list[float]) -> None:
    """Each only once; where its events cannot be stored, without them."""
    away = LedgerUnavailable("away")
    ledger: Any = Keyring(
        away,
        [None, away, EntriesRefused({0: "a bad row"}), KeyLost("taken over")],
        [CommitUnknown("cut off"), None],
        [None],
    )
    assert await insist(ledger, "alice", ended("a", "b", "c", "d")) == {"d"}
    assert ledger.calls == [
        ("alice", [("a", 1), ("b", 1), ("c", 1), ("d", 1)]),
        ("alice", [("a", 1), ("b", 1), ("c", 1), ("d", 1)]),
        ("alice", [("b", 1), ("c", 0)]),
        ("alice", [("b", 1)]),
    ]
    assert len(soon) == 3


async def test_events_that_cannot_be_stored_hold_up_no_key(soon: list[float]) -> None:
    ledger: Any = Keyring([EntriesRefused({0: "a bad row"})], [None])
    assert await insist(ledger, "alice", ended("a")) == set()
    assert [keys for _, keys in ledger.calls] == [[("a", 1)], [("a", 0)]]
    assert soon == []


@pytest.mark.parametrize("error", [KeyReused("x"), EntriesRefused({0: "no event is there to leave out"})])
async def test_what_can_never_be_written_is_an_error(error: GatewayError) -> None:
    ledger: Any = Keyring([error])
    with pytest.raises(type(error)):
        await insist(ledger, "alice", [EndedKey("a", UNKNOWN, ())])


async def test_nothing_is_told_of_no_key() -> None:
    ledger: Any = Keyring()
    assert await insist(ledger, "alice", []) == set()
