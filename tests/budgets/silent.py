"""``python -m tests.budgets.silent ANSWER ARGUMENTS``: the gateway, with a name server that says nothing.

Names below ``silent.example`` have no answer as long as there is no file ANSWER.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

from gateway.commands import cli

SILENCE = 60.0
"""How long it lasts at most, in seconds."""
_getaddrinfo = socket.getaddrinfo


def silence(answer: Path) -> None:
    """Have the name server of this process say nothing."""

    def ask(host: Any, *more: Any, **named: Any) -> Any:
        if str(host).endswith(".silent.example"):
            end = time.monotonic() + SILENCE
            while time.monotonic() < end and not answer.exists():
                time.sleep(0.05)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return _getaddrinfo(host, *more, **named)

    socket.getaddrinfo = ask  # type: ignore[assignment]  # the same for all other names


if __name__ == "__main__":
    silence(Path(sys.argv[1]))
    cli(sys.argv[2:])
