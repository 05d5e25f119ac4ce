"""The system's resolver: few questions at a time, one for each name."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from gateway.budgets import ShareHolder
from gateway.errors import Overloaded, ResolveFailed
from gateway.outbound import OutboundLimits, resolver
from gateway.outbound.resolver import SystemResolver


class Names:
    """Instead of getaddrinfo."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = threading.Event()
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, host: str, port: object, **_: object) -> list[Any]:
        with self._lock:
            self.asked.append(host)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        assert self.go_on.wait(10)
        with self._lock:
            self.at_once -= 1
        if host == "missing":
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        if host == "odd":
            host.encode("idna").decode("ascii") and (_ for _ in ()).throw(UnicodeError("label too long"))
        return [(2, 1, 6, "", ("1.2.3.4", 0)), (2, 1, 6, "", ("1.2.3.4", 0)), (10, 1, 6, "", ("::5", 0, 0, 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(resolver.socket, "getaddrinfo", found)
    return found


async def test_all_addresses_once_and_in_order(names: Names) -> None:
    names.go_on.set()
    assert await SystemResolver()("host") == ["1.2.3.4", "::5"]


@pytest.mark.parametrize("host", ["missing", "odd"])
async def test_a_name_without_an_address(host: str, names: Names) -> None:
    names.go_on.set()
    with pytest.raises(ResolveFailed, match=f"{host}: (no such host|label too long)"):
        await SystemResolver()(host)


async def test_one_question_serves_all_who_ask(names: Names) -> None:
    resolve = SystemResolver()
    calls = [asyncio.create_task(resolve("host")) for _ in range(5)]
    await asyncio.sleep(0.01)
    calls[0].cancel()  # the others are not concerned
    await asyncio.sleep(0.01)
    names.go_on.set()
    assert await asyncio.gather(*calls[1:]) == [["1.2.3.4", "::5"]] * 4
    assert names.asked == ["host"]
    await resolve("host")
    assert names.asked == ["host", "host"]


async def test_few_names_at_once_and_not_too_many_waiting(names: Names) -> None:
    resolve = SystemResolver(OutboundLimits(lookups=2, lookups_waiting=4))
    calls = [asyncio.create_task(resolve(f"host-{number}", ShareHolder(f"client-{number}"))) for number in range(4)]
    await asyncio.sleep(0.05)
    with pytest.raises(Overloaded, match="lookups_waiting"):
        await resolve("one-more", ShareHolder("one-more"))
    names.go_on.set()
    await asyncio.gather(*calls)
    assert names.most == 1  # no host is known yet, and those have half of the places


async def test_a_client_has_a_share_of_the_places(names: Names) -> None:
    resolve = SystemResolver(OutboundLimits(lookups=16))
    calls = [asyncio.create_task(resolve(f"silent-{number}", ShareHolder("mallory"))) for number in range(32)]
    await asyncio.sleep(0.05)
    assert names.asked == [f"silent-{number}" for number in range(4)]
    other = asyncio.create_task(resolve("hooks", ShareHolder("alice")))
    await asyncio.sleep(0.05)
    assert names.asked[4:] == ["hooks"]
    names.go_on.set()
    assert await other == ["1.2.3.4", "::5"]
    await asyncio.gather(*calls)
    assert len(names.asked) == 33


async def test_hosts_without_a_known_address_leave_half_of_the_places(names: Names) -> None:
    resolve = SystemResolver(OutboundLimits(lookups=8))
    names.go_on.set()
    await resolve("hooks", ShareHolder("alice"))
    names.go_on.clear()
    calls = [asyncio.create_task(resolve(f"silent-{number}", ShareHolder(f"m-{number}"))) for number in range(20)]
    await asyncio.sleep(0.05)
    assert len(names.asked) == 1 + 4
    calls.append(asyncio.create_task(resolve("hooks", ShareHolder("alice"))))
    await asyncio.sleep(0.05)
    assert names.asked[-1] == "hooks"
    names.go_on.set()
    await asyncio.gather(*calls)
    assert names.most == 5


async def test_a_host_that_lost_its_address_is_no_longer_known(names: Names) -> None:
    resolve = SystemResolver()
    names.go_on.set()
    for _ in range(2):
        with pytest.raises(ResolveFailed):
            await resolve("missing")
    assert "missing" not in resolve._known


async def test_who_got_no_place_was_not_tried(names: Names) -> None:
    resolve = SystemResolver(OutboundLimits(lookups=4))
    first = asyncio.create_task(resolve("silent", ShareHolder("mallory")))
    await asyncio.sleep(0.01)
    with pytest.raises(Overloaded, match=r"hooks: no place for a lookup within 0\.1 s"):
        await resolve("hooks", ShareHolder("mallory"), within=0.1)
    with pytest.raises(ResolveFailed, match=r"silent: no addresses within 0\.1 s"):
        await resolve("silent", ShareHolder("mallory"), within=0.1)
    names.go_on.set()
    await first
    await asyncio.sleep(0.01)
    assert names.asked == ["silent"]  # nobody waited for the other any more
    assert (resolve._lookups, resolve._waiting) == ({}, {})


async def test_clients_take_turns(names: Names) -> None:
    resolve = SystemResolver(OutboundLimits(lookups=2))
    calls = [asyncio.create_task(resolve(f"a{number}", ShareHolder("alice"))) for number in range(3)]
    calls += [asyncio.create_task(resolve(f"b{number}", ShareHolder("bob"))) for number in range(2)]
    await asyncio.sleep(0.01)
    names.go_on.set()
    await asyncio.gather(*calls)
    assert names.asked == ["a0", "a1", "b0", "a2", "b1"]  # Bob came when a0 had begun


async def test_whoever_asked_may_have_gone(names: Names) -> None:
    resolve = SystemResolver()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await resolve("missing")
    names.go_on.set()
    await asyncio.sleep(0.05)
    resolve.close()


async def test_the_end_does_not_wait_for_the_system(names: Names) -> None:
    resolve = SystemResolver()
    call = asyncio.create_task(resolve("host"))
    await asyncio.sleep(0.01)
    resolve.close()
    with pytest.raises(asyncio.CancelledError):
        await call
    names.go_on.set()
    await asyncio.sleep(0.05)
