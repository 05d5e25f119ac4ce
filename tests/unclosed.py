"""Connections that nobody has closed, and which test has made them.

Python warns of one when its garbage collector finds it, which may be many tests later. The warning names the test that
made it, the peers and what served it.
"""

from __future__ import annotations

import os
from asyncio import selector_events
from typing import Any, Final

_TRANSPORT: Final[Any] = selector_events._SelectorTransport  # type: ignore[attr-defined]  # there is no public name


def name_tests() -> None:
    """Have every connection that is made from now on say in its ``repr`` where it comes from."""
    begin, show = _TRANSPORT.__init__, _TRANSPORT.__repr__

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        self.made_in = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        begin(self, *args, **kwargs)

    def shown(self: Any) -> str:
        ends = " to ".join(str(self.get_extra_info(name)) for name in ("sockname", "peername"))
        return f"{show(self)} from {ends} for {type(self.get_protocol()).__qualname__}, made in {self.made_in}"

    _TRANSPORT.__init__, _TRANSPORT.__repr__ = begun, shown
