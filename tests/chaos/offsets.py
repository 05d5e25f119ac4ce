"""F08: connections reset at every octet of a publish and of a delivery, with figures. The work is that of
``tests/faults/test_offsets.py``, whose tests are the quick form."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from uuid import uuid4

from tests.chaos.figures import Figures
from tests.chaos.parts import Context
from tests.faults.test_offsets import TARGETS, Line, cut_deliveries, cut_publishes, over_all
from tests.servers import serving


def _line(context: Context, kind: str, version: str) -> Line:
    return Line(context.server(serving(kind, version)), version, f"offsets-{uuid4().hex[:12]}")


def offsets(context: Context) -> list[Figures]:
    """Both, on each broker and version."""
    found = []
    for kind, version in TARGETS:
        if not context.wants(f"{kind} {version}"):
            continue
        for what, work in (("publish", cut_publishes), ("delivery", cut_deliveries)):
            began = time.monotonic()
            figures = Figures(f"{what} cut at every octet, {kind} {version}")
            try:
                seen: Counter[str] = asyncio.run(
                    over_all(lambda kind, version: _line(context, kind, version), kind, version, work)
                )
            except Exception as error:  # the other brokers and versions are run all the same
                figures.problems.append(f"{type(error).__name__}: {error}")
            else:
                # What was lost, came unasked or came twice is an error of the work's own.
                figures.attempted = seen["offsets"]
                figures.lost = figures.duplicated = 0
                figures.acknowledged = seen["confirmed"]
                figures.recovered = seen["recovered"]
                figures.extra = {"offsets": seen["offsets"]}
            figures.seconds = round(time.monotonic() - began, 1)
            found.append(figures)
    return found
