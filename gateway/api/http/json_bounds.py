"""What JSON may hold, looked at before it is decoded: an octet of it can become dozens in memory.

Counted are brackets that open, and commas, which together are at least as many as there are values. Short bodies are
not looked at, for they cannot hold too many; in longer ones strings are separated from the rest only if they matter.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from gateway.api.http.problems import ApiProblem

PER_MESSAGE: Final = 64
"""How many brackets that open and commas there may be for each message of the largest batch."""
MESSAGES_LEAST: Final = 10_000
"""The largest batch has at least this number of messages, where that is reckoned: one message may have long tables."""
FREE: Final = PER_MESSAGE * MESSAGES_LEAST * 3 // 2
"""So many octets of messages cannot hold too much: ``[],`` is three octets, of which two count, and nothing has more.
Who decodes many bodies compares with it before the call."""
PLAIN: Final = 65_536
"""How many there may be in a body without messages."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STEP: Final = re.compile(rb'(?:[^"\[{,]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+(?:[\[{,]|\Z)', re.DOTALL)
"""Up to what is counted, or to the end. It never fails and never goes back, for any bytes."""
_STRIDE: Final = 10_000
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(octet for octet in range(256) if octet not in b"[]{}")


def check_size(octets: bytes, batch_max: int = 0) -> None:
    """Look at JSON with ``batch_max`` messages at most; 0: it holds none. Raises ApiProblem (body_too_large)."""
    most = PER_MESSAGE * max(batch_max, MESSAGES_LEAST) if batch_max else PLAIN
    if len(octets) * 2 <= most * 3:  # see FREE
        return
    if octets.count(b"{") + octets.count(b"[") + octets.count(b",") <= most:
        return
    steps = _STEP.finditer(octets)
    found = None
    for begin in range(0, most + 1, _STRIDE):  # so that other threads have their turn
        found = next(islice(steps, min(_STRIDE, most + 1 - begin) - 1, None), None)
        if found is None:
            break
    if found is not None and found[0][-1:] in (b"[", b"{", b","):
        why = f"{PER_MESSAGE} for each message of http.batch_max" if batch_max else "no message is taken here"
        raise ApiProblem("body_too_large", f"more than {most} arrays, objects and commas ({why})")


def is_deeper(octets: bytes, depth: int) -> bool:
    """Whether JSON that can be decoded is nested deeper. It takes no step of Python for each bracket."""
    if octets.count(b"[") + octets.count(b"{") <= depth:
        return False
    brackets = _STRING.sub(b"", octets).translate(_BRACKETS, _OTHERS)
    for _ in range(depth):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True
