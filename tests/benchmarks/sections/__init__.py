"""The sections of a run: :data:`SECTIONS`, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import Row
from tests.benchmarks.sections import (
    bridge,
    codec,
    cost,
    front,
    growth,
    ledger,
    link,
    memory,
    outbound,
    publish,
    pull,
    push,
    versions,
)

Section = Callable[[Bench], list[Row]]

SECTIONS: Mapping[str, Section] = {
    "codec": codec.run,
    "link": link.run,
    "versions": versions.run,
    "publish": publish.run,
    "pull": pull.run,
    "push": push.run,
    "bridge": bridge.run,
    "front": front.run,
    "outbound": outbound.run,
    "ledger": ledger.run,
    "memory": memory.run,
    "growth": growth.run,
    "cost": cost.run,
}
"""Name -> what it measures."""
