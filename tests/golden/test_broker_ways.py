"""What the transcripts show that brokers do to messages: the rows of docs/reference/brokers.md that need a proof."""

from __future__ import annotations

import gzip

import pytest

from tests import golden

PACKED = gzip.compress(b"golden", mtime=0)
GZIP = b"\x04gzip"
"""The content-encoding, on the wire."""


def test_rabbitmq_hangs_up_over_a_float_that_is_no_number() -> None:
    transcript = golden.load("rabbitmq-0-9-1-refused-float")
    assert b"\x01ad\x7f\xf8\x00\x00\x00\x00\x00\x00" in transcript.from_client
    assert b"\x02\x1d\x0eINTERNAL_ERROR" in transcript.from_server, "no connection.close with 541"


@pytest.mark.parametrize("version", ["0-8", "0-9-1", "0-10"])
def test_broker_j_unpacks_bodies(version: str) -> None:
    transcript = golden.load(f"brokerj-{version}-gzip")
    assert PACKED in transcript.from_client
    assert GZIP in transcript.from_client
    assert PACKED not in transcript.from_server
    assert GZIP not in transcript.from_server
    assert b"golden" in transcript.from_server.rpartition(b"golden")[0], "in the body, beside the routing key"


def test_broker_j_empties_those_that_it_cannot_unpack() -> None:
    transcript = golden.load("brokerj-0-10-gzip")
    assert b"no gzip" in transcript.from_client
    assert b"no gzip" not in transcript.from_server


@pytest.mark.parametrize("version", ["0-8", "0-9-1", "0-10"])
def test_broker_j_lets_transient_messages_overtake_persistent_ones(version: str) -> None:
    """The first of three messages is persistent. The second one has an empty body, the third a long one. In the classic
    versions a message of the virtual host's properties comes before all of them."""
    transcript = golden.load(f"brokerj-{version}")
    sent, came = transcript.from_client, transcript.from_server
    assert 0 < sent.index(b"golden \x00\xff") < sent.index(bytes(range(256)))
    first = came.index(b"golden \x00\xff")
    transfer = b"\x04\x01\x01\x00\x07\x00\x05judge" if version == "0-10" else b"\x00\x3c\x00\x3c\x011"
    assert came[:first].count(transfer) > 2, "another message comes before it"


def _methods(name: str) -> list[int]:
    """The methods of class basic that a broker sent from the first delivery on."""
    found, data = [], golden.load(name).from_server
    while data:
        size = int.from_bytes(data[3:7], "big")
        if data[0] == 1 and data[7:9] == b"\x00\x3c":
            found.append(int.from_bytes(data[9:11], "big"))
        data = data[8 + size :]
    return found[found.index(60) :]


def test_rabbitmq_answers_one_recover_of_0_8_and_not_the_other() -> None:
    asynchronous, answered = [60], [111, 60]
    assert _methods("rabbitmq-0-8-recover") == [60, *asynchronous, *answered]


def test_broker_j_answers_every_recover_of_0_8_by_the_same_method() -> None:
    requeued, sent_again = [101, 60], [60, 101]
    assert _methods("brokerj-0-8-recover") == [60, *requeued, *sent_again, *requeued, *sent_again]
