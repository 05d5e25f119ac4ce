"""What the transcripts show that brokers do to messages: the rows of docs/brokers.md that need a proof."""

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
