"""Every point at which the process of a bridge in mode ``dtx`` may end, and how it is made to end there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.ledger import BranchStatus
from gateway.ledger.pending.branches import BranchStore as Register
from gateway.upstreams.branches import BranchWorker, UpstreamBranch
from tests.bridges.conftest import Estate


class Hold:
    """Stops whoever comes to it, for ever."""

    def __init__(self) -> None:
        self.reached = False

    async def here(self) -> None:
        """Stop."""
        self.reached = True
        await asyncio.Event().wait()


def before(original: Callable[..., Awaitable[Any]], hold: Hold) -> Callable[..., Awaitable[Any]]:
    """Stop before it."""

    async def held(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.05)  # what was sent is on its way
        await hold.here()

    return held


def after(original: Callable[..., Awaitable[Any]], hold: Hold) -> Callable[..., Awaitable[Any]]:
    """Stop after it."""

    async def held(*arguments: Any, **options: Any) -> Any:
        await original(*arguments, **options)
        await hold.here()

    return held


POINTS: dict[str, tuple[Any, str, Callable[..., Any], BranchStatus, int]] = {
    "before start": (BranchWorker, "begin", before, BranchStatus.BEGUN, 0),
    "after start": (UpstreamBranch, "started", after, BranchStatus.BEGUN, 0),
    "after transfers": (UpstreamBranch, "end", before, BranchStatus.BEGUN, 0),
    "after end": (UpstreamBranch, "end", after, BranchStatus.BEGUN, 0),
    "after prepare": (UpstreamBranch, "prepare", after, BranchStatus.BEGUN, 1),
    "after the ledger's write": (Register, "decide", after, BranchStatus.DECIDED, 1),
    "after commit": (UpstreamBranch, "commit", after, BranchStatus.DECIDED, 0),
    "after the ledger's second write": (Register, "finish", after, BranchStatus.BEGUN, 0),
}
"""Where a process ends: what is called there, and what ledger and target know then: the status of the branch, and how
many branches are prepared."""


async def crash(estate: Estate) -> None:
    """As a SIGKILL does: nobody says anything more to anybody."""
    for upstream in estate.upstreams.values():
        for keeper in upstream._keepers.values():
            if keeper.link is not None and keeper.link.stream is not None:
                keeper.link.stream.abort()
    for bridge in estate.bridges._here.values():
        await bridge.drop()
    await estate.close_gateway(0.0)


async def branches(estate: Estate, bridge: str = "b") -> list[BranchStatus]:
    """What the ledger knows of the bridge's branches."""
    return [branch.status for branch in await estate.ledger.branches.of(bridge)]


async def prepared(estate: Estate) -> int:
    """How many branches the target has prepared."""
    return len(await estate.new.branches.recover())


async def until_async(condition: Callable[[], Awaitable[bool]], within: float = 10.0) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + within
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)
