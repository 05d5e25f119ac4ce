"""``python -m tests.attack.planted``: a gateway whose defenses are taken out, to show that the judges notice.

It takes the arguments of ``gateway``. It trusts every caller that claims to be a proxy. Its name server says nothing
of some names, and it asks for any number of them. Any request for one of these paths does harm at once:

    /planted/memory   keeps 64 MiB
    /planted/stall    stands still for half a second
    /planted/error    raises an error that nobody expects
    /planted/secret   logs a planted secret
    /planted/end      ends the process
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from gateway.api.app import Api
from gateway.api.http import guard
from gateway.api.http.proxies import Proxies
from gateway.commands import main
from gateway.observing.telemetry import log
from gateway.outbound import resolver
from tests import canary
from tests.attack.lab import ANSWER
from tests.budgets.silent import silence

STALL: Final = 60_000_000
"""How often a loop goes round that keeps a processor busy for about two seconds."""
STAND: Final = 5.5
"""How long nothing moves, in seconds."""
KEPT: Final[list[bytearray]] = []
_answer: Final = Api.__call__


def harm(path: str) -> None:
    """Do what a path asks for."""
    if path == "/planted/memory":
        KEPT.append(bytearray(os.urandom(1 << 20) * 64))
    elif path == "/planted/stall":
        for _ in range(STALL):
            pass
    elif path == "/planted/stand":
        time.sleep(STAND)
    elif path == "/planted/error":
        try:
            raise RuntimeError("planted")
        except RuntimeError as error:
            log("planted.error", logging.ERROR, error)
    elif path == "/planted/secret":
        log("planted.secret", key=canary.CANARY)
    elif path == "/planted/end":
        os._exit(3)


async def _harmful(self: Api, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        harm(scope["path"])
    await _answer(self, scope, receive, send)


def plant() -> None:
    """Take the defenses out."""
    Api.__call__ = _harmful  # type: ignore[method-assign]
    guard.PARSED_MAX = guard.UNPARSED_MAX = 1 << 30  # type: ignore[misc]
    Proxies._trusts = lambda self, host: True  # type: ignore[method-assign]
    resolver.UNKNOWN_SHARE = 1.0  # type: ignore[misc]
    silence(Path(ANSWER))


if __name__ == "__main__":
    plant()
    main(sys.argv[1:])
