"""The transcripts are what the tests that decode them take them for."""

from __future__ import annotations

import itertools

import pytest

from tests import golden

HEADERS = {"0-8": b"AMQP\x01\x01\x08\x00", "0-9-1": b"AMQP\x00\x00\x09\x01", "0-10": b"AMQP\x01\x01\x00\x0a"}


@pytest.mark.parametrize("name", golden.names())
def test_a_transcript_is_whole(name: str) -> None:
    transcript = golden.load(name)
    header = HEADERS[transcript.version]
    assert transcript.pieces[0] == ("client", header)
    start = transcript.from_server.removeprefix(header)
    assert start.find(b"PLAIN") > 0, "it does not begin with connection.start"
    assert transcript.about
    assert transcript.client
    speakers = [who for who, _ in transcript.pieces]
    assert all(one != other for one, other in itertools.pairwise(speakers))
    assert (golden.FOLDER / f"{name}.json").stat().st_size < 100_000


def test_every_version_was_recorded() -> None:
    assert {golden.load(name).version for name in golden.names()} == set(HEADERS)
    assert {golden.load(name).broker.split()[0] for name in golden.names()} == {"RabbitMQ", "Apache"}
