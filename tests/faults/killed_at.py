"""``python -m tests.faults.killed_at MODULE:CLASS.METHOD WHEN N ARGUMENTS``: the gateway, which kills itself at a call.

It does so with SIGKILL at the Nth call of that coroutine: WHEN is ``before`` it does anything, or ``after`` it is done,
before its caller goes on.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

from gateway.commands import cli


def arm(place: str, when: str, number: int) -> None:
    """Have this process end there."""
    module, _, path = place.partition(":")
    owner, _, method = path.partition(".")
    kind = getattr(import_module(module), owner)
    original = getattr(kind, method)
    calls = 0

    async def call(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        is_last = calls == number
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await original(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(kind, method, call)


if __name__ == "__main__":
    arm(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    cli(sys.argv[4:])
