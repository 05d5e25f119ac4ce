"""What the ledger keeps of a message is handed out exactly as it came."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.amqp.message import Message, Properties, RawProperties
from gateway.core.publishing.envelopes import EnvelopeError
from gateway.core.sources.stored import Stored, envelope, open_envelope
from gateway.errors import FrameSyntaxError
from gateway.fidelity import digest
from tests.core.test_envelopes import EVERYTHING


@pytest.mark.parametrize("properties", [EVERYTHING, Properties(), Properties(headers={}), Properties(reply_to="q")])
@pytest.mark.parametrize("body", [b"", b"\x00\xff" * 1000])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_there_and_back(properties: Properties, body: bytes, flags: tuple[bool, bool]) -> None:
    before = Stored(Message(body, properties, relayed=True), "amq.\udcfftopic", "a.b\x00", *flags)
    after = open_envelope(envelope(before, resent=before.resent))
    assert after == before
    assert list(after.message.properties.headers or {}) == list(properties.headers or {})
    assert digest(after.message) == digest(before.message)
    assert after.message.relayed, "what came from a broker was accepted by one"


def test_the_caller_may_know_better_than_the_broker() -> None:
    before = Stored(Message(b"x"), "", "k", False, False)
    assert open_envelope(envelope(before, redelivered=True)).redelivered
    assert not open_envelope(envelope(before)).resent


def test_octets_that_are_no_property_list_stay_as_they_are() -> None:
    def decode(octets: bytes) -> Properties:
        raise FrameSyntaxError("broken")

    raw = RawProperties(b"\xff\x00", "0-9-1", decode)
    after = open_envelope(envelope(Stored(Message(b"x", None, raw), "e", "k", True, False))).message
    assert (after.body, after.relayed) == (b"x", True)
    assert after.raw is not None
    assert (after.raw.octets, after.raw.dialect) == (b"\xff\x00", "0-9-1")
    with pytest.raises(FrameSyntaxError):
        _ = after.properties


@pytest.mark.parametrize(
    "value",
    [
        1,
        [],
        [1, b"", {}, b"", b"", False],
        [1, b"", {"nonsense": 1}, b"", b"", False, False],
        [1, b"", [], b"", b"", False, False],
        [2, b"", [1], b"", b"", False, False],
        [3, b"", {}, b"", b"", False, False],
        [1, b"", {}, "text", 7, False, False],
    ],
)
def test_damaged(value: Any) -> None:
    with pytest.raises(EnvelopeError):
        open_envelope(msgspec.msgpack.encode(value))


def test_cut_anywhere() -> None:
    whole = envelope(Stored(Message(b"body", EVERYTHING), "e", "k", False, False))
    for length in range(len(whole)):
        with pytest.raises(EnvelopeError):
            open_envelope(whole[:length])
