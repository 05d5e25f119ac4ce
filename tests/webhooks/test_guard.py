"""The guard holds for every URL that a user of the API can set: of an endpoint, of its tokens, in the handshake."""

from __future__ import annotations

import random
import socket
from collections import Counter
from typing import Any

import pytest

from gateway.config import EndpointAuth, EndpointSettings
from gateway.errors import AddressDenied, ConnectFailed, EncodeError, GatewayError
from gateway.outbound import GuardedTransport, OutboundRules
from gateway.outbound.addresses import Address, denied
from gateway.webhooks.attempts.handshake import ask
from gateway.webhooks.attempts.sender import Sender
from tests.outbound.conftest import Make
from tests.outbound.test_rebinding import PUBLIC, TRIES, inside
from tests.outbound.vectors import VECTORS
from tests.webhooks.receivers import endpoint_of, message

WAYS = {"url": TRIES // 2, "token_url": TRIES * 4 // 10, "handshake": TRIES // 10}
"""How a URL is called -> how often names are turned there."""


class Guarded:
    """A sender whose connections are written down and fail."""

    def __init__(self, make: Make, resolve: Any) -> None:
        self.connects: list[Address] = []
        self.transport: GuardedTransport = make(OutboundRules(), resolve=resolve, dial=self.dial)
        self.sender = Sender(self.transport)

    async def dial(self, address: Address, port: int) -> socket.socket:
        self.connects.append(address)
        raise OSError(101, "unreachable")

    async def call(self, way: str, url: str) -> GatewayError | None:
        """Have this URL called."""
        if way == "handshake":
            try:
                await ask(self.transport, EndpointSettings(url=url), "gateway.example")
            except GatewayError as error:
                return error
            return None
        given: dict[str, Any] = {"url": url}
        if way == "token_url":
            auth = EndpointAuth(kind="oauth2", user="u", secret="s", token_url=url)
            given = {"url": "https://1.1.1.1/", "auth": auth}
        outcome = await self.sender.send(endpoint_of(**given, signing=()), [message()], 0)
        assert outcome.status is None
        return outcome.detailed


@pytest.mark.parametrize("way", WAYS)
async def test_address_vectors(make: Make, way: str) -> None:
    async def resolve(host: str) -> list[str]:
        return ["1.1.1.1"]

    guarded = Guarded(make, resolve)
    for host, said in VECTORS:
        before = len(guarded.connects)
        error = await guarded.call(way, f"https://{host}/")
        if said == "public":
            assert type(error) is ConnectFailed, (host, error)
            assert len(guarded.connects) == before + 1
        else:
            assert type(error) in (AddressDenied, EncodeError), (host, error)
            assert len(guarded.connects) == before, host
    assert len(VECTORS) >= 200
    assert [address for address in guarded.connects if denied(address) is not None] == []


@pytest.mark.parametrize("way", WAYS)
async def test_rebinding(make: Make, way: str) -> None:
    rng = random.Random(20_261_121)

    async def resolve(host: str) -> list[str]:
        """Public or private, or both at once."""
        found = rng.sample(PUBLIC, rng.randrange(3)) + [inside(rng) for _ in range(rng.randrange(3))]
        rng.shuffle(found)
        return found or [rng.choice(PUBLIC)]

    guarded = Guarded(make, resolve)
    said = Counter()
    for number in range(WAYS[way]):
        said[type(await guarded.call(way, f"https://rebind-{number % 50}.example/"))] += 1
    assert said.keys() == {AddressDenied, ConnectFailed}
    assert min(said.values()) > WAYS[way] // 5
    assert [address for address in guarded.connects if denied(address) is not None] == []
    await guarded.sender.close()
