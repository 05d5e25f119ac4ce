"""Names that lead elsewhere a moment later: what is connected to is what was judged."""

from __future__ import annotations

import random
import socket

import pytest

from gateway.errors import AddressDenied, ConnectFailed
from gateway.outbound import OutboundRules
from gateway.outbound.addresses import RANGES, Address, denied, parse_address
from tests.outbound.conftest import Make
from tests.outbound.endpoint import Endpoint

TRIES = 10_000
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2001:4860:4860::8888"]


def inside(rng: random.Random) -> str:
    """Some address of some denied range."""
    network = rng.choice(RANGES).network
    return str(network[rng.randrange(network.num_addresses)])


async def test_no_connection_to_a_denied_range_however_the_name_turns(make: Make) -> None:
    rng = random.Random(20_261_121)
    connects: list[Address] = []
    lookups = 0

    async def resolve(host: str) -> list[str]:
        """Public at first sight, private at the second; or both at once, in any order."""
        nonlocal lookups
        lookups += 1
        turn = rng.randrange(5)
        if turn == 0:
            return [rng.choice(PUBLIC)]
        if turn == 1:
            return [inside(rng)]
        found = rng.sample(PUBLIC, rng.randrange(1, 4)) + [inside(rng) for _ in range(rng.randrange(3))]
        rng.shuffle(found)
        return found

    async def dial(address: Address, port: int) -> socket.socket:
        connects.append(address)
        raise OSError(101, "unreachable")

    transport = make(OutboundRules(), resolve=resolve, dial=dial)
    refused = failed = 0
    for number in range(TRIES):
        try:
            await transport.send("POST", f"https://rebind-{number % 50}.example/")
        except AddressDenied:
            refused += 1
        except ConnectFailed:
            failed += 1
    assert refused + failed == TRIES == lookups, "each try asks once"
    assert refused > TRIES // 4
    assert failed > TRIES // 4
    assert len(connects) >= failed
    assert [address for address in connects if denied(address) is not None] == []


async def test_a_name_is_resolved_once_for_each_connection(make: Make, server: Endpoint) -> None:
    """The second answer is never asked for: the first one was judged, and is what is connected to."""
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str) -> list[str]:
        return next(answers)

    transport = make(OutboundRules(allow=["127.0.0.0/8"], plain=True, ports=[server.port]), resolve=resolve)
    url = server.url("/200", host="rebind.example")
    assert (await transport.send("POST", url)).status == 200
    assert (await transport.send("POST", url)).status == 200
    assert (await transport.send("POST", server.url("/close", host="rebind.example"))).status == 200
    with pytest.raises(AddressDenied, match=r"10\.0\.0\.1 is denied: 10\.0\.0\.0/8 \(private, RFC 1918\)"):
        await transport.send("POST", url)
    assert server.requests[0].headers["host"] == f"rebind.example:{server.port}"


async def test_a_literal_that_is_denied_is_not_even_resolved(make: Make) -> None:
    async def never(*_: object) -> list[str]:
        raise AssertionError

    transport = make(OutboundRules(plain=True, ports=(80,)), resolve=never, dial=never)
    for host in ("127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "localhost", "１２７.0.0.1"):
        with pytest.raises(AddressDenied):
            await transport.send("GET", f"http://{host}/")


def test_what_is_inside_is_denied() -> None:
    rng = random.Random(1)
    for _ in range(1_000):
        address = parse_address(inside(rng))
        assert address is not None
        assert denied(address) is not None
