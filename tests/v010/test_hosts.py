"""Lists of hosts: as other libraries write them, and as nobody may."""

from __future__ import annotations

import pytest

from gateway.errors import FrameSyntaxError
from gateway.limits import Limits
from gateway.v010.hosts import read_hosts, write_hosts

OCTETS = b"\x95\x00\x00\x00\x02" + b"\x00\x05one:1" + b"\x00\x00"


def test_there_and_back() -> None:
    assert write_hosts(("one:1", "")) == OCTETS
    assert read_hosts(OCTETS, Limits()) == ("one:1", "")
    assert read_hosts(b"\x85\x00\x00\x00\x01\x05one:1", Limits()) == ("one:1",)


def test_none() -> None:
    assert write_hosts(()) is None
    assert read_hosts(None, Limits()) == read_hosts(b"", Limits()) == ()


@pytest.mark.parametrize("octets", [OCTETS[:end] for end in range(1, len(OCTETS))] + [OCTETS + b"\x00", b"\x02"])
def test_broken(octets: bytes) -> None:
    with pytest.raises(FrameSyntaxError):
        read_hosts(octets, Limits())
